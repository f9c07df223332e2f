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


def main(jobs: TextIO, outcomes: TextIO) -> int:
    """Execute jobs until there are none left.

    The exit code is 0 even if jobs failed, 2 if a line is not a job, and that of the signal if one stopped a job.
    """
    opened, lines, working = cache(open_task), queue.SimpleQueue[str](), threading.Event()
    threading.Thread(target=_read, args=(jobs, lines, working), daemon=True).start()
    while line := lines.get():
        try:
            job = Job.model_validate_json(line)
        except ValidationError as error:
            cause = refusal_of(Job, error)
            sys.stderr.write(f"error: stdin is not a job ({cause}); it takes what Job.model_dump_json writes\n")
            return USAGE
        working.set()
        try:
            outcome = perform(job, opened)
        except Interrupted as stop:
            return stop.exit_code
        working.clear()
        outcomes.write(outcome.model_dump_json() + "\n")
        outcomes.flush()
    return 0


def _read(jobs: TextIO, lines: queue.SimpleQueue[str], working: threading.Event) -> None:
    """Pass on the lines of stdin, and an empty one at its end."""
    for line in jobs:
        lines.put(line)
    lines.put("")
    if working.is_set():
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
