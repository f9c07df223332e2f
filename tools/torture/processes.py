"""Commands of poscli in forked processes: real ones, which can be killed, but which need not import torch anew."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import IO
from unittest import mock

from poscli.__main__ import main

LONGEST_SECONDS = 60.0  # a command that takes longer hangs
DIED, HUNG = -int(signal.SIGKILL), -1000  # codes of an Ended


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or the negative number of the signal that killed it, and its output."""

    code: int
    out: str
    err: str

    def faults(self, *allowed: int) -> list[str]:
        """What is wrong with this end: a code that is not allowed, a traceback, a bug admitted."""
        last = self.err.strip().splitlines()[-1:] or [""]
        found = [] if self.code in allowed else [f"code {self.code}, not {allowed}: {last[0]}"]
        found += ["a traceback"] if "Traceback" in self.err else []
        return found + (["says 'a bug of poscli': " + last[0]] if "a bug of poscli" in self.err else [])


class Started:
    """A command in a forked process."""

    def __init__(self, arguments: tuple[object, ...], prepare: Callable[[], object] = lambda: None) -> None:
        self.files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - read when the process has ended
        self.pid = os.fork()
        if self.pid == 0:
            _run(arguments, prepare, [file.fileno() for file in self.files])

    def signal(self, signum: int) -> None:
        """Send a signal, unless the process has ended."""
        os.kill(self.pid, signum)  # it is a zombie until it is waited for, so that its number is not reused

    def wait(self, seconds: float = LONGEST_SECONDS) -> Ended:
        """Wait for the end; after `seconds` the process is killed, and its code is HUNG."""
        deadline, hung = time.monotonic() + seconds, False
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline and not hung:
                hung = True
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.002)
        code = HUNG if hung else os.waitstatus_to_exitcode(status)
        return Ended(code, *(_text(file) for file in self.files))


def command(*arguments: object, prepare: Callable[[], object] = lambda: None) -> Ended:
    """Run a command to its end in a forked process; `prepare` is called there first."""
    return Started(arguments, prepare).wait()


def steady_clock() -> None:
    """Let a step, with its two looks at the clock, take 9 seconds: checkpoints come at the same steps every time."""
    from poscli.training import trainer

    ticks = count(0.0, 4.5)
    trainer.time = SimpleNamespace(monotonic=lambda: next(ticks))  # type: ignore[assignment]


def _run(arguments: tuple[object, ...], prepare: Callable[[], object], streams: list[int]) -> None:
    """Become the command; never returns."""
    code = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        with mock.patch.object(sys, "argv", ["poscli", *map(str, arguments)]):
            prepare()
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - a traceback is a fault, which the parent reads
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _text(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")
