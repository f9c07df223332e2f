"""What a command is going to do: a table for --dry-run, and a question before work that takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from poscli.config.run import RunConfig
from poscli.system.console import emit, err, note, out, warn_once
from poscli.system.errors import PoscliError, UsageError
from poscli.system.progress import duration

if TYPE_CHECKING:
    import torch

    from poscli.evaluation.measure import EvaluationSetup
    from poscli.evaluation.protocol import EvaluationSettings
    from poscli.runs.run import Run
    from poscli.sweep.job import Job
    from poscli.sweep.pace import Clock
    from poscli.tasks import Task

ASKED_FROM = 3600.0  # seconds
REFUSED_FROM = 60 * 24 * 3600.0  # seconds: no one waits for two months by accident

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done and how long it takes; write nothing.")
]
Force = Annotated[bool, typer.Option("--force", help="Delete what these runs have so far, and train them again.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Start at once, however long it takes.")]


@dataclass(frozen=True)
class PlannedJob:
    """One run with what is done already, and the time and memory that the rest takes."""

    run_id: str
    encoding: str
    seed: int
    parameters: int
    steps: int
    done: str
    memory_gib: float
    seconds: float


def trainings(
    configs: Iterable[RunConfig], task: Task, runs: Path, device: torch.device, *, anew: bool
) -> list[PlannedJob]:
    """The trainings of some runs, each once. `anew`: what they have so far will be deleted. Nothing is written."""
    return [_training(config, task, runs, device, anew=anew) for config in dict.fromkeys(configs)]


def sweeps(jobs: Sequence[Job], *, anew: bool, threads: int | None) -> list[PlannedJob]:
    """The jobs of a suite: each a training and its evaluations. `anew`: what they have so far will be deleted.

    A step and windows of each configuration are measured with so many threads; None leaves their number to torch.
    """
    from poscli.evaluation.extrapolate import settings_of
    from poscli.sweep.pace import Pace, Rough
    from poscli.system import cores

    with cores.threads(threads):
        rough = _sweeps(jobs, Rough(), anew=anew)
        planned = _sweeps(jobs, Pace(sum(job.seconds for job in rough)), anew=anew)
    announce_longest(settings_of(job.config, job.extrapolate) for job in jobs)
    return planned


def needed(jobs: Iterable[PlannedJob]) -> list[tuple[str, float]]:
    """The label and the memory, in bytes, of each job that is not done already."""
    return [(f"{job.encoding}, seed {job.seed}", job.memory_gib * 2**30) for job in jobs if job.seconds > 0]


def _sweeps(jobs: Iterable[Job], clock: Clock, *, anew: bool) -> list[PlannedJob]:
    from functools import cache

    from poscli.evaluation.extrapolate import settings_of
    from poscli.evaluation.posthoc import posthoc_runs
    from poscli.evaluation.why.explain import is_left_to_explain
    from poscli.runs.run import Run
    from poscli.system.device import device_of
    from poscli.tasks import open_task
    from poscli.training.recalibrate import seconds_left

    opened, planned = cache(open_task), []
    for job in jobs:
        config, device = job.config, device_of(job.device)
        task = opened(config.task, config.corpus, config.tokenizer)
        training = _training(config, task, job.runs, device, anew=anew, clock=clock)
        run = None if anew else _existing(job.runs / training.run_id)
        others = posthoc_runs(run or Run(job.runs / training.run_id, config, {}), job.extrapolate, strict=False)
        models: list[Run | None] = [None] * (1 + len(others)) if run is None else [run, *others]
        settings = settings_of(config, job.extrapolate)
        why = job.extrapolate.why and is_left_to_explain(run, task, settings)
        configs = [config, *(other.config for other in others)]
        each = [
            _evaluation(model, own, task, settings, device, why=why and i == 0, clock=clock)
            for i, (model, own) in enumerate(zip(models, configs, strict=True))
        ]
        done = "complete, evaluated" if all(e.seconds == 0 for e in each) else training.done
        recalibrations = sum(seconds_left(other, task, device) for other in others)
        seconds = training.seconds + recalibrations + sum(e.seconds for e in each)
        memory = max(training.memory_gib, *(e.memory_gib for e in each))
        planned.append(replace(training, done=done, seconds=seconds, memory_gib=memory))
    return planned


def evaluations(setups: Iterable[EvaluationSetup], *, why: bool, judge: Run | None = None) -> list[PlannedJob]:
    """The evaluations of some runs, and with `why` the analyses that are not made yet. Nothing is written."""
    from poscli.evaluation.why.explain import is_left_to_explain
    from poscli.system.ranks import ranks
    from poscli.training.recalibrate import seconds_left

    planned, count = [], ranks().count
    for each in setups:
        run, task, settings = each.run, each.task, each.settings
        left = why and is_left_to_explain(run, task, settings, judge)
        parts = count if each.context_parallel else 1
        job = _evaluation(run, run.config, task, settings, each.device, why=left, parts=parts)
        planned.append(replace(job, seconds=job.seconds / count + seconds_left(run, task, each.device)))
    return planned


def delete(jobs: Iterable[PlannedJob], runs: Path) -> None:
    """Delete the folders of the runs that exist."""
    from poscli.runs.delete import delete_run

    for job in jobs:
        if (runs / job.run_id).exists():
            delete_run(runs / job.run_id)
            note(f"deleted {job.run_id}")


def announce_longest(settings: Iterable[EvaluationSettings]) -> None:
    """Say so where the longest length is shorter than --max-len, because lengths are multiples of L."""
    for each in dict.fromkeys(settings):
        longest = each.lengths[-1]
        if longest < each.max_len:
            kind = "of --lengths" if each.ratios else f"doubling of {each.train_length}"
            within = f"the largest {kind} within --max-len {each.max_len}"
            note(f"evaluating up to {longest}, {within}")


def _training(
    config: RunConfig, task: Task, runs: Path, device: torch.device, *, anew: bool, clock: Clock | None = None
) -> PlannedJob:
    """The training of a run. Without a clock, what takes long is measured."""
    from poscli.config.size import run_parameters, training_bytes
    from poscli.runs.run import ENDED
    from poscli.training.estimate import TrainingEstimate, estimate_training

    run_id = config.run_id(task.fingerprint)
    run = None if anew else _existing(runs / run_id)
    state, step = ("not begun", 0) if run is None else (run.status()["state"], run.status()["step"])
    left_from = config.steps if state in ENDED else step
    if clock is None:
        estimate = estimate_training(config, task, device, left_from)
    else:
        seconds = clock.training(config, task, device, max(0, config.steps - left_from))
        estimate = TrainingEstimate(seconds, training_bytes(config, device, task.vocab))
    return PlannedJob(
        run_id=run_id,
        encoding=config.encoding,
        seed=config.seed,
        parameters=run_parameters(config, task.vocab),
        steps=config.steps,
        done=state if left_from in (0, config.steps) else f"step {step} of {config.steps}",
        memory_gib=estimate.bytes / 2**30,
        seconds=estimate.seconds,
    )


def _evaluation(
    run: Run | None,
    config: RunConfig,
    task: Task,
    settings: EvaluationSettings,
    device: torch.device,
    *,
    why: bool,
    parts: int = 1,
    clock: Clock | None = None,
) -> PlannedJob:
    """The evaluation of a run, or of a configuration that has no run yet; `why`: and the analyses beside it.

    `parts` is the number of ranks that read a long window together. Without a clock, what takes long is measured.
    """
    from poscli.config.size import evaluation_bytes, run_parameters
    from poscli.evaluation import estimate
    from poscli.evaluation.extrapolate import is_evaluated
    from poscli.evaluation.measure import PASS_TOKENS

    longest = settings.lengths[-1]
    estimate.refuse_unaffordable(config, settings, device, parts)
    evaluated = run is not None and is_evaluated(run, settings)
    windows = {} if evaluated and not why else estimate.windows_of(task, settings)
    estimate.refuse_unaffordable_losses(task, windows)
    share = (not evaluated) + estimate.WHY_SHARE * why
    size = evaluation_bytes(config, device, batch=max(1, PASS_TOKENS // longest), length=longest, vocab=task.vocab)
    return PlannedJob(
        run_id=run.id if run else config.run_id(task.fingerprint),
        encoding=run.label if run else config.encoding,
        seed=config.seed,
        parameters=run_parameters(config, task.vocab),
        steps=config.steps,
        done="not evaluated" if not evaluated else "evaluated, not explained" if why else "evaluated",
        memory_gib=size / parts / 2**30,
        seconds=share * (clock.evaluation if clock else estimate.evaluation_seconds)(config, task, windows, device),
    )


def _existing(folder: Path) -> Run | None:
    from poscli.runs.run import exists, open_run

    return open_run(folder) if exists(folder) else None


def show(jobs: list[PlannedJob], as_json: bool, workers: int = 1, start_seconds: float = 0.0) -> None:
    """Print the jobs and how long so many workers take for all, as a table or as a JSON document.

    `start_seconds` pass before the workers begin, if there is anything to do.
    """
    from poscli.sweep.schedule import makespan

    total = makespan((job.seconds for job in jobs), workers)
    total += start_seconds if total else 0.0
    content = {"jobs": [asdict(job) for job in jobs], "workers": workers, "seconds": total}
    emit(as_json, content, lambda: out().print(_table(jobs, workers, total)))
    note("nothing is written in a dry run; times are rough, and measured where they exceed a minute")


def confirm(seconds: float, shorter: str, *, yes: bool) -> None:
    """Before work that takes over an hour, ask on a terminal, or say so in a pipe; `shorter` names options to lower.

    Raises UsageError for work of two months, PoscliError if the answer is no. With `yes` nothing is asked or refused.
    """
    if yes or seconds <= ASKED_FROM:
        return
    about = f"this takes about {duration(seconds)}"
    if seconds > REFUSED_FROM:
        raise UsageError(f"{about}; lower {shorter}, or give --yes to start all the same")
    if not (sys.stdin.isatty() and err.is_terminal):
        warn_once(f"{about}; lower {shorter} to shorten it")
    elif not typer.confirm(f"{about}. Start?", err=True):
        raise PoscliError(f"not started; lower {shorter}")


def _table(jobs: list[PlannedJob], workers: int, seconds: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    names = ("encoding", "seed", "parameters", "steps", "done", "memory", "time")
    for name in names:
        table.add_column(name, justify="left" if name in ("encoding", "done") else "right")
    for job in jobs:
        values: tuple[Any, ...] = (job.encoding, job.seed, f"{job.parameters:,}", f"{job.steps:,}", job.done)
        table.add_row(*(Text(str(value)) for value in (*values, f"{job.memory_gib:.1f} GiB", duration(job.seconds))))
    table.add_section()
    table.add_row("total" if workers == 1 else f"{workers} workers", "", "", "", "", "", duration(seconds))
    return table
