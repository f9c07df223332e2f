"""Ctrl-C and SIGTERM stop a job between two steps, so that the job can save its state."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from poscli.system.errors import INTERRUPTED, TERMINATED, PoscliError


class Interrupted(PoscliError):
    """A job was stopped by a signal, after saving its state."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = TERMINATED if signum == signal.SIGTERM else INTERRUPTED


class Stop:
    """True once a signal has asked the job to stop."""

    signum: int = 0  # the signal; 0 for none yet

    def __bool__(self) -> bool:
        return self.signum != 0


@contextmanager
def stoppable() -> Iterator[Stop]:
    """In the block, the first SIGINT or SIGTERM only makes `Stop` true; a later SIGINT raises KeyboardInterrupt."""
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
