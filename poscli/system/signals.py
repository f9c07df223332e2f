"""Ctrl-C and SIGTERM stop a job between two steps, or soon in a long step, so that it can save its state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from poscli.system.errors import INTERRUPTED, TERMINATED, PoscliError

PATIENCE_SECONDS = 3.0  # how long a step may go on after a signal before it is abandoned


class Interrupted(PoscliError):
    """A job was stopped by a signal, after saving its state."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = TERMINATED if signum == signal.SIGTERM else INTERRUPTED


class Abandoned(BaseException):
    """Raised inside a step that has gone on for too long after a signal. Not an Exception: no step may catch it."""


class Stop:
    """True once a signal has asked the job to stop."""

    def __init__(self) -> None:
        self.signum = 0  # the signal; 0 for none yet
        self._can_abandon = False

    def __bool__(self) -> bool:
        return self.signum != 0

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """A block that changes nothing that is saved: some time after a signal, Abandoned is raised inside it."""
        self._can_abandon = True
        try:
            yield
        finally:
            self._can_abandon = False

    def ask(self, signum: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM: the job stops at the end of its step. A further Ctrl-C does not wait for that."""
        self.signum = signum
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(signal, "setitimer"):  # not on Windows, where a step goes on to its end
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS, 0.1)

    def lose_patience(self, signum: int, frame: FrameType | None) -> None:
        """Handle SIGALRM: abandon the step, if that is allowed at this moment."""
        if self._can_abandon:
            raise Abandoned


@contextmanager
def stoppable(*, obeys: bool = False) -> Iterator[Stop]:
    """In the block, SIGINT and SIGTERM make `Stop` true instead of ending the process.

    A signal that comes too late for the block to stop is not lost: it counts as one that comes just after the block.
    `obeys`: the block ends by itself because of the signal, and nothing is left to be stopped. Outside the main thread,
    which alone receives signals, nothing changes.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers: dict[int, Callable[[int, FrameType | None], None]] = {signal.SIGINT: stop.ask, signal.SIGTERM: stop.ask}
    if hasattr(signal, "SIGALRM"):
        handlers[signal.SIGALRM] = stop.lose_patience
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield stop
    finally:
        if hasattr(signal, "setitimer") and stop:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if stop and not obeys:
        signal.raise_signal(stop.signum)


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Undo what the block does to the handlers of SIGINT and SIGTERM, as libraries that are started there do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
