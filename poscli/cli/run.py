"""`poscli run`: train, evaluate and report a suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.cli import complete, plan
from poscli.cli.options import Device, Json, Out
from poscli.cli.report import present
from poscli.cli.train import WITHOUT_MODEL
from poscli.system.console import err, note
from poscli.system.errors import PARTIAL, PoscliError
from poscli.system.progress import duration

if TYPE_CHECKING:
    from poscli.config.suite import Suite
    from poscli.sweep.job import Job
    from poscli.sweep.suite import SweepResults


def run(
    suite: Annotated[
        Path,
        typer.Argument(help="The suite, a TOML file such as suites/quick.toml.", autocompletion=complete.suites),
    ],
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the report; by default OUT/SUITE.")] = None,
    dry_run: plan.DryRun = False,
    force: plan.Force = False,
    yes: plan.Yes = False,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train, evaluate and report every encoding and seed of a suite. The same command goes on where it stopped."""
    from poscli.config.suite import load, report_folder
    from poscli.evaluation.extrapolate import settings_of
    from poscli.sweep.runners import Here
    from poscli.sweep.suite import jobs_of, run_jobs

    content, folder = load(suite), to or report_folder(out_, suite)
    asked = jobs_of(content, device, out_ / "runs")
    jobs = plan.sweeps(asked, anew=force)
    plan.announce_longest(settings_of(job.config, job.extrapolate) for job in asked)
    if dry_run:
        plan.show(jobs, json_)
        return
    _announce(jobs, yes=yes)
    _announce_power(content, asked)
    if force:
        plan.delete(jobs, out_ / "runs")
    results = run_jobs(asked, Here(), _failed)
    if not results.folders:
        raise PoscliError(f"every run of {suite} failed; the first: {results.failures[0]['error']}")
    _present(content, results, folder, out_ / "runs", json_)


def _present(suite: Suite, results: SweepResults, to: Path, runs: Path, json_: bool) -> None:
    """Write the report of a suite; exit code 3 if a run failed or has no model."""
    from poscli.runs.results import evaluations, open_evaluated
    from poscli.tasks import task_columns

    tables = evaluations([open_evaluated(folder) for folder in results.folders], task_columns())
    about: dict[str, Any] = {"title": suite.title, "description": suite.description, "failures": results.failures}
    present(tables, to, runs, json_, mix=False, **about)
    if results.failures or tables.rows["status"].isin(WITHOUT_MODEL).groupby(tables.rows["run_id"]).all().any():
        raise typer.Exit(PARTIAL)


def _announce(jobs: list[plan.PlannedJob], *, yes: bool) -> None:
    """Say how long the suite takes, before it starts; ask if that is long."""
    seconds = sum(job.seconds for job in jobs)
    note(f"{len(jobs)} job{'s' * (len(jobs) != 1)}, about {duration(seconds)} on this machine")
    plan.confirm(seconds, "the suite's tokens, seeds or max_len", yes=yes)


def _announce_power(suite: Suite, asked: list[Job]) -> None:
    """Say what the seeds and tokens of each part of a suite can tell apart, before it starts."""
    from poscli.evaluation.extrapolate import settings_of
    from poscli.evaluation.plan import Plan
    from poscli.evaluation.power import detectable_difference
    from poscli.tasks import open_task

    if len(suite.encodings) < 2:
        return
    parts = {(job.config.task, job.config.corpus, job.config.tokenizer, job.config.length): job for job in asked}
    for (task, corpus, tokenizer, _), job in parts.items():
        plan_of_part = Plan(open_task(task, corpus, tokenizer), settings_of(job.config, job.extrapolate))
        note(f"{corpus}: {detectable_difference(plan_of_part, len(set(suite.seeds)))}")


def _failed(message: str) -> None:
    """Show at once why a job failed; the others go on."""
    err.print(f"error: {message}", markup=False, style="red", soft_wrap=True)
