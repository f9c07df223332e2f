"""Signals at any time after Python has started: one line, the right exit code, and no traceback."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runner import NANO, environment
from torture.pipeline import arguments
from torture.processes import command
from toys import first

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
ENDS = r"error: (interrupted; repeat the command: it goes on .*|stopped at .*; the same command goes on .*)"
# Sends a signal to its own process at the first import of a module, which happens at the same place on every machine.
SITE = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SIGNAL_AT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
sys.meta_path.insert(0, Finder())
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_interrupted(done: subprocess.CompletedProcess[str], signum: int) -> None:
    assert done.returncode == CODES[signal.Signals(signum)], done.stderr
    assert re.fullmatch(ENDS, done.stderr.splitlines()[-1]), done.stderr
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("module", "signum", "arguments"),
    first(
        3,
        [
            ("poscli.system.streams", signal.SIGINT, ("--help",)),
            ("typer", signal.SIGTERM, ("ls", "tasks")),
            ("torch._C", signal.SIGINT, ("train", "--enc", "alibi", *NANO)),
            ("poscli.cli.commands.train", signal.SIGINT, ("ls", "tasks", "--json")),
            ("poscli.report.catalogue", signal.SIGTERM, ("ls", "encodings", "--json")),
            ("poscli.training.trainer", signal.SIGTERM, ("train", "--enc", "alibi", *NANO)),
        ],
    ),
)
def test_a_signal_while_modules_are_imported(
    folder: Path, module: str, signum: int, arguments: tuple[object, ...]
) -> None:
    (folder / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "poscli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(SIGNAL_AT=module, SIGNAL=str(int(signum)), PYTHONPATH=path),
    )
    assert_interrupted(done, signum)
    assert ('"exit_code"' in done.stdout) == ("--json" in arguments)


TWICE = """
import os, signal
from poscli.system import signals
signals.watch()
try:
    os.kill(os.getpid(), signal.SIGINT)
except signals.Interruption:
    os.kill(os.getpid(), signal.SIGTERM)
    print("it went on")
"""


def test_a_second_signal_ends_the_process_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, env=environment())
    assert_interrupted(done, signal.SIGTERM)
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_signal_at_a_random_time(seed: int) -> None:
    draw = random.Random(seed)
    signum = draw.choice(list(CODES))
    arguments = draw.choice([("train", "--enc", "alibi", *NANO), ("ls", "encodings"), ("ls", "encodings", "--json")])
    process = subprocess.Popen(
        [sys.executable, "-m", "poscli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    time.sleep(draw.uniform(0.02, 3))
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert "Exception ignored" not in err
    if process.returncode == -signum:  # before Python has run a line of poscli; a shell shows the same code
        assert "/poscli/" not in err
    elif process.returncode:
        assert_interrupted(subprocess.CompletedProcess((), process.returncode, out, err), signum)


def _signal_at_rename(number: int, counted: Path) -> Callable[[], None]:
    """What a forked process does first: from then on it gets SIGTERM just before it gives its n-th file its name."""

    def prepare() -> None:
        rename, count = os.replace, itertools.count(1)

        def replace(*arguments: object) -> None:
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGTERM)
            counted.write_text(f"{counted.read_text() if counted.exists() else ''}.")
            rename(*arguments)  # type: ignore[arg-type]

        os.replace = replace  # type: ignore[assignment]

    return prepare


def _arguments(stage: str, out: Path) -> tuple[object, ...]:
    more = ("--enc", "none") if stage == "train" else ()
    return (*arguments(stage, out), *more)


@pytest.mark.parametrize(
    ("stage", "share"), first(1, [("train", 0.5), ("train", 1.0), ("extrapolate", 1.0), ("report", 1.0)])
)
def test_a_signal_before_the_last_file_is_written_never_ends_with_success(
    folder: Path, stage: str, share: float
) -> None:
    """Also where the step that it was to stop is the last one of a run: the next run must not begin."""
    out, counted = folder / "results", folder / "counted"
    for earlier in ("train", "extrapolate", "report")[: ("train", "extrapolate", "report").index(stage)]:
        assert command(*_arguments(earlier, out)).code == 0
    before = shutil.copytree(out, folder / "before") if out.exists() else None
    assert command(*_arguments(stage, out), prepare=_signal_at_rename(0, counted)).code == 0
    last = round(len(counted.read_text()) * share)
    shutil.rmtree(out)
    if before:
        shutil.copytree(before, out)
    ended = command(*_arguments(stage, out), prepare=_signal_at_rename(last, folder / "again"))
    assert ended.code == 143, ended.err
    assert ended.out == ""
    assert re.fullmatch(ENDS, ended.err.splitlines()[-1]), ended.err
