"""Runners execute jobs. A runner takes a job and returns its outcome; a job that fails has an outcome, too.

`Here` runs jobs in this process, one after the other; `Subprocess` runs each in a process of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from poscli.sweep.job import Job, Outcome, run_job
from poscli.system.errors import LockedError, PoscliError
from poscli.system.plugin_sources import blamed
from poscli.system.signals import Interrupted
from poscli.tasks import open_task


class Runner(ABC):
    """A way to execute jobs."""

    @abstractmethod
    def run(self, job: Job) -> Outcome:
        """Execute a job. A signal raises Interrupted, with everything saved."""


class Here(Runner):
    """Runs each job in this process. A corpus that several jobs share is read once."""

    def __init__(self) -> None:
        self._open = cache(open_task)

    def run(self, job: Job) -> Outcome:
        folders: list[Path] = []
        try:
            with blamed():
                for folder in run_job(job, self._open):
                    folders.append(folder)
        except Interrupted:
            raise
        except LockedError as error:
            return Outcome(held=str(error))
        except Exception as error:  # noqa: BLE001 - the other jobs go on; the cause is in the outcome
            kind = "" if isinstance(error, PoscliError) else f"{type(error).__name__}: "
            return Outcome(folders=tuple(folders), error=" ".join(f"{kind}{error}".split()))
        return Outcome(folders=tuple(folders))


class Subprocess(Runner):
    """Runs each job in a process of its own: `python -m poscli.sweep` takes it and prints its outcome, both as JSON."""

    def run(self, job: Job) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "poscli.sweep"], input=job.model_dump_json(by_alias=True), stdout=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
        # A process that a signal killed has the code -signal; one that saved its state first, 128 + signal.
        signum = -done.returncode if done.returncode < 0 else done.returncode - 128
        if signum in (signal.SIGTERM, signal.SIGINT):
            raise Interrupted(f"stopped at {job.label}; the same command goes on from there", signum)
        try:
            return Outcome.model_validate_json(done.stdout)
        except ValidationError:
            return Outcome(error=f"the process of {job.label} ended with code {done.returncode} and no outcome")
