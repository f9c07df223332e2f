"""A worker process: each line of stdin is a job as JSON, each line of stdout its outcome.

When stdin ends, the process that started this one is gone or wants no more: a job that is running is asked to stop.
"""

from __future__ import annotations

from poscli.system import signals

if __name__ == "__main__":
    signals.watch()  # before torch is imported, which takes seconds

import os
import queue
import signal
import sys
import threading
from functools import cache
from typing import TextIO

from pydantic import ValidationError

from poscli.config.validate import refusal_of
from poscli.sweep.job import Job, perform
from poscli.system.errors import USAGE, Interrupted
from poscli.tasks import open_task

HandedOver = queue.Queue[Job | ValidationError | None]


def main(jobs: TextIO, outcomes: TextIO) -> int:
    """Execute jobs until there are none left.

    The exit code is 0 even if jobs failed, 2 if a line is not a job, and that of the signal if one stopped a job.
    """
    opened, handed_over = cache(open_task), HandedOver()
    threading.Thread(target=_read, args=(jobs, handed_over), daemon=True).start()
    while (job := handed_over.get()) is not None:
        if isinstance(job, ValidationError):
            cause = refusal_of(Job, job)
            wanted = "it takes what Job.model_dump_json(by_alias=True) writes"
            sys.stderr.write(f"error: stdin is not a job ({cause}); {wanted}\n")
            return USAGE
        try:
            outcome = perform(job, opened)
        except Interrupted as stop:
            return stop.exit_code
        handed_over.task_done()
        outcomes.write(outcome.model_dump_json() + "\n")
        outcomes.flush()
    return 0


def _read(jobs: TextIO, handed_over: HandedOver) -> None:
    """Pass on the jobs on stdin, up to a line that is not one, and None at its end."""
    try:
        for line in jobs:
            handed_over.put(Job.model_validate_json(line))
    except ValidationError as error:
        handed_over.put(error)
        return
    unanswered = handed_over.unfinished_tasks > 0  # also by a job that has not begun yet
    handed_over.put(None)
    if unanswered:
        os.kill(os.getpid(), signal.SIGTERM)


def _start() -> int:
    """Keep stdout for outcomes alone: whatever else prints, such as an encoding of the user, prints to stderr."""
    outcomes = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        return main(sys.stdin, outcomes)
    except signals.Interruption as stop:
        return stop.exit_code


if __name__ == "__main__":
    code = _start()
    sys.stderr.flush()
    os._exit(code)  # the thread that reads stdin would otherwise have to be waited for
