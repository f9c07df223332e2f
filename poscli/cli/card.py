"""`poscli card`: the positions of a Hugging Face checkpoint, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from poscli.cli.options import Json
from poscli.drawing.text import amount
from poscli.system.console import emit, out
from poscli.system.errors import FAILED
from poscli.system.text import printable

if TYPE_CHECKING:
    from poscli.checkpoints.card import Card, Fault

WIDTH = 100  # characters of a line of prose


def card(
    model: Annotated[str, typer.Argument(help="The folder of a checkpoint, which has a config.json.")],
    probe: Annotated[
        bool, typer.Option("--probe", help="Load the weights, and read one passage at growing positions.")
    ] = False,
    json_: Json = False,
) -> None:
    """Show a checkpoint's positions, whether transformers reads them as written, and what is wrong with them.

    Without --probe only config.json and tokenizer_config.json are read. The exit code is 1 if there are faults.
    """
    from poscli.checkpoints.card import card_of, read_subject

    folder = _folder(model)
    subject = read_subject(folder)
    found = card_of(subject)
    emit(json_, found.to_json(), lambda: _show(folder.resolve().name, found))
    if found.grave:
        raise typer.Exit(FAILED)


def _folder(model: str) -> Path:
    """Where the checkpoint's files are. (The place for downloads from the Hugging Face hub.)"""
    return Path(model)


def _show(name: str, found: Card) -> None:
    """Print the page: the answer, then the positions it is about."""
    size = f"{found.layers} layers, {found.heads} heads of {found.head_width} channels"
    if found.kv_heads != found.heads:
        size += f", {found.kv_heads} of keys and values"
    out().print(Text(printable(name), style="bold"), Text(f"{found.model_type}, {size}", style="dim"))
    out().print()
    _verdict(found)
    for fault in found.faults:
        _fault(fault)
    out().print()
    out().print(_positions(found))
    out().print()
    for line in _lengths(found):
        out().print(Text(line))


def _verdict(found: Card) -> None:
    count = len(found.grave)
    if not count:
        said = f"No faults: transformers {found.transformers} computes the positions that config.json states."
        out().print(Text(said, style="green"))
        return
    out().print(Text(f"{count} fault{'s' if count > 1 else ''}", style="bold red"))


def _fault(fault: Fault) -> None:
    style = "yellow" if fault.note else "red"
    out().print(Padding(Text(f"{'note' if fault.note else 'fault'}: {fault.name}", style=style), (1, 0, 0, 2)))
    for line, style in ((fault.wrong, ""), (fault.fix, "dim")):
        out().print(Padding(Text(printable(line), style=style), (0, 0, 0, 4)), width=WIDTH)


def _positions(found: Card) -> Table:
    """A row for each group of layers with equal positions."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("layers", "positions", "window", "pairs", "below one turn", "slowest pair"):
        table.add_column(
            column, no_wrap=column != "layers", justify="left" if column in ("layers", "positions") else "right"
        )
    for group in found.groups:
        wave = group.slowest_wavelength
        table.add_row(
            group.numbers,
            printable(group.spec),
            "all" if group.window is None else str(group.window),
            str(group.pairs) if group.pairs else "",
            str(group.never_turning) if group.pairs else "",
            f"{amount(wave)} tokens" if wave else "",
        )
    return table


def _lengths(found: Card) -> list[str]:
    said = [f"length      {found.length} tokens, by {found.length_from}"]
    scaled = [group for group in found.groups if group.factor]
    if scaled:
        group = scaled[0]
        said.append(f"scaling     made for {found.promised} tokens: {group.original} times {group.factor:g}")
        if group.amplitude != 1:
            said.append(f"            scores are sharpened by {group.amplitude**2:.3f}")
    if found.tokenizer_limit:
        said.append(f"tokenizer   up to {found.tokenizer_limit} tokens")
    return said
