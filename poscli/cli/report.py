"""`poscli report`: tables and plots of everything evaluated so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.cli import complete
from poscli.cli.options import Json, Out
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL

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
    from poscli.report import collect
    from poscli.report.formats import known_formats
    from poscli.system.files import check_folder
    from poscli.tasks import task_columns

    wanted, folder = known_formats(formats.split(",")), to or out_ / "report"
    check_folder(folder, "--out" if to is None else "--to")
    if site is not None:
        check_folder(site, "--site")
    tables = collect(out_ / "runs", task_columns())
    present(tables, folder, out_ / "runs", json_, mix=mix, baseline=baseline, formats=wanted, site=site)
    end(tables)


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
    formats: tuple[str, ...] = (),
    site: Path | None = None,
    **more: Any,
) -> None:
    """Write a report, whose title and description are those of a suite, to the folder `to`, and print its table.

    A JSON document has the values of `more`, too. Damaged runs, and `failures` in `more`, are named as left out.
    """
    from poscli.report import About, build_report, records, terminal, trained_runs, trained_tokens, write_site
    from poscli.report.explain import explanations

    left_out = _left_out(more.get("failures", ()), tables)
    made = build_report(
        tables.rows,
        tables.positions,
        to,
        details=tables.details,
        about=About(title=title, description=description, left_out=left_out, explained=explanations(tables.rows)),
        mix=mix,
        baseline=baseline,
        trained=trained_tokens(runs),
        runs=(known := trained_runs(runs)),
        formats=formats,
    )
    files = made.files + (write_site(made, site, known) if site is not None else ())
    damaged = [{"run_id": run, "error": why} for run, why in tables.left_out.items()]
    payload = {"summary": records(made.summary), "files": [str(path) for path in files], "left_out": damaged, **more}
    emit(json_, payload, lambda: terminal.show(made, out()))
    for path in files:
        note(f"wrote {path}")


def end(tables: Tables) -> None:
    """End with exit code 3 if damaged runs were left out."""
    if tables.left_out:
        raise typer.Exit(PARTIAL)


def _left_out(failures: Sequence[dict[str, Any]], tables: Tables) -> list[str]:
    """The runs of a suite that failed and the runs that are damaged, each with its reason."""
    failed = [f"{run['encoding']}, seed {run['seed']}: {run['error']}" for run in failures]
    return failed + [f"{run}: {why}" for run, why in tables.left_out.items()]
