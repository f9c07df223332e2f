"""Timing that a shared machine cannot easily fool: what is compared runs in turns, A B A B ..., seconds apart.

A neighbour's burst then hits both. Times are medians over the turns; a ratio is that of two medians, which always lies
between the least and the most of the turns' own ratios, and those are stated as its spread.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from poscli.bench.memory import Peak

Work = Callable[[], object]

SAMPLE = 0.05  # seconds that a sample lasts at least, by running the work several times: below, timers and ticks count
SETTLED = 1.0  # seconds of a first run from which on loading kernels and buffers does not show in its memory


@dataclass(frozen=True)
class Pace:
    """How often a case is repeated: at most `repeats` turns, and none begins once `seconds` are spent."""

    repeats: int
    seconds: float


@dataclass(frozen=True)
class Timing:
    """Seconds of one run, once per turn, and the peak memory of one."""

    seconds: tuple[float, ...]
    peak_mb: float
    memory_of: str

    @property
    def median(self) -> float:
        """The middle turn."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """How many times longer one takes than another: of the medians, and the least and the most of a turn."""

    median: float
    low: float
    high: float


def in_turns(works: Sequence[Work], pace: Pace, device: torch.device, check: Work = lambda: None) -> list[Timing]:
    """Time each work, taking turns. `check` is called between runs and may raise to stop.

    The first run of each is not counted, unless the first work's alone is longer than the pace allows: then it is all
    there is. Memory is measured apart from the turns that are timed, because giving freed memory back costs time.
    """
    first = [_watched(work, device, check) for work in works]
    if first[0][0] > pace.seconds:
        return [Timing((seconds,), peak.mb, peak.of) for seconds, peak in first]
    settled = first if first[0][0] > SETTLED else [_watched(work, device, check) for work in works]
    counts = [max(1, math.ceil(SAMPLE / max(seconds, 1e-9))) for seconds, _ in settled]
    samples: list[list[float]] = [[] for _ in works]
    start = time.perf_counter()
    for turn in range(pace.repeats):
        if turn and time.perf_counter() - start > pace.seconds:
            break
        for taken, work, count in zip(samples, works, counts, strict=True):
            check()
            taken.append(seconds_of(work, device, count))
    peaks = [peak for _, peak in settled]
    return [Timing(tuple(taken), peak.mb, peak.of) for taken, peak in zip(samples, peaks, strict=True)]


def ratio(of: Timing, to: Timing) -> Ratio:
    """Of the two medians; the ratios of the turns, whose runs were neighbours in time, are its spread around it."""
    each = [a / b for a, b in zip(of.seconds, to.seconds, strict=True)]
    return Ratio(of.median / to.median, min(each), max(each))


def seconds_of(work: Work, device: torch.device, count: int = 1) -> float:
    """Seconds of one run, the mean of `count`, until the device is done."""
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        work()
    _synchronize(device)
    return (time.perf_counter() - start) / count


def _watched(work: Work, device: torch.device, check: Work) -> tuple[float, Peak]:
    check()
    with Peak(device) as peak:
        seconds = seconds_of(work, device)
    return seconds, peak


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
