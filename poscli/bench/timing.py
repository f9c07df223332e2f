"""Timing that is robust on a shared machine: functions to be compared are called in turns, A B A B ..., seconds apart.

Another process that takes the cores then slows both. A time is the median over the turns. A ratio is the ratio of two
medians; the smallest and the largest ratio of a single turn, between which it always lies, are reported as its spread.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

import poscli
from poscli.bench.settings import BenchSettings
from poscli.evaluation.measure import PASS_TOKENS
from poscli.statistics import Triple
from poscli.system.device import device_name
from poscli.system.memory import Peak
from poscli.system.provenance import commit, cpu

Work = Callable[[], object]
Row = dict[str, Any]

SAMPLE_SECONDS = 0.05  # shorter runs are repeated within a turn: clocks and the scheduler are too coarse below this
WARM_SECONDS = 1.0  # a longer first run needs no second one to measure memory: loading kernels hardly counts in it


@dataclass(frozen=True)
class TurnPace:
    """At most `repeats` turns; none begins after `seconds`; a function runs at least `sample` seconds in each."""

    repeats: int
    seconds: float
    sample: float = SAMPLE_SECONDS


@dataclass(frozen=True)
class Timing:
    """Seconds of one run for every turn, and its peak memory in MiB; `memory_of` is `Peak.of`."""

    seconds: tuple[float, ...]
    peak_mb: float
    memory_of: str

    @property
    def median(self) -> float:
        """The median over the turns."""
        return statistics.median(self.seconds)


def time_in_turns(
    works: Sequence[Work], pace: TurnPace, device: torch.device, check: Work = lambda: None
) -> list[Timing]:
    """Time each function, taking turns. `check` is called between runs and may raise to stop.

    First runs are not counted, unless the first function takes longer than `pace.seconds`: then each runs once only.
    Memory is measured in runs that are not timed, because returning freed memory to the system takes time; a function
    that runs once only is timed and measured in the same run.
    """
    if device.type == "cuda":  # kernels may be compiled for these sizes
        for work in works:
            work()
    first = [_watched(work, device, check) for work in works]
    if first[0][0] > pace.seconds:
        return [Timing((seconds,), peak.mb, peak.of) for seconds, peak in first]
    warm = first if first[0][0] > WARM_SECONDS else [_watched(work, device, check) for work in works]
    counts = [max(1, math.ceil(pace.sample / max(seconds, 1e-9))) for seconds, _ in warm]
    samples: list[list[float]] = [[] for _ in works]
    start = time.perf_counter()
    for turn in range(pace.repeats):
        if turn and time.perf_counter() - start > pace.seconds:
            break
        for taken, work, count in zip(samples, works, counts, strict=True):
            check()
            taken.append(seconds_of(work, device, count))
    peaks = [peak for _, peak in warm]
    return [Timing(tuple(taken), peak.mb, peak.of) for taken, peak in zip(samples, peaks, strict=True)]


def ratio(numerator: Timing, denominator: Timing) -> Triple:
    """How many times longer one function takes than another: ratio of the medians, and extremes over single turns."""
    each = [a / b for a, b in zip(numerator.seconds, denominator.seconds, strict=True)]
    return numerator.median / denominator.median, min(each), max(each)


def seconds_of(work: Work, device: torch.device, count: int = 1) -> float:
    """Seconds of one call, the mean of `count` calls, until the device has finished."""
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda _: None
    synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        work()
    synchronize(device)
    return (time.perf_counter() - start) / count


def _watched(work: Work, device: torch.device, check: Work) -> tuple[float, Peak]:
    check()
    with Peak(device) as peak:
        seconds = seconds_of(work, device)
    return seconds, peak


@dataclass(frozen=True)
class Sizes:
    """Amounts of work that no option sets: users get those of their device, tests give small ones."""

    products: tuple[int, ...]  # sides of the square matrices that are multiplied
    copied_bytes: int  # far more than caches hold
    pass_tokens: int = PASS_TOKENS
    sample_seconds: float = SAMPLE_SECONDS


SIZES = {"cpu": Sizes((512, 1024, 1536), 2**28), "cuda": Sizes((2048, 4096, 8192), 2**31)}


@dataclass(frozen=True)
class Conditions:
    """Settings, device and sizes of a bench; `check` is called between runs and raises to stop."""

    settings: BenchSettings
    device: torch.device
    sizes: Sizes
    check: Work

    def time(self, works: Sequence[Work]) -> list[Timing]:
        """Time functions in turns, at the pace that the settings ask for."""
        pace = TurnPace(self.settings.repeats, self.settings.seconds, self.sizes.sample_seconds)
        return time_in_turns(works, pace, self.device, self.check)

    @cached_property
    def where(self) -> Row:
        """The columns of every row that say on what machine and with what software it was measured."""
        return {
            "device": device_name(self.device),
            "machine": cpu(),
            "cores": os.cpu_count() or 0,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "poscli": poscli.__version__,
            "commit": commit(),
        }
