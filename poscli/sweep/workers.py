"""Workers execute jobs: in this process, or in others of this machine, which share its cores and its GPUs.

A satellite or another package may have workers elsewhere, such as `poscli/cluster/` on a Ray cluster.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

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


STOP_SECONDS = 30.0  # that a worker has to save its state; a training takes 3 s and the time of a write
# What decides how many threads torch and the libraries below it start.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Processes(Workers):
    """Executes `count` jobs at the same time, each in a process that takes one after the other.

    `threads` is the number of threads of each. `gpus` are the numbers of the GPUs that the workers take turns in; with
    none, every worker sees what this process sees. A worker that dies is replaced when it is next needed.
    """

    def __init__(self, count: int, threads: int, gpus: Sequence[int] = ()) -> None:
        self.count = count
        self._workers = [_Worker(_environment(threads, gpus[n % len(gpus)] if gpus else None)) for n in range(count)]
        self._free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(count)

    def submit(self, job: Job) -> Future[Outcome]:
        return self._threads.submit(self._execute, job)

    def _execute(self, job: Job) -> Outcome:
        worker = self._free.get()
        try:
            return worker.execute(job)
        finally:
            self._free.put(worker)

    def stop(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self._workers:
            worker.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Worker:
    """One process, started when it is first needed."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        try:  # what it writes to stderr, closed with the worker
            self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        except OSError:  # nowhere can anything be written but in the results
            self._said = open(os.devnull, "w+")  # noqa: SIM115, PTH123

    def execute(self, job: Job) -> Outcome:
        """Let the process execute a job; WorkerDied if it ends before that."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(job.model_dump_json(by_alias=True) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        try:
            return Outcome.model_validate_json(line)
        except ValidationError:
            raise WorkerDied(self._cause(process)) from None

    def signal(self, signum: int) -> None:
        """Send a signal to the process, if it lives."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signum)

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process; it is killed if that takes longer."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End the process at once, unless it has ended."""
        self.signal(signal.SIGKILL)
        self.wait(STOP_SECONDS)
        self._close_pipes()
        self._said.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._close_pipes()
            # A module of the current folder must hide no other one there, if it hides none here.
            safely = [] if {"", str(Path.cwd())} & {*sys.path} else ["-P"]
            self._process = subprocess.Popen(
                [sys.executable, *safely, "-m", "poscli.sweep"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._said, text=True, env=self._environment,
                start_new_session=True,  # Ctrl-C reaches the process that started it, which passes it on once
            )  # fmt: skip
        return self._process

    def _close_pipes(self) -> None:
        """Close this side of the pipes to a process that has ended."""
        for pipe in (self._process.stdin, self._process.stdout) if self._process else ():
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # the last line did not reach it
                pipe.close()

    def _cause(self, process: subprocess.Popen[str]) -> str:
        """How a process has ended, in words."""
        self.wait(STOP_SECONDS)
        code = process.returncode
        if code < 0:
            hint = ", as the system does when memory is short" if code == -signal.SIGKILL else ""
            return f"its process was killed by {signal.Signals(-code).name}{hint}"
        self._said.seek(0)
        last = [line for line in self._said.read().splitlines() if line.strip()][-1:]
        return f"its process ended with code {code}" + (f": {last[0]}" if last else "")


def _environment(threads: int, gpu: int | None) -> dict[str, str]:
    """The environment of a worker."""
    variables = dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"POSCLI_QUIET": "1"}
    if gpu is not None:  # the variable counts the GPUs that this process does not see, too
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        variables["CUDA_VISIBLE_DEVICES"] = seen.split(",")[gpu] if seen else str(gpu)
    return os.environ | variables
