"""`poscli rank`: an encoding of one's own on the board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.board.commands.board import IN_RESULTS, OneTable, OwnCells, SeasonFile
from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.commands.run_suite import Memory, WorkerCount
from poscli.cli.options import Device, Json, Out
from poscli.system.console import emit, note, out
from poscli.system.errors import PARTIAL
from poscli.system.progress import duration

if TYPE_CHECKING:
    from poscli.board.standings import Standings

AROUND = 3  # rows above and below that are shown


@command("rank", after="board")
def rank_encoding(
    enc: Annotated[
        str,
        typer.Argument(
            help="The encoding: my_encoding.py, or a spec such as 'rope+smear'.", autocompletion=complete.specs
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option("--name", help="Its name on the board; by default that of its class.")
    ] = None,
    table: OneTable = None,
    published: Annotated[
        bool, typer.Option("--published", help="Leave out the nine trials and the row with tuned learning rates.")
    ] = False,
    dry_run: plan.DryRun = False,
    yes: plan.Yes = False,
    workers: WorkerCount = None,
    memory: Memory = None,
    device: Device = "auto",
    season_: SeasonFile = None,
    cells: OwnCells = None,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Verify an encoding, train it as the board does, and show its row and its rank among all, with a bundle to submit.

    It trains with the learning rates that all share, then with the best of nine trials. The same command goes on where
    it stopped.
    """
    from poscli.board.enter import contender_of, enter, row_of_entry, tune_entry, write_submission
    from poscli.board.progress import plan_jobs
    from poscli.board.season import season_of, table_names
    from poscli.board.show import show_standings
    from poscli.board.tables import record_of_table
    from poscli.sweep.crew import Crew

    season = season_of(season_)
    (chosen, *_) = table_names(season, [table] if table else [])
    crew = Crew(workers=workers, memory=memory, device=device)
    crew.check()
    entry = contender_of(enc, name, season, chosen, cells or out_ / IN_RESULTS, out_)
    first = [each.job for each in entry.jobs(device, tuned=False)]
    fitting, planned = plan_jobs(crew, first if published else [*first, *entry.jobs_with_tuned_rates(device)])
    if dry_run:
        plan.show(planned, json_, fitting)
        return
    shorter = "the season's tokens" if published else "what it trains, with --published"
    plan.confirm(fitting.seconds_for(planned), shorter, yes=yes)
    note(f"{entry.name}: the first row in about {duration(fitting.seconds_for(planned[: len(first)]))}")
    records, failures = [], []
    for tuned in (False,) if published else (False, True):
        if tuned:
            tune_entry(entry, crew, device)
        failures += enter(entry, crew, device, tuned=tuned)
        found: Standings | None = row_of_entry(entry, tuned=tuned)
        if found is None:
            break
        own = next(row for row in record_of_table(found)["rows"] if row["encoding"] == entry.name)
        records.append(own | {"of": len(found.ranked)})
        if not json_:
            show_standings([found], out(), around=entry.name, rows=AROUND)
    bundle = entry.write_bundle() if records else None
    submission = write_submission(entry, records, bundle) if bundle is not None else ""
    emit(json_, {"rows": records, "failures": failures, "bundle": str(bundle or "")}, lambda: None)
    for line in submission.splitlines():
        note(line)
    if failures:
        raise typer.Exit(PARTIAL)
