"""`poscli verify`: check that an encoding does what every encoding must do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import MOST, Json
from poscli.system.console import emit, note, out
from poscli.system.errors import FAILED, UsageError
from poscli.system.text import printable

if TYPE_CHECKING:
    from poscli.verify import Finding, Verdict

STYLES = {"passed": "green", "failed": "red", "skipped": "dim", "unavailable": "yellow"}


@command("verify", after="generate")
def verify(
    enc: Annotated[
        list[str] | None,
        typer.Argument(
            help="Encoding specs: alibi, 'rope+window(128)', or your own: my_encoding.py, package.module:Class.",
            autocompletion=complete.specs,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Verify all that `poscli ls encodings` shows.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the input and of the weights.", min=0, max=MOST)] = 0,
    json_: Json = False,
) -> None:
    """Check shapes, causality, cached decoding, engines and gradients, shifts, long inputs, dtypes, saving and more."""
    import torch

    from poscli.encodings import names
    from poscli.specs import with_layouts
    from poscli.system.progress import Meter
    from poscli.verify import verify as run

    if bool(enc) == all_:
        raise UsageError("name encodings to verify, or give --all, not both: poscli verify alibi")
    torch.set_num_threads(1)  # the tensors are too small for a second thread to pay
    specs = names() if all_ else enc or []
    verdicts = []
    with Meter("verify", len(specs)) as progress:
        for spec in specs:
            verdicts.append(run(spec, seed))
            progress.advance(1, spec)
    named = [replace(verdict, encoding=with_layouts(verdict.encoding)) for verdict in verdicts]
    emit(json_, [verdict.record() for verdict in verdicts], lambda: _show(named))
    failed = [verdict.encoding for verdict in verdicts if verdict.status == "failed"]
    if len(verdicts) > 1:
        held = sum(verdict.status == "passed" for verdict in verdicts)
        unchecked = len(verdicts) - held - len(failed)
        note(f"{held} of {len(verdicts)} encodings hold" + f", {unchecked} could not be checked" * bool(unchecked))
    if failed:
        raise typer.Exit(FAILED)


def _show(verdicts: list[Verdict]) -> None:
    """Print a line per check for one encoding; for several, a line per encoding and then the checks that failed."""
    if len(verdicts) == 1:
        out().print(_findings(verdicts[0]))
        return
    out().print(_overview(verdicts))
    for verdict in verdicts:
        if verdict.status != "passed":
            out().print(Text(f"\n{verdict.encoding}", style="bold"))
            out().print(_findings(verdict, only=("failed", "unavailable")))


def _findings(verdict: Verdict, only: tuple[str, ...] = tuple(STYLES)) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (verdict.encoding, "", "what was found"):
        table.add_column(column, no_wrap=column != "what was found")
    alike: dict[str, list[Finding]] = {}  # one error in many checks, wherever these call what raises it
    for finding in verdict.findings:
        if finding.status in only:
            is_error = finding.status == "failed" and not finding.look
            alike.setdefault(finding.detail.rpartition(" (")[0] if is_error else finding.check, []).append(finding)
    for finding, *more in alike.values():
        checks = f"{finding.check}{f' and {len(more)} more' if more else ''}"
        table.add_row(checks, Text(finding.status, style=STYLES[finding.status]), Text(printable(finding.detail)))
        if finding.look:
            table.add_row("", "", Text(printable(f"look at: {finding.look}"), style="yellow"))
    return table


def _overview(verdicts: list[Verdict]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("encoding", no_wrap=True)
    table.add_column("result")
    table.add_column("does not apply")
    table.add_column("s", justify="right")
    for verdict in verdicts:
        checks = {status: [f.check for f in verdict.findings if f.status == status] for status in STYLES}
        result = f"{len(checks['passed'])} checks hold"
        if verdict.status != "passed":
            result = f"{verdict.status}: {', '.join(checks[verdict.status])}"
        table.add_row(
            verdict.encoding,
            Text(result, style=STYLES[verdict.status]),
            Text(", ".join(checks["skipped"]), style="dim"),
            f"{verdict.seconds:.1f}",
        )
    return table
