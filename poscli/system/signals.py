"""How a process ends by Ctrl-C or SIGTERM: in one line instead of a traceback, and with the state of a job saved.

The program calls `watch` before it imports anything else, because its imports take seconds; so this file itself imports
nothing that takes time to load. A job that can save its state works in a block of `stoppable`, in which a signal stops
it between two steps, or soon in a long step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

MESSAGE = "interrupted; repeat the command: it goes on from what it has saved"
# While one of these files is on the stack, a temporary file may have to be removed.
TIDIES_UP = f"poscli{os.sep}system{os.sep}files.py"
PATIENCE_SECONDS = 3.0  # how long a step may go on after a signal before it is abandoned


class Interruption(BaseException):
    """A signal asks the program to end. It runs every `finally` on its way, and no `except Exception` stops it."""

    def __init__(self, signum: int) -> None:
        super().__init__(MESSAGE)
        self.exit_code = 128 + signum


class _Unraisable(Protocol):
    exc_value: BaseException | None


_received = 0  # the signal that has asked the program to end
_reported = False  # whether the user has been told
_stdout = 1  # the descriptor of stdout


def watch() -> None:
    """Turn SIGINT and SIGTERM into an `Interruption`; during imports, and at a second signal, end at once instead.

    A process forked from one whose command has ended begins anew.
    """
    global _received, _reported
    _received, _reported = 0, False
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _handle)
    sys.unraisablehook = _unraisable


def pending_exit_code() -> int:
    """The exit code for the signal that has asked this process to end, or 0; an error may be its consequence."""
    return 128 + _received if _received else 0


def end_silently() -> None:
    """Take note that the user has been told how the command ended: from now on a signal ends it without a word."""
    global _reported
    _reported = True


def set_stdout(descriptor: int) -> None:
    """Take note of the descriptor that stdout has from now on."""
    global _stdout
    _stdout = descriptor


def leave(exit_code: int) -> None:
    """Say that the command was interrupted, unless that has been said, and end the process without cleaning up."""
    if not _reported:
        _write(2, f"error: {MESSAGE}\n")
        if "--json" in sys.argv:
            _write(_stdout, f'{{"error": "{MESSAGE}", "exit_code": {exit_code}}}\n')
    os._exit(exit_code)


def _handle(signum: int, frame: FrameType | None) -> None:
    global _received
    if _reported or _received or _importing(frame):
        leave(128 + signum)
    _received = signum
    raise Interruption(signum)


def _importing(frame: FrameType | None) -> bool:
    """Whether the program is importing, with nothing to tidy up.

    Extension modules that are interrupted in their initialisation print tracebacks, or forget the exception.
    """
    importing = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name.endswith(TIDIES_UP):
            return False
        importing = importing or name.startswith("<frozen importlib")
        frame = frame.f_back
    return importing


def _unraisable(unraisable: _Unraisable) -> None:
    """End at once if an `Interruption` was raised where Python can only print and forget it, as in a finalizer."""
    if isinstance(unraisable.exc_value, Interruption):
        leave(unraisable.exc_value.exit_code)
    sys.__unraisablehook__(unraisable)  # type: ignore[arg-type]


def _write(stream: int, text: str) -> None:
    with contextlib.suppress(OSError):  # closed or full: the exit code says it, too
        os.write(stream, text.encode())


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
