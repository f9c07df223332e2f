"""`poscli board run`: train and score what is missing on the board, in the order in which it says most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from poscli.board.arrays import tables_of_cells
from poscli.board.cells import keys_in
from poscli.board.gather import BoardJob, gather, refuse_other_source
from poscli.board.ranking import SPENT
from poscli.board.season import Season, SeasonTable
from poscli.board.standings import standings_among
from poscli.cli.screen import run_shown
from poscli.estimate import PlannedJob
from poscli.specs import parse
from poscli.sweep.crew import Crew
from poscli.sweep.job import Job, jobs_of, needed, sweeps, trials_of, tunings_of
from poscli.sweep.tune import Tuning
from poscli.system.device import threads
from poscli.system.errors import CorruptError, PoscliError, UsageError, near
from poscli.system.text import counted

SEEDS_OF_STAGE = {1: [2], 2: [3], 3: [3, 5, 10]}
Chosen = Mapping[str, Sequence[str] | None]  # by the name of a table, some of its encodings; None for all of them


def jobs_of_board(
    season: Season,
    seeds: int,
    device: str,
    runs: Path,
    encodings: Chosen,
    *,
    tuned: bool = False,
) -> list[BoardJob]:
    """Every job of the first seeds of a season: each seed of all encodings before the next seed, and tasks at the end.

    Tables that `encodings` does not name have no jobs. Where it has None, the models that say what there is to win are
    among the jobs, and come first. With `tuned`, learning rates are those that the tunings found. Tasks, and the models
    that say what there is to win, are only trained with published learning rates: with `tuned` they are left out.
    """
    jobs: list[BoardJob] = []
    for table in chosen_tables(season, encodings):
        chosen = encodings[table.name]
        own = None if chosen is None else [*chosen]
        suite = season.suite(table, season.seeds(seeds), table.encodings if tuned and own is None else own, tuned=tuned)
        jobs += [BoardJob(season.name, table.name, job) for job in jobs_of(suite, device, runs)]
        for task in season.task if not tuned else ():
            if task.table == table.name:
                suite = season.suite(table, season.seeds(seeds), own, task=task)
                jobs += [BoardJob(season.name, task.name, job) for job in jobs_of(suite, device, runs)]
    order = season.seeds(seeds)

    def turn(of: BoardJob) -> tuple[bool, int, int]:
        return of.is_task, order.index(of.job.config.seed), -of.job.config.length

    return sorted(jobs, key=turn)


def chosen_tables(season: Season, encodings: Chosen) -> list[SeasonTable]:
    """The tables of a season of which any encodings are chosen."""
    chosen = {name for name, some in encodings.items() if some is None or some}
    return [table for table in season.table if table.name in chosen]


def chosen_encodings(season: Season, tables: Sequence[str], wanted: Sequence[str]) -> dict[str, list[str] | None]:
    """By table, which of its encodings are wanted; None for all if `wanted` is empty.

    UsageError for an encoding that none of these tables has.
    """
    if not wanted:
        return dict.fromkeys(tables)
    chosen: dict[str, list[str] | None] = {}
    known = {table.name: {str(parse(spec)): spec for spec in table.encodings} for table in season.table}
    specs = {str(parse(text)): text for text in wanted}
    for name in tables:
        chosen[name] = [known[name][spec] for spec in specs if spec in known[name]]
    every = [text for name in tables for text in known[name].values()]
    for spec, text in specs.items():
        if not any(spec in known[name] for name in tables):
            raise UsageError(f"--enc {text}: not in {' or '.join(tables)} of season {season.name}: {near(text, every)}")
    return chosen


def tunings_of_board(season: Season, device: str, out: Path, encodings: Chosen) -> list[Tuning]:
    """The tunings of the learning rates of encodings, table by table; each has nine trials."""
    tunings = []
    for table in chosen_tables(season, encodings):
        suite = season.suite(table, season.seeds(1), [*(encodings[table.name] or table.encodings)], tuned=True)
        tunings += tunings_of(suite, device, out)
    return tunings


def missing_jobs(jobs: Sequence[BoardJob], cells: Path) -> list[BoardJob]:
    """The jobs of which a cell is missing. Before that, the cells of runs that are evaluated already are written.

    UsageError if such a run is of another source than its encoding has now.
    """

    def lacking(some: Sequence[BoardJob]) -> list[BoardJob]:
        there = {season: keys_in(cells, season) for season in {each.season for each in some}}
        return [each for each in some if not each.keys <= there[each.season]]

    left = lacking(jobs)
    refuse_other_source([each.job for each in left])
    for each in left:
        gather(each, cells)
    return lacking(left)


def missing_jobs_of_stage(
    season: Season,
    stage: int,
    device: str,
    runs: Path,
    cells: Path,
    encodings: Chosen,
    *,
    tuned: bool,
) -> Iterator[tuple[int, list[BoardJob]]]:
    """For each number of seeds of a stage in turn: that number, and the jobs up to there whose cells are missing.

    From the second number on, only encodings that are not decided yet get more seeds, by the cells that are there when
    the next number is asked for. `encodings` and `tuned` are as in `jobs_of_board`.
    """
    for seeds in SEEDS_OF_STAGE[stage]:
        chosen = undecided(season, cells, encodings, tuned=tuned) if seeds > min(SPENT) else encodings
        yield seeds, missing_jobs(jobs_of_board(season, seeds, device, runs, chosen, tuned=tuned), cells)


def refuse_unranked(season: Season, stage: int, encodings: Chosen) -> None:
    """UsageError for the last stage of tables that are not ranked: nothing decides which encodings need more seeds."""
    unranked = [table.name for table in chosen_tables(season, encodings) if not table.ceilings]
    if stage == max(SEEDS_OF_STAGE) and unranked:
        raise UsageError(
            f"--stage {stage}: table {unranked[0]!r} has no ceilings, so that nobody is ranked and none "
            "needs more seeds than others; give a smaller --stage, or other tables, or add ceilings to the season"
        )


def undecided(season: Season, cells: Path, encodings: Chosen, *, tuned: bool = False) -> Chosen:
    """Those of some encodings that more seeds could rank: they share the top group of their table with others.

    With `tuned`, the top group is that of the encodings with tuned learning rates. If a model that is read under
    another encoding is in the group, the encoding that it was trained with gets more seeds.
    """
    left: dict[str, Sequence[str] | None] = dict.fromkeys(encodings, ())
    chosen = season.model_copy(update={"table": chosen_tables(season, encodings)})  # others may have no ranks
    for of_table in tables_of_cells(cells, chosen):
        group = standings_among(of_table, tuned).top if of_table.entries(tuned) else []
        if len(group) > 1:
            top, table = {row.trained_as for row in group}, of_table.table
            own = encodings[table.name] or table.encodings
            left[table.name] = [spec for spec in own if str(parse(spec)) in top]
    return left


def plan_jobs(crew: Crew, jobs: Sequence[Job]) -> tuple[Crew, list[PlannedJob]]:
    """The workers that suit jobs of the board, and the jobs with the seconds that each takes.

    Every job has one thread, because another number of threads gives other bits.
    """
    fitting = replace(crew.suited_to([job.config for job in jobs], runs_per_core=1), cpus=1)
    return fitting, sweeps(jobs, anew=False, threads=fitting.threads)


def tune(tunings: Sequence[Tuning], crew: Crew, device: str) -> None:
    """Make the trials of tunings whose result is not known yet, on the workers of a crew, and write what they found."""
    if jobs := trials_of(tunings, device):
        fitting, planned = plan_jobs(crew, jobs)
        with threads(fitting.threads), fitting.assembled(needed(planned), jobs[0].runs) as at_work:
            run_shown(jobs, [each.seconds for each in planned], at_work)
    for tuning in tunings:
        tuning.find()


def run_missing(
    jobs: Sequence[BoardJob], planned: Sequence[PlannedJob], crew: Crew, cells: Path, runs: Path
) -> list[dict[str, str]]:
    """Do jobs on the workers of a crew, and write their cells; returns those that failed, each with the cause.

    CorruptError, after all jobs, names a damaged cell; PoscliError, where none failed, a run that gave no cell.
    """
    damage: list[CorruptError] = []

    def write_cells(number: int) -> None:
        try:
            gather(jobs[number], cells)
        except CorruptError as error:  # it ends no sweep
            damage.append(error)

    seconds, plain = [each.seconds for each in planned], [each.job for each in jobs]
    with threads(crew.threads), crew.assembled(needed(planned), runs) as at_work:
        done = run_shown(plain, seconds, at_work, write_cells)
    if damage:
        raise damage[0]
    if not done.failures and (left := missing_jobs(jobs, cells)):
        raise PoscliError(
            f"{left[0].job.folder} has ended, and its cells are not all in {cells} (a bug of poscli): "
            f"{counted(len(left), 'run')} would be left however often this is repeated"
        )
    return done.failures
