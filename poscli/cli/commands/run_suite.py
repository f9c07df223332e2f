"""`poscli run`: train, evaluate and report a suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poscli.cli import complete, plan
from poscli.cli.commands import command
from poscli.cli.commands.report import show_report
from poscli.cli.options import AddedOptions, Device, Json, Out
from poscli.system.console import note
from poscli.system.errors import PARTIAL, PoscliError
from poscli.system.progress import duration
from poscli.system.text import counted

if TYPE_CHECKING:
    from poscli.config.suite import Suite
    from poscli.sweep.crew import Crew
    from poscli.sweep.drive import SweepResults
    from poscli.sweep.job import Job
    from poscli.workflows import OpenTask

MOST_WORKERS = 4096

WorkerCount = Annotated[
    int | None,
    typer.Option(
        "--workers", "-w", min=1, max=MOST_WORKERS, show_default="as is fastest here",
        help="Runs at the same time, each in a process of its own.",
    ),
]  # fmt: skip
Cpus = Annotated[
    int | None,
    typer.Option(
        "--cpus", min=1, max=MOST_WORKERS, show_default="its share of the cores",
        help="Cores, and threads, of each run.",
    ),
]  # fmt: skip
Gpus = Annotated[
    float | None,
    typer.Option(
        "--gpus", min=0, max=MOST_WORKERS, show_default="1 where a machine has any",
        help="With --ray: GPUs of each run; 0.5 lets two share one.",
    ),
]  # fmt: skip
Memory = Annotated[
    float | None,
    typer.Option(
        "--memory", min=0, show_default="as estimated",
        help="With several workers: GiB of main memory to set aside for each run.",
    ),
]  # fmt: skip


class OtherWorkers(AddedOptions):
    """Options of `poscli run`, and of other commands with many runs, that name workers on other machines."""

    def crew(self, crew: Crew) -> Crew:
        """The crew there, in place of the one on this machine; the same one if the options name none."""
        raise NotImplementedError


@command("run", after="compare")
def run(
    suite: Annotated[
        Path,
        typer.Argument(help="The suite, a TOML file such as suites/quick.toml.", autocompletion=complete.suites),
    ],
    *,
    to: Annotated[Path | None, typer.Option("--to", help="Folder of the report; by default OUT/SUITE.")] = None,
    dry_run: plan.DryRun = False,
    force: plan.Force = False,
    yes: plan.Yes = False,
    workers: WorkerCount = None,
    others: list[OtherWorkers],
    cpus: Cpus = None,
    gpus: Gpus = None,
    memory: Memory = None,
    device: Device = "auto",
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """Train, evaluate and report every encoding and seed of a suite. The same command goes on where it stopped.

    Parts with a tuned recipe have nine trials of each encoding first.
    """
    from functools import cache

    from poscli.cli.screen import run_shown
    from poscli.config.suite import load_suite, report_folder
    from poscli.evaluation.evaluate import settings_of
    from poscli.sweep.crew import Crew
    from poscli.sweep.job import jobs_of, needed, sweeps, trials_of, tunings_of
    from poscli.system.device import threads
    from poscli.system.files import check_folder
    from poscli.tasks import open_task
    from poscli.workflows import delete

    content, runs = load_suite(suite), out_ / "runs"
    folder = to or report_folder(out_, suite)
    check_folder(folder, "--out" if to is None else "--to")
    crew = Crew(workers=workers, cpus=cpus, gpus=gpus, memory=memory, device=device)
    for elsewhere in others:
        crew = elsewhere.crew(crew)
    crew.check()
    jobs = jobs_of(content, device, runs, to_plan=True)
    tunings = tunings_of(content, device, out_)
    trials = trials_of(tunings, device)
    crew = crew.suited_to([job.config for job in jobs])
    opened = cache(open_task)
    planned_trials = sweeps(trials, anew=False, threads=crew.threads, open_task=opened)
    planned_runs = sweeps(jobs, anew=force, threads=crew.threads, open_task=opened)
    planned = [*planned_trials, *planned_runs]
    plan.announce_longest(settings_of(job.config, job.extrapolate) for job in jobs)
    if dry_run:
        plan.show(planned, json_, crew)
        return
    with threads(crew.threads), crew.assembled(needed(planned), runs) as at_work:
        seconds = crew.seconds_for(planned, at_work)
        where = f"on {counted(at_work.count, 'worker')}" if at_work.elsewhere else "on this machine"
        note(f"{counted(len(planned), 'job')}, about {duration(seconds)} {where}")
        plan.confirm(seconds, "the suite's tokens, seeds or max_len", yes=yes)
        _announce_power(jobs, opened)
        if trials:
            run_shown(trials, [trial.seconds for trial in planned_trials], at_work)
            for each in tunings:
                each.find()
            jobs = jobs_of(content, device, runs)
        if force:
            delete((job.folder.name for job in jobs), runs)
        results = run_shown(jobs, [job.seconds for job in planned_runs], at_work)
    _present(content, results, folder, runs, json_)


def _announce_power(jobs: list[Job], open_task: OpenTask) -> None:
    """Say what the seeds and tokens of each text and length of a suite can tell apart, before it starts."""
    from poscli.evaluation.evaluate import settings_of
    from poscli.evaluation.plan import Plan
    from poscli.statistics.power import detectable_difference

    parts: dict[tuple[str, str, str, int], list[Job]] = {}
    for job in jobs:
        config = job.config
        parts.setdefault((config.task, config.corpus, config.tokenizer, config.length), []).append(job)
    for (name, corpus, tokenizer, _), together in parts.items():
        task = open_task(name, corpus, tokenizer)
        # Right answers are compared by their share.
        if task.chance is not None or len({job.config.encoding for job in together}) < 2:
            continue
        documents = Plan(task, settings_of(together[0].config, together[0].extrapolate)).documents_compared()
        note(f"{corpus}: {detectable_difference(len({job.config.seed for job in together}), documents)}")


def _present(suite: Suite, results: SweepResults, to: Path, runs: Path, json_: bool) -> None:
    """Write the report of a suite; exit code 3 if a run failed or has no model."""
    from poscli.report import About
    from poscli.runs.results import evaluation_tables, open_evaluated
    from poscli.runs.run import FAILED_STATES
    from poscli.tasks import task_columns
    from poscli.workflows import report

    if not results.folders:
        raise PoscliError(f"every run of the suite failed; the first: {results.failures[0]['error']}")
    tables = evaluation_tables([open_evaluated(folder) for folder in results.folders], task_columns())
    failures = [f"{run['encoding']}, seed {run['seed']}: {run['error']}" for run in results.failures]
    about = About(title=suite.title, description=suite.description, claims=suite.claim, left_out=failures)
    written = report(tables, runs, to, about=about)
    show_report(written, tables, json_, failures=results.failures)
    if results.failures or tables.rows["status"].isin(FAILED_STATES).groupby(tables.rows["run_id"]).all().any():
        raise typer.Exit(PARTIAL)
