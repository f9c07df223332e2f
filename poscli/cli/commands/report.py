"""`poscli report`: tables and plots of everything evaluated so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json, Out
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL

if TYPE_CHECKING:
    from poscli.report import Report
    from poscli.runs.results import Tables


@command("report", after="extrapolate")
def report(
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the report; by default OUT/report.")] = None,
    mix: Annotated[
        bool, typer.Option("--mix", help="Compare runs on different corpora, or of different tokenizers.")
    ] = False,
    baseline: Annotated[
        str, typer.Option("--baseline", help="Compare all encodings with this one.", autocompletion=complete.specs)
    ] = "",
    formats: Annotated[
        str, typer.Option("--formats", help="Formats of the pictures beside PNG, for papers: svg, pdf or both.")
    ] = "",
    site: Annotated[
        Path | None, typer.Option("--site", help="Also write a page per encoding and corpus, with an index, here.")
    ] = None,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Write report.html, report.md, summary.csv, tables.tex and the plots, and print the table.

    Damaged runs are left out by name, and the exit code is 3 then; without any other run it is 5.
    """
    from poscli import workflows
    from poscli.report import collect
    from poscli.report.folder import known_formats
    from poscli.system.files import check_folder
    from poscli.tasks import task_columns

    pictures, folder, runs = known_formats(formats.split(",")), to or out_ / "report", out_ / "runs"
    check_folder(folder, "--out" if to is None else "--to")
    if site is not None:
        check_folder(site, "--site")
    tables = collect(runs, task_columns())
    written = workflows.report(tables, runs, folder, mix=mix, baseline=baseline, formats=pictures, site=site)
    show_report(written, tables, json_)
    end(tables)


def show_report(report: Report, tables: Tables, json_: bool, **more: Any) -> None:
    """Print the table of a report of `tables` and name its files; a JSON document has the values of `more`, too."""
    from poscli.report import records, terminal

    damaged = [{"run_id": run, "error": why} for run, why in tables.left_out.items()]
    files = [str(path) for path in report.files]
    payload = {"summary": records(report.summary), "notes": report.notes, "files": files, "left_out": damaged, **more}
    emit(json_, payload, lambda: terminal.print_report(report, out()))
    for path in files:
        note(f"wrote {path}")


def end(tables: Tables) -> None:
    """End with exit code 3 if damaged runs were left out."""
    if tables.left_out:
        raise typer.Exit(PARTIAL)
