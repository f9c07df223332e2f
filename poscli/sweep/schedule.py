"""How long a sweep takes on its workers."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence


def makespan(waiting: Iterable[float], workers: int, running: Iterable[float] = ()) -> float:
    """Seconds until all jobs are done: those that run, by what is left of each, and then those that wait, in order.

    >>> makespan([3, 3, 2, 2], workers=2), makespan([4.0], workers=2, running=[1.0, 9.0])
    (5.0, 9.0)
    """
    busy = [float(seconds) for seconds in running]
    free = [0.0] * max(0, workers - len(busy)) + busy  # when each worker is free again
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free, default=0.0)


class TimeLeft:
    """The time that the rest of a sweep takes, by the estimates of its jobs and by how long the first ones took."""

    def __init__(self, seconds: Sequence[float], workers: int) -> None:
        self.estimated, self.workers = list(seconds), workers
        self.running: dict[int, float] = {}  # job: when it began
        self.done: dict[int, float] = {}  # job: the seconds that it took

    def began(self, number: int) -> None:
        """A worker has begun a job."""
        self.running[number] = time.monotonic()

    def ended(self, number: int) -> float:
        """A job is done; returns the seconds that it took."""
        self.done[number] = time.monotonic() - self.running.pop(number)
        return self.done[number]

    def postponed(self, number: int) -> None:
        """A job waits again."""
        self.running.pop(number)

    def left(self) -> float:
        """The seconds that the rest takes."""
        worked = [n for n in self.done if self.estimated[n]]  # the others were there already
        pace = sum(self.done[n] for n in worked) / sum(self.estimated[n] for n in worked) if worked else 1.0
        waiting = (pace * s for n, s in enumerate(self.estimated) if n not in self.done and n not in self.running)
        now = time.monotonic()
        running = [max(0.0, pace * self.estimated[n] - (now - began)) for n, began in self.running.items()]
        return makespan(waiting, self.workers, running)
