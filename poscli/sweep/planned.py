"""What a suite is going to do, job by job: what is done already, and the time and memory that the rest takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from poscli.estimate import (
    Planned,
    PlannedJob,
    existing_run,
    planned_evaluation,
    planned_training,
    recalibration_left,
    timed,
)
from poscli.evaluation.evaluate import settings_of
from poscli.evaluation.posthoc import posthoc_runs
from poscli.runs.run import Run
from poscli.sweep.job import Job
from poscli.system.device import device_of
from poscli.system.device import threads as computing_with
from poscli.tasks import Task, open_task
from poscli.why.explain import is_left_to_explain


def sweeps(jobs: Sequence[Job], *, anew: bool, threads: int | None) -> list[PlannedJob]:
    """The jobs of a suite: each a training and its evaluations. `anew`: what they have so far will be deleted.

    What is measured is measured with `threads` threads; None leaves their number to torch.
    """
    opened = cache(open_task)
    with computing_with(threads):
        tasks = [opened(job.config.task, job.config.corpus, job.config.tokenizer) for job in jobs]
        return timed([_planned(job, task, anew=anew) for job, task in zip(jobs, tasks, strict=True)])


def _planned(job: Job, task: Task, *, anew: bool) -> Planned:
    """The training, the recalibrations and the evaluations of a run, also under other encodings."""
    config, device, settings = job.config, device_of(job.device), settings_of(job.config, job.extrapolate)
    training, work = planned_training(config, task, job.runs, device, anew=anew)
    run = None if anew else existing_run(job.runs / training.run_id)
    others = posthoc_runs(run or Run(job.runs / training.run_id, config, {}), job.extrapolate, strict=False)
    why = job.extrapolate.why and is_left_to_explain(run, task, settings)
    evaluations = [planned_evaluation(run, config, task, settings, device, why=why)]
    for other in others:
        known = None if run is None else other
        evaluations.append(planned_evaluation(known, other.config, task, settings, device, why=False))
        work += recalibration_left(other, task, device)
    to_evaluate = [each for _, left in evaluations for each in left]
    planned = replace(
        training,
        done=training.done if any(each.windows for each in to_evaluate) else "complete, evaluated",
        memory_gib=max(training.memory_gib, *(each.memory_gib for each, _ in evaluations)),
    )
    return planned, [*work, *to_evaluate]


def needed(jobs: Iterable[PlannedJob]) -> list[tuple[str, float]]:
    """The label and the memory, in bytes, of each job that is not done already."""
    return [(f"{job.encoding}, seed {job.seed}", job.memory_gib * 2**30) for job in jobs if job.seconds > 0]
