"""`poscli report`: tables and plots of everything evaluated so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.cli import complete
from poscli.cli.options import Json, Out
from poscli.system.console import emit, note, out

if TYPE_CHECKING:
    from poscli.runs.results import Tables


def report(
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the report; by default OUT/report.")] = None,
    mix: Annotated[
        bool, typer.Option("--mix", help="Compare runs on different corpora, or of different tokenizers.")
    ] = False,
    baseline: Annotated[
        str, typer.Option("--baseline", help="Compare all encodings with this one.", autocompletion=complete.encodings)
    ] = "",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Write summary.csv, report.md and the plots, and print the table."""
    from poscli.report import collect
    from poscli.tasks import task_columns

    tables = collect(out_ / "runs", task_columns())
    present(tables, to or out_ / "report", out_ / "runs", json_, mix=mix, baseline=baseline)


def present(
    tables: Tables,
    to: Path,
    runs: Path,
    json_: bool,
    *,
    mix: bool = False,
    baseline: str = "",
    title: str = "",
    description: str = "",
    **more: Any,
) -> None:
    """Write a report to the folder `to` and print its table; a JSON document has the values of `more`, too.

    `title` and `description` are those of a suite. The runs in `failures`, if that is in `more`, are named as left out.
    """
    from poscli.report import About, build_report, records, terminal, trained_tokens
    from poscli.report.explain import explanations

    left_out = [f"{run['encoding']}, seed {run['seed']}: {run['error']}" for run in more.get("failures", ())]
    about = About(title=title, description=description, left_out=left_out, explained=explanations(tables.rows))
    made = build_report(
        tables.rows,
        tables.positions,
        to,
        details=tables.details,
        mix=mix,
        baseline=baseline,
        trained=trained_tokens(runs),
        about=about,
    )
    payload = {"summary": records(made.summary), "files": [str(path) for path in made.files], **more}
    emit(json_, payload, lambda: terminal.show(made, out()))
    for path in made.files:
        note(f"wrote {path}")
