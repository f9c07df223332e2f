"""`poscli report`: tables and plots of everything evaluated so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import AddedOptions, Json, Out
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    from poscli.report import Report
    from poscli.runs.results import Tables


class OtherReport(AddedOptions):
    """Options of `poscli report` that ask for a report of something else than the runs in a folder."""

    def wanted(self) -> str:
        """The option that asks for it, as it is written; "" if the command line has none."""
        raise NotImplementedError

    def write(self, to: Path | None, out: Path, json_: bool) -> None:
        """Write it to the folder `to`, if given, else to one in the folder `out`, and print what it says."""
        raise NotImplementedError


@command("report", after="extrapolate")
def report(
    *,
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
    others: list[OtherReport],
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

    for other in others:
        if asked := other.wanted():
            given = {"--mix": mix, "--baseline": baseline, "--formats": formats, "--site": site is not None}
            if without := next((option for option, value in given.items() if value), ""):
                raise UsageError(f"{asked} writes another report, which has no {without}; leave one of them out")
            other.write(to, out_, json_)
            return
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
