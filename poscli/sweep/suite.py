"""The jobs of a suite, checked before anything is trained."""

from __future__ import annotations

from pathlib import Path

from poscli.config.suite import Suite
from poscli.estimate import refuse_unaffordable_windows
from poscli.evaluation.evaluate import settings_of
from poscli.evaluation.plan import Plan
from poscli.evaluation.posthoc import posthoc_specs, refuse_recalibration
from poscli.sweep.job import Job
from poscli.system.device import device_of
from poscli.system.errors import UsageError
from poscli.workflows import prepare


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
    setup = prepare(suite.train, suite.encodings, suite.seeds, device_of(device))
    settings = settings_of(setup.configs[0], suite.extrapolate)
    refuse_unaffordable_windows(
        setup.configs[0], settings, setup.device
    )  # first: a task may make a text for every length
    Plan(setup.task, settings)  # refuses lengths for which no document is long enough
    for config in setup.configs:
        refuse_recalibration(config, suite.extrapolate)
    targets = suite.extrapolate.as_
    if targets and not any(posthoc_specs(config, targets, strict=False) for config in setup.configs):
        raise UsageError(f"none of the suite's encodings can be evaluated as {', '.join(targets)}")
    return [
        Job(config=config, extrapolate=suite.extrapolate, runs=runs, device=device, fingerprint=setup.task.fingerprint)
        for config in setup.configs
    ]
