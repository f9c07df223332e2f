"""What a command is going to do, run by run: what is done already, and the time and memory that the rest takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from poscli.config.run import RunConfig
from poscli.config.size import evaluation_bytes, run_parameters, training_bytes
from poscli.evaluation import estimate
from poscli.evaluation.extrapolate import is_evaluated, settings_of
from poscli.evaluation.measure import PASS_TOKENS, EvaluationSetup
from poscli.evaluation.posthoc import posthoc_runs
from poscli.evaluation.protocol import EvaluationSettings
from poscli.runs.run import ENDED, Run, exists, open_run
from poscli.sweep.job import Job
from poscli.sweep.pace import Clock, Pace, Rough
from poscli.system.device import device_of
from poscli.system.device import threads as computing_with
from poscli.system.errors import CorruptError, ForeignError
from poscli.system.ranks import ranks
from poscli.tasks import Task, open_task
from poscli.training.estimate import TrainingEstimate, estimate_training
from poscli.training.recalibrate import seconds_left
from poscli.why.explain import is_left_to_explain


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
    with computing_with(threads):
        rough = _sweeps(jobs, Rough(), anew=anew)
        return _sweeps(jobs, Pace(sum(job.seconds for job in rough)), anew=anew)


def needed(jobs: Iterable[PlannedJob]) -> list[tuple[str, float]]:
    """The label and the memory, in bytes, of each job that is not done already."""
    return [(f"{job.encoding}, seed {job.seed}", job.memory_gib * 2**30) for job in jobs if job.seconds > 0]


def evaluations(
    setups: Iterable[EvaluationSetup], *, why: bool, judge: Run | None = None, anew: bool = False
) -> list[PlannedJob]:
    """The evaluations of some runs, and with `why` the analyses that are not made yet. Nothing is written.

    `anew`: those that are made already will be made again.
    """
    planned, count = [], ranks().count
    for each in setups:
        run, task, settings = each.run, each.task, each.settings
        left = why and is_left_to_explain(None if anew else run, task, settings, judge)
        job = _evaluation(run, run.config, task, settings, each.device, why=left, anew=anew)
        planned.append(replace(job, seconds=job.seconds / count + seconds_left(run, task, each.device)))
    return planned


def _sweeps(jobs: Iterable[Job], clock: Clock, *, anew: bool) -> list[PlannedJob]:
    opened = cache(open_task)
    return [
        _sweep(job, opened(job.config.task, job.config.corpus, job.config.tokenizer), clock, anew=anew) for job in jobs
    ]


def _sweep(job: Job, task: Task, clock: Clock, *, anew: bool) -> PlannedJob:
    """A job of a suite: the training, recalibrations, and the evaluations of the run, also under other encodings."""
    config, device, settings = job.config, device_of(job.device), settings_of(job.config, job.extrapolate)
    training = _training(config, task, job.runs, device, anew=anew, clock=clock)
    run = None if anew else _existing(job.runs / training.run_id)
    others = posthoc_runs(run or Run(job.runs / training.run_id, config, {}), job.extrapolate, strict=False)
    why = job.extrapolate.why and is_left_to_explain(run, task, settings)
    evaluations = [_evaluation(run, config, task, settings, device, why=why, clock=clock)]
    for other in others:
        known = None if run is None else other
        evaluations.append(_evaluation(known, other.config, task, settings, device, why=False, clock=clock))
    recalibrations = sum(seconds_left(other, task, device) for other in others)
    return replace(
        training,
        done="complete, evaluated" if all(each.seconds == 0 for each in evaluations) else training.done,
        seconds=training.seconds + recalibrations + sum(each.seconds for each in evaluations),
        memory_gib=max(training.memory_gib, *(each.memory_gib for each in evaluations)),
    )


def _training(
    config: RunConfig, task: Task, runs: Path, device: torch.device, *, anew: bool, clock: Clock | None = None
) -> PlannedJob:
    """The training of a run. Without a clock, what takes long is measured."""
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
    anew: bool = False,
    clock: Clock | None = None,
) -> PlannedJob:
    """The evaluation of a run, or of a configuration that has no run yet; `why`: and the analyses beside it.

    Without a clock, what takes long is measured.
    """
    longest = settings.lengths[-1]
    estimate.refuse_unaffordable(config, settings, device)
    evaluated = run is not None and not anew and is_evaluated(run, settings)
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
        memory_gib=size / 2**30,
        seconds=share * (clock.evaluation if clock else estimate.evaluation_seconds)(config, task, windows, device),
    )


def _existing(folder: Path) -> Run | None:
    """The run in a folder; None if none has begun, or what describes it has to be written again."""
    try:
        return open_run(folder) if exists(folder) else None
    except ForeignError:
        raise
    except CorruptError:
        return None
