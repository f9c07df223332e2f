"""The jobs of a suite: planned and checked before anything is trained, then executed by a runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.config.suite import Suite
from poscli.evaluation.estimate import refuse_unaffordable
from poscli.evaluation.extrapolate import settings_of
from poscli.evaluation.plan import Plan
from poscli.evaluation.posthoc import posthoc_specs
from poscli.sweep.job import Job
from poscli.sweep.runners import Runner
from poscli.system.console import note
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.tasks import open_task


@dataclass
class SweepResults:
    """The results of the jobs of a suite: folders of evaluations, and each job that failed, with the cause."""

    folders: list[Path] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)


def jobs_of(suite: Suite, device: str, runs: Path) -> list[Job]:
    """The jobs of a suite, without repetitions; UsageError or DataError if any part of the suite cannot be done."""
    where = device_of(device)
    configs = [resolve(suite.train, encoding, seed, where) for encoding, seed in suite.pairs()]
    task = open_task(configs[0].task, configs[0].corpus, configs[0].tokenizer)
    configs = list(dict.fromkeys(config.model_copy(update={"corpus": task.corpus}) for config in configs))
    task.check(configs[0].length)
    settings = settings_of(configs[0], suite.extrapolate)
    refuse_unaffordable(configs[0], settings.lengths[-1], where)  # first: a task may make a text for every length
    Plan(task, settings)  # refuses lengths for which no document is long enough
    _refuse_useless_posthoc(configs, suite.extrapolate.as_)
    return [Job(config=config, extrapolate=suite.extrapolate, runs=runs, device=device) for config in configs]


def run_jobs(jobs: Sequence[Job], runner: Runner, report: Callable[[str], None]) -> SweepResults:
    """Execute jobs in order; one that fails does not stop the others. `report` takes a line about each failure."""
    results = SweepResults()
    for n, job in enumerate(jobs, 1):
        note(f"[{n}/{len(jobs)}] {job.label}")
        outcome = runner.run(job)
        results.folders += outcome.folders
        if outcome.error:
            report(f"{job.label}: {outcome.error}")
            config = job.config
            failure = {"encoding": config.encoding, "seed": str(config.seed), "error": outcome.error}
            results.failures.append(failure)
    return results


def _refuse_useless_posthoc(configs: Sequence[RunConfig], targets: list[str]) -> None:
    if targets and not any(posthoc_specs(config, targets, strict=False) for config in configs):
        raise UsageError(f"none of the suite's encodings can be evaluated as {', '.join(targets)}")
