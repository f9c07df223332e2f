"""Ctrl-C and SIGTERM stop a job between two steps, so that it can save what it has."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from poscli.errors import INTERRUPTED, TERMINATED, PoscliError


class Interrupted(PoscliError):
    """The person, or the system, asked the job to stop; what it had is saved."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = TERMINATED if signum == signal.SIGTERM else INTERRUPTED


class Stop:
    """Which signal asked for a stop, if any."""

    signum: int = 0

    def __bool__(self) -> bool:
        return self.signum != 0


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Turn the first SIGINT or SIGTERM into a flag; a second SIGINT acts at once."""
    stop = Stop()

    def handle(signum: int, frame: FrameType | None) -> None:
        stop.signum = signum
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
