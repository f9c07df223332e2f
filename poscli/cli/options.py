"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poscli.config.count import MOST

__all__ = ["MOST", "Device", "Json", "Out"]

Out = Annotated[Path, typer.Option("--out", help="Folder of runs and reports.", show_default=True)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: auto, cpu, cuda or cuda:N.")]
