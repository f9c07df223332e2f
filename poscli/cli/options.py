"""Options that several commands share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from poscli.config.count import MOST

__all__ = ["MOST", "Device", "Json", "Out"]

Out = Annotated[Path, typer.Option("--out", help="Folder of runs and reports.", show_default=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: auto, cpu, cuda or cuda:N.")]


def carried(out: Path) -> str:
    """The end of a suggested command that is to work on the same folder: empty for the default folder."""
    return "" if out == Path("results") else f" --out {shlex.quote(str(out))}"
