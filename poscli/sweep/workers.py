"""Workers execute jobs: in this process, in others of this machine (processes.py), or on a Ray cluster (cluster.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from functools import cache
from types import TracebackType
from typing import Self

from poscli.sweep.job import Job, Outcome, perform
from poscli.system.errors import PoscliError
from poscli.tasks import open_task


class WorkerDied(PoscliError):
    """The process of a worker has ended in the middle of a job. What the job had saved is intact."""


class Workers(ABC):
    """A way to execute jobs, some of them at the same time; for a `with` block, which stops what it started."""

    count: int = 1  # jobs that run at the same time
    elsewhere: bool = True  # whether they run in other processes, which must be asked to stop

    @abstractmethod
    def submit(self, job: Job) -> Future[Outcome]:
        """Begin a job. The future has its outcome, or raises WorkerDied."""

    def stop(self) -> None:
        """Ask the jobs that run to save their state and to end, and wait until they have."""
        return

    def close(self) -> None:
        """End the workers; nothing is running any more, or what is running may be lost."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Here(Workers):
    """Executes each job in this process, while it is submitted. A corpus that several jobs share is read once."""

    elsewhere = False

    def __init__(self) -> None:
        self._open = cache(open_task)

    def submit(self, job: Job) -> Future[Outcome]:
        done: Future[Outcome] = Future()
        done.set_result(perform(job, self._open))
        return done
