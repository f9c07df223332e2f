"""Standard output and error that fail in a known way: full disks, closed pipes, missing descriptors.

What cannot be written to stdout is the result of a command, so the command fails. What cannot be written to stderr is
only progress and notes, so the command goes on; its exit code still tells how it ended.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

from poscli.system import signals
from poscli.system.errors import PoscliError

STDIN, STDOUT, STDERR = 0, 1, 2


class OutputError(PoscliError):
    """The result of a command cannot be written to stdout."""


class ReaderLeft(Exception):
    """The reader of stdout has closed it, as `head` does after its last line."""


class Guarded:
    """A text stream that hands an OSError of writing to a function instead of raising it."""

    def __init__(self, stream: TextIO, failed: Callable[[OSError], None]) -> None:
        self._stream, self._failed = stream, failed

    def write(self, text: str) -> int:
        """Write a text; returns its length. An empty one, by which some libraries probe a stream, cannot fail."""
        try:
            return self._stream.write(text) if text != "" else 0
        except OSError as error:
            self._failed(error)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard() -> None:
    """Replace sys.stdout and sys.stderr by guarded streams.

    Afterwards, writing to stdout raises OutputError or ReaderLeft, and writing to stderr never fails. Characters that a
    stream's encoding lacks are written as escapes. What libraries in C and other programs write to descriptor 1 goes to
    stderr, because stdout is for the result of the command.
    """
    _open_missing()
    _keep_to_python()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, Guarded(sys.stdout, _refuse))
    sys.stderr = cast(TextIO, Guarded(sys.stderr, lambda error: _discard(STDERR)))


def settle() -> None:
    """Discard what stdout holds but cannot write: Python would fail to flush it when it ends, with a traceback."""
    try:
        sys.stdout.flush()
    except (OutputError, ReaderLeft):
        _discard(sys.stdout.fileno())


def _discard(descriptor: int) -> None:
    """Send what a stream still holds, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _refuse(error: OSError) -> None:
    if error.errno == errno.EPIPE:
        raise ReaderLeft from error
    raise OutputError(f"cannot write to stdout: {error.strerror or error}") from error


def _keep_to_python() -> None:
    """Give sys.stdout a descriptor of its own, and let descriptor 1 be stderr."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    descriptor = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    sys.stdout = open(descriptor, "w", encoding=encoding)  # noqa: SIM115, PTH123 - for as long as the process
    signals.set_stdout(descriptor)


def _open_missing() -> None:
    """Open the standard descriptors that the caller has closed; else the next file opened would take their number.

    stdout cannot be written then either, which is an error only of commands that print something.
    """
    for descriptor, mode in ((STDIN, os.O_RDONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(STDOUT, "w", closefd=False)  # noqa: SIM115 - a descriptor, for as long as the process
    if sys.stderr is None:
        sys.stderr = open(STDERR, "w", closefd=False)  # noqa: SIM115
