"""How long the jobs of a suite take, from a measured step and measured windows of each configuration.

Seeds of one configuration take the same time, which is measured once. Measuring stops when it has taken its share of
the suite's time; the configurations that are left are estimated by the count of operations, corrected by what the
measured ones took in comparison.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from poscli.config.run import RunConfig
from poscli.evaluation.estimate import Windows, evaluation_at, measured_pass, rough_evaluation
from poscli.tasks import Task
from poscli.training.estimate import is_unusual, measured_step, rough_step

T = TypeVar("T")

SHARE, LEAST_SECONDS = 0.03, 15.0  # of the suite's time that measuring may take, and in any case
STATISTICS_SECONDS = 0.7  # of an evaluation, for what follows the passes: scoring, intervals, tables; measured on CPUs
BEGIN_SECONDS = 0.3  # of a training, for building the model and the first and last checkpoint


class Clock(Protocol):
    """Says how long the parts of a job take, in seconds."""

    def training(self, config: RunConfig, task: Task, device: torch.device, steps: int) -> float:
        """So many steps of a run."""

    def evaluation(self, config: RunConfig, task: Task, windows: Windows, device: torch.device) -> float:
        """The evaluation of a run, by the numbers of windows of its measurements."""


class Rough:
    """A clock that counts operations, right within a factor of ten."""

    def training(self, config: RunConfig, task: Task, device: torch.device, steps: int) -> float:
        return steps * rough_step(config, task, device)

    def evaluation(self, config: RunConfig, task: Task, windows: Windows, device: torch.device) -> float:
        return rough_evaluation(config, task, windows, device)


class Pace:
    """A clock that measures. `rough` are the seconds of the whole suite by the count of operations."""

    def __init__(self, rough: float) -> None:
        self._left = max(LEAST_SECONDS, SHARE * rough)
        self._steps: dict[str, float] = {}
        self._passes: dict[str, tuple[float, float]] = {}
        self._ratios: dict[str, list[float]] = {"step": [], "pass": []}

    def training(self, config: RunConfig, task: Task, device: torch.device, steps: int) -> float:
        if not steps:
            return 0.0
        key, rough = _key(config), rough_step(config, task, device)
        if key not in self._steps and (self._left > 0 or is_unusual(config, task, device)):
            self._steps[key] = self._timed(lambda: measured_step(config, task, device))
            self._ratios["step"].append(self._steps[key] / rough)
        step = self._steps.get(key) or rough * self._typical("step")
        return BEGIN_SECONDS + steps * step

    def evaluation(self, config: RunConfig, task: Task, windows: Windows, device: torch.device) -> float:
        if not windows:
            return 0.0
        key, rough = _key(config), rough_evaluation(config, task, windows, device)
        if key not in self._passes and self._left > 0:
            self._passes[key] = self._timed(lambda: measured_pass(config, task, device))
            self._ratios["pass"].append(evaluation_at(self._passes[key], windows) / rough)
        known = self._passes.get(key)
        seconds = evaluation_at(known, windows) if known else rough * self._typical("pass")
        return STATISTICS_SECONDS + seconds

    def _timed(self, measure: Callable[[], T]) -> T:
        start = time.monotonic()
        measured = measure()
        self._left -= time.monotonic() - start
        return measured

    def _typical(self, what: str) -> float:
        """How many times as long as by the count of operations it has taken: the median of what was measured."""
        return statistics.median(self._ratios[what]) if self._ratios[what] else 1.0


def _key(config: RunConfig) -> str:
    """What decides the time of a run."""
    return config.model_copy(update={"seed": 0}).model_dump_json()
