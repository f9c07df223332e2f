"""Runs poscli's command line, mostly inside the test's process: importing torch once per command costs seconds each."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from poscli.cli import main

ROOT = Path(__file__).parent.parent
LENGTH = 32
NANO = ("--preset", "nano", "--length", LENGTH, "--batch", 4, "--tokens", "4k")  # 31 steps: attention has an effect
SHORT = ("--max-len", 4 * LENGTH, "--tokens", 256, "--stride", 16)


@dataclass(frozen=True)
class Result:
    """What a shell sees of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout, read strictly: anything beside it, NaN and Infinity are failures."""
        return json.loads(self.out, parse_constant=_refuse)


def cli(*arguments: object) -> Result:
    """`poscli ARGUMENTS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["poscli", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            return Result(end.code, out.getvalue(), err.getvalue())
    raise AssertionError("main always exits")


def environment(**changes: str) -> dict[str, str]:
    """Of a subprocess: one thread, since the tests share the cores, and nothing that changes the output's looks."""
    looks = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "POSCLI_QUIET", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in looks}
    return kept | {"OMP_NUM_THREADS": "1"} | changes


def shell(*arguments: object, **changes: str) -> Result:
    """`poscli ARGUMENTS` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "poscli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(**changes),
    )
    return Result(done.returncode, done.stdout, done.stderr)


def trained(base: Path) -> Path:
    """A results folder with three runs, trained and evaluated once per test session; not to be changed."""
    out = base / "trained"
    if not out.exists():
        encodings = [word for name in ("alibi", "learned", "sinusoidal") for word in ("--enc", name)]
        for command in (("train", *encodings, *NANO), ("extrapolate", *SHORT)):
            result = cli(*command, "--out", out)
            assert result.code == 0, result.err
    return out


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path under a folder with its size and time."""
    stats = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("*")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items() if not name.endswith(".lock")}


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")
