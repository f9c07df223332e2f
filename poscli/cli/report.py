"""`poscli report`: tables and plots of everything evaluated so far."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poscli.cli.options import Json, Out
from poscli.console import emit, note, out


def report(
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the report. [OUT/report]")] = None,
    mix: Annotated[bool, typer.Option("--mix", help="Compare runs across different corpora in one table.")] = False,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Write summary.csv, report.md and the plots, and print the table."""
    from poscli.report import build_report, collect, records, terminal, trained_tokens

    rows, positions = collect(out_ / "runs")
    made = build_report(rows, positions, to or out_ / "report", mix=mix, trained=trained_tokens(out_ / "runs"))
    emit(
        json_,
        {"summary": records(made.summary), "files": [str(p) for p in made.files]},
        lambda: terminal.show(made, out()),
    )
    for path in made.files:
        note(f"wrote {path}")
