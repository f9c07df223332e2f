"""Ctrl-C and SIGTERM from the first moment on, in one line instead of a traceback.

The program watches for signals before it imports anything else, because its imports take seconds. This file itself
needs nothing that takes time to load. `signals.stoppable` takes over while a job can save its state.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Protocol

MESSAGE = "interrupted; repeat the command: it goes on from what it has saved"
# While one of these files is on the stack, a temporary file may have to be removed.
TIDIES_UP = f"poscli{os.sep}system{os.sep}files.py"


class Interruption(BaseException):
    """A signal asks the program to end. It runs every `finally` on its way, and no `except Exception` stops it."""

    def __init__(self, signum: int) -> None:
        super().__init__(MESSAGE)
        self.exit_code = 128 + signum


class _Unraisable(Protocol):
    exc_value: BaseException | None
    exc_traceback: TracebackType | None


_asked = 0  # the signal that has asked the program to end
_told = False  # whether the user has been told
_stdout = 1  # the descriptor of stdout


def watch() -> None:
    """Turn SIGINT and SIGTERM into an `Interruption`; during imports, and at a second signal, end at once instead.

    A process forked from one whose command has ended begins anew.
    """
    global _asked, _told
    _asked, _told = 0, False
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _handle)
    sys.unraisablehook = _unraisable


def asked() -> int:
    """The exit code for the signal that has asked this process to end, or 0; an error may be its consequence."""
    return 128 + _asked if _asked else 0


def told() -> None:
    """Take note that the user has been told how the command ended: from now on a signal ends it without a word."""
    global _told
    _told = True


def stdout_is(descriptor: int) -> None:
    """Take note of the descriptor that stdout has from now on."""
    global _stdout
    _stdout = descriptor


def leave(exit_code: int) -> None:
    """Say that the command was interrupted, unless that has been said, and end the process without cleaning up."""
    if not _told:
        _write(2, f"error: {MESSAGE}\n")
        if "--json" in sys.argv:
            _write(_stdout, f'{{"error": "{MESSAGE}", "exit_code": {exit_code}}}\n')
    os._exit(exit_code)


def _handle(signum: int, frame: FrameType | None) -> None:
    global _asked
    if _told or _asked or _importing(frame):
        leave(128 + signum)
    _asked = signum
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
