"""`poscli board`: make the cells that are missing, and the board from cells alone."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete, plan
from poscli.cli.commands import COMMANDS, Command
from poscli.cli.commands.run_suite import Memory, OtherWorkers, WorkerCount
from poscli.cli.options import Device, Json, Out
from poscli.system.console import emit, err, note, out
from poscli.system.errors import FAILED, PARTIAL, PoscliError, UsageError
from poscli.system.progress import duration
from poscli.system.text import counted, printable

if TYPE_CHECKING:
    from poscli.board.gather import BoardJob
    from poscli.sweep.crew import Crew

IN_RESULTS = Path("board/cells")  # the folder of the cells in that of the results
CELLS = Path("results") / IN_RESULTS

app = typer.Typer(help="Every encoding ranked: make what is missing, and build the tables.")
Cells = Annotated[Path, typer.Option("--cells", help="Folder of the board's results.")]
OwnCells = Annotated[
    Path | None, typer.Option("--cells", help="Folder of the board's results.", show_default=f"OUT/{IN_RESULTS}")
]
SeasonFile = Annotated[
    Path | None,
    typer.Option("--season", help="A season: a TOML file, or star (other sizes of model); by default the current one."),
]
OneTable = Annotated[str | None, typer.Option("--table", help="The table of the season; by default the first one.")]
Tables = Annotated[list[str] | None, typer.Option("--table", help="A table of the season, by its name; repeatable.")]


@app.command("run")
def run_board(
    *,
    stage: Annotated[
        int,
        typer.Option(
            help="How far: two seeds of all (1), three seeds (2), up to ten of those not decided (3).", min=1, max=3
        ),
    ] = 2,
    table: Tables = None,
    enc: Annotated[
        list[str] | None,
        typer.Option("--enc", "-e", help="An encoding of the season; repeatable.", autocompletion=complete.specs),
    ] = None,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Use the best learning rates of nine trials per encoding, made first.")
    ] = False,
    no_costs: Annotated[
        bool, typer.Option("--no-costs", help="Leave out what each encoding costs, which is measured on one core.")
    ] = False,
    dry_run: plan.DryRun = False,
    yes: plan.Yes = False,
    workers: WorkerCount = None,
    others: list[OtherWorkers],
    memory: Memory = None,
    device: Device = "auto",
    season_: SeasonFile = None,
    cells: OwnCells = None,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train and score what is missing on the board, and write a cell for each model and text as it is done.

    The same command goes on where it stopped. Machines that share a folder of cells each need encodings of their own
    (--enc): what is missing is looked up once per number of seeds.
    """
    from poscli.board.costs import measure_costs, measure_texts
    from poscli.board.progress import (
        chosen_encodings,
        jobs_of_board,
        missing_jobs_of_stage,
        plan_jobs,
        refuse_unranked,
        run_missing,
        tune,
        tunings_of_board,
    )
    from poscli.board.season import season_of, table_names
    from poscli.sweep.crew import Crew
    from poscli.sweep.job import trials_of
    from poscli.system.device import device_of
    from poscli.system.files import check_folder

    season, runs = season_of(season_), out_ / "runs"
    cells = cells or out_ / IN_RESULTS
    encodings = chosen_encodings(season, table_names(season, table or []), enc or [])
    check_folder(cells, "--cells")
    refuse_unranked(season, stage, encodings)
    crew = Crew(workers=workers, memory=memory, device=device)
    for elsewhere in others:
        crew = elsewhere.crew(crew)
    crew.check()
    if tuned:
        tunings = tunings_of_board(season, device, out_, encodings)
        if dry_run and (trials := trials_of(tunings, device)):
            fitting, planned = plan_jobs(crew, trials)
            plan.show(planned, json_, fitting)
            note("these are the trials; the runs with what they find come after them")
            return
        tune(tunings, crew, device)
    missing = missing_jobs_of_stage(season, stage, device, runs, cells, encodings, tuned=tuned)
    if dry_run:
        _show_first_missing(missing, stage, crew, json_)
        return
    failures: list[dict[str, str]] = []
    for seeds, jobs in missing:
        fitting, planned = plan_jobs(crew, [each.job for each in jobs])
        seconds = fitting.seconds_for(planned)
        note(f"{counted(seeds, 'seed')}: {counted(len(jobs), 'run')} left, about {duration(seconds)}")
        plan.confirm(seconds, "--stage", yes=yes)
        failures += run_missing(jobs, planned, fitting, cells, runs)
    if not no_costs:
        measure_costs(jobs_of_board(season, 1, device, runs, encodings), season, cells, device_of(device))
        measure_texts(season, cells)
    emit(json_, {"failures": failures}, lambda: None)
    for failure in failures:
        err.print(f"failed: {failure['encoding']}, seed {failure['seed']}: {failure['error']}", style="red")
    if failures:
        raise typer.Exit(PARTIAL)
    note(f"all cells of stage {stage} are in {cells}; build the board with `poscli board build`")


def _show_first_missing(missing: Iterator[tuple[int, list[BoardJob]]], stage: int, crew: Crew, json_: bool) -> None:
    """Show, as a dry run does, the jobs up to the first number of seeds of a stage at which any is missing."""
    from poscli.board.progress import SEEDS_OF_STAGE, plan_jobs

    most = SEEDS_OF_STAGE[stage][-1]
    seeds, jobs = next(each for each in missing if each[1] or each[0] == most)
    fitting, planned = plan_jobs(crew, [each.job for each in jobs])
    plan.show(planned, json_, fitting)
    if seeds < most:
        note(f"to {counted(seeds, 'seed')}; which encodings get more follows from what these find")


@app.command("build")
def build_board(
    *,
    season_: SeasonFile = None,
    cells: Cells = CELLS,
    to: Annotated[Path, typer.Option("--to", help="Folder of the tables and pages.")] = Path("results/board"),
    json_: Json = False,
) -> None:
    """Make the tables, the pictures and the pages from cells alone: the same bytes on every machine."""
    from poscli.system.files import check_folder

    check_folder(to, "--to")
    write_and_show(season_, cells, to, json_)


def write_and_show(season_file: Path | None, cells: Path, folder: Path, json_: bool) -> None:
    """Write the board that follows from cells to a folder, and print it; `season_file` is None for the current one."""
    from poscli.board.agree import agreements_of
    from poscli.board.agree_words import said_of
    from poscli.board.arrays import tables_of_cells
    from poscli.board.build import write_board
    from poscli.board.literature import read_literature
    from poscli.board.ours import losses_of_board
    from poscli.board.season import season_of
    from poscli.board.show import show_standings
    from poscli.board.standings import standings_in
    from poscli.board.tables import record_of_table

    season = season_of(season_file)
    first, *_ = of_cells = tables_of_cells(cells, season)
    tables = standings_in(of_cells)
    literature = read_literature()
    try:
        others = said_of(agreements_of(losses_of_board(first, tables[0]), literature, {}), literature)
    except UsageError:  # no two of its encodings are in papers
        others = None
    files = write_board(tables, folder, season, others)
    emit(json_, [record_of_table(each) for each in tables], lambda: show_standings(tables, out()))
    note(f"written: {files[0]}, and {len(files) - 1} files beside it")


@app.command("simulate")
def simulate_boards(
    *,
    boards: Annotated[int, typer.Option(help="Made-up boards for each line.", min=1, max=100_000)] = 1000,
    encodings: Annotated[int, typer.Option(help="Encodings on each.", min=2, max=1000)] = 80,
    json_: Json = False,
) -> None:
    """How often are ties separated, and differences found? On made-up boards of known truth, by the number of seeds."""
    from dataclasses import asdict

    from poscli.board.ranking import SPENT
    from poscli.board.show import show_simulations
    from poscli.board.simulation import APART, simulate
    from poscli.system.progress import Meter

    cases = [(seeds, apart) for seeds in SPENT for apart in APART]
    found = []
    with Meter("simulate", len(cases)) as progress:
        for seeds, apart in cases:
            made = simulate(boards=boards, encodings=encodings, seeds=seeds, apart=apart)
            found.append({"seeds": seeds, "apart": apart, **asdict(made)})
            progress.advance(1, f"{seeds} seeds")
    emit(json_, found, lambda: show_simulations(found, out()))


@app.command("check")
def check_entry(
    entry: Annotated[str, typer.Argument(help="A bundle that `poscli rank` wrote, or an encoding on the board.")],
    *,
    add: Annotated[bool, typer.Option("--add", help="If it holds, add its cells to the board.")] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Run the source code in the bundle, which you have read, without asking."),
    ] = False,
    device: Device = "auto",
    season_: SeasonFile = None,
    cells: OwnCells = None,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train two models of an entry again, chosen by its hash, and compare their losses with those in it.

    A bundle holds source code, which this runs: read it first.
    """
    import tempfile

    from poscli.board.bundle import add_to_board, entry_on_board, read_bundle, refuse_bundle
    from poscli.board.cells import read_cells
    from poscli.board.enter import made_again
    from poscli.board.season import season_of
    from poscli.drawing.text import listed
    from poscli.encodings import names
    from poscli.specs import names_in

    season, cells = season_of(season_), cells or out_ / IN_RESULTS
    bundled = Path(entry).suffix == ".zip" or Path(entry).is_file()
    if add and not bundled:
        raise UsageError(f"--add: the cells of {entry} are on the board already; it is for bundles")
    with tempfile.TemporaryDirectory() as folder:
        if bundled:
            known = read_bundle(Path(entry), Path(folder))
            refuse_bundle(known, season, read_cells(cells, season.name))
        else:
            known = entry_on_board(entry, season, cells)
        code = [f"the source in {entry}, {counted(len(known.source.splitlines()), 'line')}"] if known.source else []
        outside = [name for name in names_in(known.spec) if name not in names()]
        code += [f"{name} of this machine" for name in outside if not (known.source and ".py:" in name)]
        if code and not yes:
            asked = sys.stdin.isatty() and err.is_terminal
            if not asked or not typer.confirm(printable(f"Run {listed(code)}, which you have read?"), err=True):
                raise PoscliError(f"not checked: that runs {listed(code)}; read it, then give --yes")
        results = made_again(known, season, out_ / "rank" / f"check-{known.digest[:8]}", device)
    records = [
        {"cell": each.cell.file.name, "text": each.cell.text, "seed": each.cell.seed, "identical": each.identical,
         "difference": each.difference if math.isfinite(each.difference) else None,
         "allowed": each.allowed, "holds": each.holds}
        for each in results
    ]  # fmt: skip
    holds = all(each.holds for each in results)
    added = add_to_board(known, cells) if add and holds else 0
    emit(json_, {"entry": known.digest, "holds": holds, "cells": records}, lambda: None)
    for each in results:
        allowed = "nothing, on such a CPU" if each.alike else f"{each.allowed:.4f}"
        apart = f"{each.difference:.4f} bits per byte apart (allowed: {allowed})"
        word = "holds" if each.holds else "does not hold"
        note(f"{each.cell.text}, seed {each.cell.seed}: {'the same digits' if each.identical else apart}: {word}")
    if not holds:
        note(f"{entry} does not hold: what its cells say is not what its source gives; do not trust them")
        raise typer.Exit(FAILED)
    if add:
        note(f"{counted(added, 'cell')} added to {cells}; `poscli board build` shows the row")


COMMANDS.add("board", Command(app, after="report"))
