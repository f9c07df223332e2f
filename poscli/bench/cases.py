"""From settings to cases: which models are timed, on which workloads, at which lengths."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from poscli.attention import ENGINES
from poscli.bench.settings import AUTO, BenchSettings
from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.encodings import names
from poscli.encodings.registry import missing
from poscli.system.errors import PluginError, UsageError, near

SCHEDULE_STEPS = 1_000_000  # length of the learning-rate schedule: longer than any bench trains


@dataclass(frozen=True)
class BenchCase:
    """One row of a result file to be measured: a workload, a length in tokens and a batch size."""

    what: str
    length: int
    batch: int

    @property
    def training(self) -> bool:
        """Whether the case needs gradients."""
        return self.what not in ("eval", "decode")

    @property
    def tokens(self) -> int:
        """Tokens that one run processes."""
        return self.batch if self.what == "decode" else self.batch * self.length

    @property
    def scores(self) -> int:
        """Attention scores per head: the time of dense attention grows at most in proportion to them."""
        return self.batch * self.length**2


def cases_of(settings: BenchSettings, train_batch: int, pass_tokens: int) -> list[BenchCase]:
    """The cases of every encoding, in order. Lengths ascend, so that each evaluation predicts the time of the next."""
    lengths = sorted(set(settings.lengths))
    cases = [
        BenchCase("train", settings.train_length, train_batch),
        *(BenchCase("eval", length, eval_batch(length, pass_tokens)) for length in lengths),
        *(BenchCase("decode", past, 1) for past in sorted(set(settings.past))),
    ]
    return [case for case in cases if case.what in settings.what]


def eval_batch(length: int, pass_tokens: int) -> int:
    """Windows in one forward pass of about `pass_tokens` tokens."""
    return max(1, pass_tokens // length)


def check_engines(settings: BenchSettings) -> None:
    """UsageError for an unknown engine."""
    for engine in settings.engines:
        if engine not in (AUTO, *ENGINES):
            raise UsageError(f"there is no engine {engine!r}: {near(engine, [AUTO, *ENGINES])}")


def run_config(settings: BenchSettings, encoding: str, device: torch.device) -> RunConfig:
    """The configuration of the run whose model is timed; UsageError for a spec that cannot be trained."""
    request = TrainRequest(
        preset=settings.preset,
        length=settings.train_length,
        batch=settings.batch,
        precision=settings.precision,
        tokens=2**62,  # replaced below, once the batch size is known
    )
    config = resolve(request, encoding, 0, device, axes=2)  # its random tokens may as well be those of a grid
    return config.model_copy(update={"tokens": SCHEDULE_STEPS * config.batch * config.length})


def run_configs(settings: BenchSettings, device: torch.device) -> dict[str, RunConfig | str]:
    """The configuration of every encoding by canonical spec.

    Without named encodings these are all registered ones; one that cannot run here has the reason as its value.
    """
    if settings.encodings:
        configs = [run_config(settings, encoding, device) for encoding in settings.encodings]
        return {config.encoding: config for config in configs}
    return {name: _config_or_reason(settings, name, device) for name in names()}


def _config_or_reason(settings: BenchSettings, name: str, device: torch.device) -> RunConfig | str:
    if reason := missing(name):
        return reason
    try:
        return run_config(settings, name, device)
    except (UsageError, PluginError) as error:  # for example an encoding with fewer positions than a window has tokens
        return str(error)
