"""`poscli run`: train, evaluate and report a suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete, plan
from poscli.cli.options import Device, Json, Out
from poscli.cli.report import show_report
from poscli.cli.workers import Cpus, Gpus, Memory, Ray, Workers
from poscli.system.console import err, note
from poscli.system.errors import PARTIAL, PoscliError
from poscli.system.progress import duration

if TYPE_CHECKING:
    from poscli.config.suite import Suite
    from poscli.estimate import PlannedJob
    from poscli.sweep.drive import SweepResults
    from poscli.sweep.job import Job
    from poscli.sweep.workers import Workers as Crew


def run(
    suite: Annotated[
        Path,
        typer.Argument(help="The suite, a TOML file such as suites/quick.toml.", autocompletion=complete.suites),
    ],
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the report; by default OUT/SUITE.")] = None,
    dry_run: plan.DryRun = False,
    force: plan.Force = False,
    yes: plan.Yes = False,
    workers: Workers = None,
    ray: Ray = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train, evaluate and report every encoding and seed of a suite. The same command goes on where it stopped."""
    from poscli.config.suite import load_suite
    from poscli.sweep.crew import Wanted, assembled, check
    from poscli.sweep.planned import needed
    from poscli.sweep.suite import jobs_of
    from poscli.system.device import threads
    from poscli.workflows import delete

    content, folder = load_suite(suite), _folder(to, out_, suite)
    check(wanted := Wanted(workers, cpus, gpus, memory, ray or "", device))
    asked = jobs_of(content, device, out_ / "runs")
    jobs = _planned(asked, wanted.threads, anew=force)
    if dry_run:
        plan.show(jobs, json_, wanted.count, wanted.start_seconds)
        return
    with threads(wanted.threads), assembled(wanted, needed(jobs), out_ / "runs") as crew:
        _announce(jobs, crew, wanted.start_seconds, yes=yes)
        _announce_power(content, asked)
        if force:
            delete((job.run_id for job in jobs), out_ / "runs")
        results = _run(asked, [job.seconds for job in jobs], crew)
    _present(content, results, folder, out_ / "runs", json_)


def _folder(to: Path | None, out_: Path, suite: Path) -> Path:
    """The folder of the report; StorageError if nothing can be written there."""
    from poscli.config.suite import report_folder
    from poscli.system.files import check_folder

    folder = to or report_folder(out_, suite)
    check_folder(folder, "--out" if to is None else "--to")
    return folder


def _planned(asked: list[Job], threads: int | None, *, anew: bool) -> list[PlannedJob]:
    """What is left of each job, measured with so many threads."""
    from poscli.evaluation.evaluate import settings_of
    from poscli.sweep.planned import sweeps

    jobs = sweeps(asked, anew=anew, threads=threads)
    plan.announce_longest(settings_of(job.config, job.extrapolate) for job in asked)
    return jobs


def _run(asked: list[Job], seconds: list[float], crew: Crew) -> SweepResults:
    """Execute jobs, and show how far they are."""
    from poscli.cli.screen import Lines, Screen
    from poscli.sweep.drive import run_jobs

    if crew.elsewhere and err.is_terminal:
        with Screen(asked, seconds, crew.count) as screen:
            return run_jobs(asked, crew, screen)
    return run_jobs(asked, crew, Lines(asked, seconds, crew.count))


def _present(suite: Suite, results: SweepResults, to: Path, runs: Path, json_: bool) -> None:
    """Write the report of a suite; exit code 3 if a run failed or has no model."""
    from poscli.runs.results import evaluation_tables, open_evaluated
    from poscli.tasks import task_columns
    from poscli.workflows import WITHOUT_MODEL, report

    if not results.folders:
        raise PoscliError(f"every run of the suite failed; the first: {results.failures[0]['error']}")
    tables = evaluation_tables([open_evaluated(folder) for folder in results.folders], task_columns())
    failures = [f"{run['encoding']}, seed {run['seed']}: {run['error']}" for run in results.failures]
    made = report(tables, runs, to, title=suite.title, description=suite.description, failures=failures)
    show_report(made, tables, json_, failures=results.failures)
    if results.failures or tables.rows["status"].isin(WITHOUT_MODEL).groupby(tables.rows["run_id"]).all().any():
        raise typer.Exit(PARTIAL)


def _announce(jobs: list[PlannedJob], crew: Crew, start: float, *, yes: bool) -> None:
    """Say how long the suite takes, before it starts; ask if that is long."""
    from poscli.sweep.schedule import makespan

    seconds = makespan((job.seconds for job in jobs), crew.count) + start * crew.elsewhere
    where = f"on {crew.count} worker{'s' * (crew.count != 1)}" if crew.elsewhere else "on this machine"
    note(f"{len(jobs)} job{'s' * (len(jobs) != 1)}, about {duration(seconds)} {where}")
    plan.confirm(seconds, "the suite's tokens, seeds or max_len", yes=yes)


def _announce_power(suite: Suite, asked: list[Job]) -> None:
    """Say what the seeds and tokens of each part of a suite can tell apart, before it starts."""
    from poscli.evaluation.evaluate import settings_of
    from poscli.evaluation.plan import Plan
    from poscli.statistics.power import detectable_difference
    from poscli.tasks import open_task

    if len(suite.encodings) < 2:
        return
    parts = {(job.config.task, job.config.corpus, job.config.tokenizer, job.config.length): job for job in asked}
    for (name, corpus, tokenizer, _), job in parts.items():
        task = open_task(name, corpus, tokenizer)
        if task.chance is not None:  # right answers are compared by their share
            continue
        documents = Plan(task, settings_of(job.config, job.extrapolate)).documents_compared()
        note(f"{corpus}: {detectable_difference(len(set(suite.seeds)), documents)}")
