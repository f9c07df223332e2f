"""The jobs of a suite, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from poscli import specs
from poscli.config.request import ExtrapolateRequest
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.config.suite import Suite
from poscli.evaluation.estimate import refuse_unaffordable
from poscli.evaluation.extrapolate import settings_of
from poscli.evaluation.plan import Plan
from poscli.evaluation.posthoc import posthoc_specs
from poscli.evaluation.recalibration import refuse_recalibration
from poscli.sweep.job import Job
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.tasks import open_task


def jobs_of(suite: Suite, device: str, runs: Path) -> list[Job]:
    """The jobs of a suite, without repetitions; UsageError or DataError if any of them cannot be done."""
    if len(names := sorted({part.train.tokenizer for part in suite.parts()})) > 1:
        raise UsageError(
            f"the parts of the suite have the tokenizers {', '.join(names)}, whose perplexities one report cannot "
            "compare; write a suite for each, and compare their runs with `poscli report --mix`"
        )
    jobs = [job for part in suite.parts() for job in _jobs_of_part(part, device, runs)]
    return list({job.config: job for job in jobs}.values())


def _jobs_of_part(suite: Suite, device: str, runs: Path) -> list[Job]:
    """The jobs of a suite without parts."""
    where = device_of(device)
    specs.refuse_twice(suite.encodings)
    configs = [resolve(suite.train, encoding, seed, where) for encoding, seed in suite.pairs()]
    task = open_task(configs[0].task, configs[0].corpus, configs[0].tokenizer)
    configs = [config.model_copy(update={"corpus": task.corpus}) for config in configs]
    task.check(configs[0].length)
    settings = settings_of(configs[0], suite.extrapolate)
    refuse_unaffordable(configs[0], settings, where)  # first: a task may make a text for every length
    Plan(task, settings)  # refuses lengths for which no document is long enough
    _refuse_useless_posthoc(configs, suite.extrapolate)
    return [
        Job(config=config, extrapolate=suite.extrapolate, runs=runs, device=device, fingerprint=task.fingerprint)
        for config in configs
    ]


def _refuse_useless_posthoc(configs: Sequence[RunConfig], request: ExtrapolateRequest) -> None:
    for config in configs:
        refuse_recalibration(config, request)
    targets = request.as_
    if targets and not any(posthoc_specs(config, targets, strict=False) for config in configs):
        raise UsageError(f"none of the suite's encodings can be evaluated as {', '.join(targets)}")
