"""Standard output and error that cannot be written to, in this process; whole commands are in tests/cli."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from poscli.system import signals
from poscli.system.streams import OutputError, guard, settle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")


@contextmanager
def guarded(*, closed: tuple[int, ...] = (), encoding: str = "utf-8", **files: str) -> Iterator[None]:
    """A block in which the streams of this process are guarded. All is as before after it.

    `closed` are descriptors that its caller has closed, and `files` what stdout and stderr lead to.
    """
    kept, usual = [os.dup(number) for number in range(3)], (sys.stdout, sys.stderr)
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            if name in files:
                file = os.open(files[name], os.O_WRONLY)
                os.dup2(file, number)
                os.close(file)
            stream = open(number, "w", closefd=False, encoding=encoding)  # noqa: SIM115 - the descriptor stays
            setattr(sys, name, None if number in closed else stream)
        for number in closed:
            os.close(number)
        guard()
        try:
            yield
        finally:
            settle()
            sys.stdout.close()
    finally:
        sys.stdout, sys.stderr = usual
        signals.set_stdout(1)
        for number, copy in enumerate(kept):
            os.dup2(copy, number)
            os.close(copy)


def test_stdout_is_for_what_python_prints_and_takes_every_character(capfd: pytest.CaptureFixture[str]) -> None:
    with guarded(encoding="ascii"):
        print("a result \u00e9", flush=True)
        os.write(1, b"from C, ")
        print("a note", file=sys.stderr, flush=True)
        assert (sys.stdout.write(""), sys.stdout.write("four"), sys.stdout.encoding) == (0, 4, "ascii")
    assert capfd.readouterr() == ("a result \\xe9\nfour", "from C, a note\n")


def test_a_full_disk_is_an_error_on_stdout_only() -> None:
    with guarded(stdout="/dev/full", stderr="/dev/full"):
        assert sys.stderr.write("a note") == 6
        sys.stderr.flush()
        sys.stdout.write("a result")
        with pytest.raises(OutputError, match=r"^cannot write to stdout: No space left on device$"):
            sys.stdout.flush()
        settle()
        sys.stdout.flush()  # nothing is left that cannot be written


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_descriptors_that_the_caller_has_closed_are_opened(closed: tuple[int, ...]) -> None:
    """Input is empty, errors go nowhere, and a result cannot be written, which is an error only if there is one."""
    with guarded(closed=closed):
        if 0 in closed:
            assert os.read(0, 1) == b""
        sys.stderr.write("a note")
        sys.stderr.flush()
        if 2 in closed:
            os.write(2, b"to nowhere")
        if 1 in closed:
            sys.stdout.write("a result")
            with pytest.raises(OutputError, match="Bad file descriptor"):
                sys.stdout.flush()
