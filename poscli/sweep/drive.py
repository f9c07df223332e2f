"""The driver of a sweep: hands jobs to workers, and tries again where a worker dies or a run is taken."""

from __future__ import annotations

import heapq
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from poscli.sweep.job import Job, Outcome
from poscli.sweep.workers import WorkerDied, Workers
from poscli.system.errors import Interrupted
from poscli.system.signals import Stop, stoppable


def makespan(waiting: Iterable[float], workers: int, running: Iterable[float] = ()) -> float:
    """Seconds until all jobs are done: those that run, by what is left of each, and then those that wait, in order.

    >>> makespan([3, 3, 2, 2], workers=2), makespan([4.0], workers=2, running=[1.0, 9.0])
    (5.0, 9.0)
    """
    busy = [float(seconds) for seconds in running]
    free = [0.0] * (workers - len(busy)) + busy  # when each worker is free again
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


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


SECONDS_BETWEEN_LOOKS = 0.25  # at the running jobs, the signals and the screen
SECONDS_BETWEEN_TRIES = 2.0  # of a job whose run another process works on
MOST_DEATHS = 5  # of workers with one job in their hands; after one more, the job has failed


class Watcher:
    """Receives the events of a sweep, in which jobs are numbered from 0 on. This base class ignores them."""

    def began(self, number: int) -> None:
        """A job was handed to a worker."""

    def ended(self, number: int, outcome: Outcome) -> None:
        """A job has an outcome, which may be an error."""

    def postponed(self, number: int, why: str) -> None:
        """A job will be tried again, because its worker died or another process works on its run."""

    def look(self) -> None:
        """A moment has passed."""


@dataclass
class SweepResults:
    """The results of the jobs of a suite: folders of evaluations, and each job that failed, with the cause."""

    folders: list[Path] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)


def run_jobs(jobs: Sequence[Job], workers: Workers, watcher: Watcher) -> SweepResults:
    """Execute jobs; one that fails does not stop the others. The results are in the order of the jobs.

    A job whose run another process works on is put off until the others have begun, and then tried every two seconds.
    A signal raises Interrupted, when all workers have saved what they did.
    """
    sweep = _Sweep(jobs, workers, watcher)
    # Jobs that run in this process notice signals themselves.
    with stoppable() if workers.elsewhere else nullcontext(Stop()) as stop:
        while sweep.left:
            sweep.begin()
            sweep.collect()
            watcher.look()
            if stop:
                workers.stop()
                done = len(sweep.outcomes)
                message = f"stopped with {done} of {len(jobs)} runs done; the same command goes on from there"
                raise Interrupted(message, stop.signum)
    return sweep.results()


class _Sweep:
    """The jobs that wait, run, and are done."""

    def __init__(self, jobs: Sequence[Job], workers: Workers, watcher: Watcher) -> None:
        self.jobs, self.workers, self.watcher = jobs, workers, watcher
        self.waiting = deque(range(len(jobs)))
        self.put_off: dict[int, float] = {}  # jobs, and when to try them again
        self.running: dict[Future[Outcome], int] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.deaths: Counter[int] = Counter()

    @property
    def left(self) -> bool:
        """Whether any job has no outcome yet."""
        return len(self.outcomes) < len(self.jobs)

    def begin(self) -> None:
        """Hand jobs to the workers that are free."""
        while len(self.running) < self.workers.count and (number := self._next()) is not None:
            self.watcher.began(number)
            self.running[self.workers.submit(self.jobs[number])] = number

    def collect(self) -> None:
        """Wait a moment for jobs to end, and take what they return."""
        if not self.running:
            time.sleep(SECONDS_BETWEEN_LOOKS)  # all that are left are put off
            return
        done, _ = wait(self.running, timeout=SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
        for future in done:
            number = self.running.pop(future)
            try:
                self._take(number, future.result())
            except WorkerDied as death:
                self._try_again(number, str(death))

    def results(self) -> SweepResults:
        """What all jobs returned."""
        results = SweepResults()
        for number, job in enumerate(self.jobs):
            results.folders += self.outcomes[number].folders
            if error := self.outcomes[number].error:
                failure = {"encoding": job.config.encoding, "seed": str(job.config.seed), "error": error}
                results.failures.append(failure)
        return results

    def _next(self) -> int | None:
        """A job that waits, or one that was put off for long enough."""
        if self.waiting:
            return self.waiting.popleft()
        due = [number for number, when in self.put_off.items() if when <= time.monotonic()]
        if not due:
            return None
        del self.put_off[due[0]]
        return due[0]

    def _take(self, number: int, outcome: Outcome) -> None:
        if outcome.held:
            self.put_off[number] = time.monotonic() + SECONDS_BETWEEN_TRIES
            self.watcher.postponed(number, f"is put off: {outcome.held.partition(';')[0]}")
        else:
            self.outcomes[number] = outcome
            self.watcher.ended(number, outcome)

    def _try_again(self, number: int, cause: str) -> None:
        """Go on with a job whose worker died; it has failed if that happens too often."""
        self.deaths[number] += 1
        if self.deaths[number] > MOST_DEATHS:
            error = f"its worker died {self.deaths[number]} times, in the end because {cause}"
            self._take(number, Outcome(error=error))
            return
        self.waiting.appendleft(number)
        self.watcher.postponed(number, f"{cause}; going on from what it has saved")
