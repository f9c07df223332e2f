"""A job: one run from its configuration to its evaluation, as plain data and one function.

A job and its outcome are pydantic models, so that a runner can pass them to another process as JSON. A job writes its
results into the run's folder and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from poscli.config.request import ExtrapolateRequest
from poscli.config.run import RunConfig
from poscli.config.validate import Frozen
from poscli.evaluation.extrapolate import settings_of
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.posthoc import posthoc_runs
from poscli.evaluation.why.explain import explain
from poscli.system.device import device_of
from poscli.tasks import Task, open_task
from poscli.training.recalibrate import evaluate
from poscli.training.train import train

OpenTask = Callable[[str, str, str], Task]  # name, corpus, tokenizer


class Job(Frozen):
    """A run to train and to evaluate, the folder for its results, and the device."""

    config: RunConfig
    extrapolate: ExtrapolateRequest = ExtrapolateRequest()
    runs: Path  # the folder of all runs
    device: str = "cpu"

    @property
    def label(self) -> str:
        """The name of the job in messages."""
        return f"{self.config.encoding}, seed {self.config.seed}"


class Outcome(Frozen):
    """The folders that hold the results of a job, and the error that stopped it, if one did.

    `held` says which other process works on the run; the job is then to be tried again later.
    """

    folders: tuple[Path, ...] = ()
    error: str = ""
    held: str = ""


def run_job(job: Job, open_task: OpenTask = open_task) -> Iterator[Path]:
    """Train and evaluate a run, going on where it stopped; yields the folder of each evaluation as it ends.

    `open_task` may return a task that is open already, so that jobs can share it.
    """
    config, device = job.config, device_of(job.device)
    task = open_task(config.task, config.corpus, config.tokenizer)
    run = train(config, task, job.runs, device)
    for each in (run, *posthoc_runs(run, job.extrapolate, strict=False)):
        setup = EvaluationSetup(each, task, settings_of(config, job.extrapolate), device)
        evaluate(setup)
        if job.extrapolate.why:
            explain(setup)
        yield each.folder
