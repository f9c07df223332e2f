"""`poscli card`: the positions of a Hugging Face checkpoint, and what is wrong with them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from poscli.checkpoints.commands import PROSE, Checkpoint
from poscli.cli.commands import command
from poscli.cli.options import Device, Json
from poscli.system.console import emit, out
from poscli.system.errors import FAILED, UsageError
from poscli.system.text import counted, printable

if TYPE_CHECKING:
    from poscli.checkpoints.card import Card
    from poscli.checkpoints.probe import Probe

STYLES = {"fault": "red", "note": "yellow", "passed": "green"}


@command("card", after="bench")
def card(
    model: Checkpoint,
    probe: Annotated[
        bool, typer.Option("--probe", help="Load the weights too, and read one passage at growing positions.")
    ] = False,
    device: Device = "cpu",
    json_: Json = False,
) -> None:
    """Show a checkpoint's positions, whether transformers reads them as written, and what is wrong with them.

    Without --probe only files of JSON are fetched and read, no weights. The exit code is 1 if there are faults; notes
    leave it at 0.
    """
    from poscli.checkpoints.card import card_of, read_subject
    from poscli.checkpoints.source import find
    from poscli.system.device import device_of, places_of_layers
    from poscli.system.memory import unaffordable

    if device != "cpu" and not probe:
        raise UsageError(f"--device {device} is for --probe: without it no weights are loaded; leave it out")
    source = find(model, config_only=not probe)
    subject = read_subject(source.folder)
    facts = card_of(subject)
    probed = None
    if probe and not subject.stock.refusal:
        from poscli.checkpoints.models import refuse_quantised
        from poscli.checkpoints.probe import probe as probe_checkpoint

        refuse_quantised(subject.config, source.spec)
        where = device_of(device)
        size = sum((source.folder / name).stat().st_size for name in source.weights)
        if why := unaffordable(size, *places_of_layers(where)):
            raise UsageError(f"{source.spec} {why}; leave out --probe, or use a larger machine")
        probed = probe_checkpoint(source.folder, subject, where)
    document = {"model": source.spec} | facts.to_json() | {"probe": probed and asdict(probed)}
    emit(json_, document, lambda: _show(source.spec, facts, probed))
    if facts.grave or (probed and probed.faults):
        raise typer.Exit(FAILED)


def _show(name: str, facts: Card, probed: Probe | None) -> None:
    """Print the page: the answer, then the positions it is about."""
    size = f"{counted(facts.layers, 'layer')}, {counted(facts.heads, 'head')} of {counted(facts.head_width, 'channel')}"
    if facts.kv_heads != facts.heads:
        size += f", {facts.kv_heads} of keys and values"
    out().print(Text(printable(name), style="bold"), Text(f"\n{facts.model_type}: {size}\n", style="dim"), sep="")
    _verdict(facts, probed)
    for fault in facts.faults:
        _said("note" if fault.note else "fault", fault.name, fault.wrong, fault.fix)
    for table in (_positions(facts), _lengths(facts)):
        out().print()
        out().print(table)
    if probed:
        out().print(Text(f"\nProbe with {probed.passage}, in {probed.dtype}", style="bold"))
        for finding in probed.findings:
            _said("fault" if finding.fault else "passed", finding.name, finding.said)


def _verdict(facts: Card, probed: Probe | None) -> None:
    """Print in one line whether anything is wrong."""
    names = [fault.name for fault in facts.grave] + [finding.name for finding in (probed.faults if probed else ())]
    if names:
        out().print(Text(f"{counted(len(names), 'fault')}: {', '.join(names)}", style="bold red"))
        return
    version = f"transformers {facts.transformers}"
    if probed:
        said = f"No faults: {version} computes the positions that config.json states."
    elif any(group.pairs for group in facts.groups):  # rotations are all that can be compared without weights
        said = f"No faults in config.json: {version} reads its rotations as written; --probe compares what it computes."
    else:
        said = "No faults in config.json; --probe compares what transformers computes."
    out().print(Text(said, style="bold green"))


def _said(status: str, name: str, *sentences: str) -> None:
    """Print the name of a fault or a finding, and under it its sentences, of which only the first is not dim."""
    out().print(
        Padding(Text.assemble((f"{status}: ", STYLES[status]), (printable(name), "bold")), (1, 0, 0, 2), expand=False)
    )
    for n, sentence in enumerate(sentences):
        text = Text(printable(sentence), style="dim" if n else "")
        out().print(Padding(text, (0, 0, 0, 4), expand=False), width=min(out().width, PROSE))


def _positions(facts: Card) -> Table:
    """A row for each group of layers with equal positions."""
    from poscli.drawing.text import amount

    table = Table("layers", "positions", box=None, pad_edge=False, header_style="bold")
    for column in ("window", "pairs", "short of a turn", "slowest"):
        table.add_column(column, justify="right", no_wrap=True)
    for group in facts.groups:
        wave = group.slowest_wavelength
        turning = [str(group.pairs), str(group.never_turning), f"{amount(wave)} tokens" if wave else ""]
        window = "all" if group.window is None else f"{group.window}"
        table.add_row(group.numbers, printable(group.spec), window, *(turning if group.pairs else ("", "", "")))
    return table


def _lengths(facts: Card) -> Table:
    """Lengths in tokens, each with what says so, and what the columns of the other table mean."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("length", f"{facts.length} tokens", f"by {facts.length_from}")
    for group in facts.groups:
        if group.factor:
            reach = f"{round(group.factor * group.original)} tokens" if group.original else ""
            sharper = f", scores times {group.amplitude**2:.3f}" if group.amplitude != 1 else ""
            table.add_row(
                "scaled to", reach, f"{group.factor:g} times {group.original}{sharper}; layers {group.numbers}"
            )
    if facts.tokenizer_limit:
        table.add_row("tokenizer", f"{facts.tokenizer_limit} tokens", "by model_max_length")
    if any(group.never_turning for group in facts.groups):
        table.add_row("turns", "", f"a pair short of a turn within {facts.length} tokens meets new angles beyond them")
    return table
