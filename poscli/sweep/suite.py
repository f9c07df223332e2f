"""The jobs of a suite: planned and checked before anything is trained, then executed by a runner."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poscli.config.request import ExtrapolateRequest
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.config.suite import Suite
from poscli.evaluation.estimate import refuse_unaffordable
from poscli.evaluation.extrapolate import settings_of
from poscli.evaluation.plan import Plan
from poscli.evaluation.posthoc import posthoc_specs
from poscli.evaluation.recalibration import refuse_recalibration
from poscli.sweep.job import Job, Outcome
from poscli.sweep.runners import Runner
from poscli.system.console import note
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.tasks import open_task

SECONDS_BETWEEN_TRIES = 2.0  # of a job whose run another process works on


@dataclass
class SweepResults:
    """The results of the jobs of a suite: folders of evaluations, and each job that failed, with the cause."""

    folders: list[Path] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)


def jobs_of(suite: Suite, device: str, runs: Path) -> list[Job]:
    """The jobs of a suite, without repetitions; UsageError or DataError if any of them cannot be done."""
    jobs = [job for part in suite.parts() for job in _jobs_of_part(part, device, runs)]
    return list({job.config: job for job in jobs}.values())


def _jobs_of_part(suite: Suite, device: str, runs: Path) -> list[Job]:
    """The jobs of a suite without parts."""
    where = device_of(device)
    configs = [resolve(suite.train, encoding, seed, where) for encoding, seed in suite.pairs()]
    task = open_task(configs[0].task, configs[0].corpus, configs[0].tokenizer)
    configs = list(dict.fromkeys(config.model_copy(update={"corpus": task.corpus}) for config in configs))
    task.check(configs[0].length)
    settings = settings_of(configs[0], suite.extrapolate)
    refuse_unaffordable(configs[0], settings, where)  # first: a task may make a text for every length
    Plan(task, settings)  # refuses lengths for which no document is long enough
    _refuse_useless_posthoc(configs, suite.extrapolate)
    return [Job(config=config, extrapolate=suite.extrapolate, runs=runs, device=device) for config in configs]


def run_jobs(jobs: Sequence[Job], runner: Runner, report: Callable[[str], None]) -> SweepResults:
    """Execute jobs; one that fails does not stop the others. `report` takes a line about each failure.

    A job whose run another process works on is put off until the others are done, and then waited for. The results
    are in the order of the jobs.
    """
    outcomes: dict[int, Outcome] = {}
    put_off: list[int] = []
    for n, job in enumerate(jobs):
        note(f"[{n + 1}/{len(jobs)}] {job.label}")
        outcomes[n] = runner.run(job)
        if outcomes[n].held:
            note(f"{job.label} is put off: {outcomes[n].held.partition(';')[0]}")
            put_off.append(n)
        elif outcomes[n].error:
            report(f"{job.label}: {outcomes[n].error}")
    for n in put_off:
        while outcomes[n].held:
            time.sleep(SECONDS_BETWEEN_TRIES)
            outcomes[n] = runner.run(jobs[n])
        if outcomes[n].error:
            report(f"{jobs[n].label}: {outcomes[n].error}")
    results = SweepResults()
    for n, job in enumerate(jobs):
        results.folders += outcomes[n].folders
        if error := outcomes[n].error:
            failure = {"encoding": job.config.encoding, "seed": str(job.config.seed), "error": error}
            results.failures.append(failure)
    return results


def _refuse_useless_posthoc(configs: Sequence[RunConfig], request: ExtrapolateRequest) -> None:
    for config in configs:
        refuse_recalibration(config, request)
    targets = request.as_
    if targets and not any(posthoc_specs(config, targets, strict=False) for config in configs):
        raise UsageError(f"none of the suite's encodings can be evaluated as {', '.join(targets)}")
