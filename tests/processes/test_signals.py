"""Signals at any time after Python has started: one line, the right exit code, no traceback; and what is imported."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from cli_runner import COMMANDS, LENGTH, LS, NANO, cli, document, environment, run_of
from torture.pipeline import arguments
from torture.processes import command
from toys import first

from poscli.system import signals

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
ENDS = r"error: (interrupted; repeat the command: it goes on .*|stopped at .*; the same command goes on .*)"
TRAIN = ("train", "--enc", "alibi", *NANO)
pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"), pytest.mark.usefixtures("here")]


def started(*words: object, **changes: str) -> subprocess.Popen[str]:
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "poscli", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**changes),
    )


def assert_interrupted(code: int, err: str, signum: int) -> None:
    assert code == CODES[signal.Signals(signum)], err
    assert re.fullmatch(ENDS, err.splitlines()[-1]), err
    assert err.count("error: ") == 1
    assert "Traceback" not in err
    assert "Exception ignored" not in err


# ---- imports

HEAVY = ["torch", "numpy", "pandas", "matplotlib", "scipy", "pyarrow", "datasets", "transformers"]
LAZY = """
import contextlib, io, json, sys
from poscli.cli import main
ends = {}
for arguments in json.loads(sys.argv.pop()):
    sys.argv = ["poscli", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            ends[" ".join(arguments)] = [end.code, [name for name in %r if name in sys.modules]]
print(json.dumps(ends))
"""


def test_help_and_mistyped_commands_import_nothing_heavy() -> None:
    helps = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), *(["ls", w, "--help"] for w in LS)]
    wrong = [["frobnicate"], ["train", "--lenght", "3"], ["train"], ["train", "--enc", "alibi", "--tokens", "lots"]]
    code = [sys.executable, "-c", LAZY % HEAVY, json.dumps(helps + wrong)]
    done = subprocess.run(code, capture_output=True, text=True, check=True, env=environment())
    expected = {" ".join(a): [0, []] for a in helps} | {" ".join(a): [2, []] for a in wrong}
    assert json.loads(done.stdout) == expected


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


@pytest.mark.parametrize(
    ("module", "signum", "words"),
    first(
        3,
        [
            ("poscli.system.streams", signal.SIGINT, ("--help",)),
            ("typer", signal.SIGTERM, ("ls", "tasks")),
            ("torch._C", signal.SIGINT, (*TRAIN, "--json")),
            ("poscli.cli.commands.train", signal.SIGINT, ("ls", "tasks", "--json")),
            ("poscli.report.catalogue", signal.SIGTERM, ("ls", "encodings", "--json")),
            ("poscli.training.trainer", signal.SIGTERM, TRAIN),
        ],
    ),
)
def test_a_signal_while_modules_are_imported(here: Path, module: str, signum: int, words: tuple[object, ...]) -> None:
    (here / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    process = started(*words, SIGNAL_AT=module, SIGNAL=str(int(signum)), PYTHONPATH=path)
    out, err = process.communicate(timeout=60)
    assert_interrupted(process.returncode, err, signum)
    assert ('"exit_code"' in out) == ("--json" in words)


# ---- training


@pytest.mark.parametrize("signum", first(1, list(CODES)))
def test_signals_stop_training_and_the_same_command_goes_on(signum: int) -> None:
    shape = ("--preset", "nano", "--layers", 1, "--length", LENGTH, "--batch", 1)
    words = ("train", "--enc", "none", *shape, "--tokens", 390 * LENGTH)  # a second or more
    process, deadline = started(*words), time.monotonic() + 60
    while not any('"training"' in path.read_text() for path in Path("results/runs").glob("*/status.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert_interrupted(process.returncode, err, signum)
    assert out == ""
    status = run_of("results", "none").status()
    assert status["state"] == "interrupted"
    assert 0 < status["step"] < 390
    assert err.endswith(f"error: stopped at step {status['step']} of 390; the same command goes on from there\n")
    (row,) = document("ls", "runs")
    assert (row["state"], row["step"]) == ("interrupted", status["step"])
    result = cli(*words, "--json")
    assert result.code == 0
    assert f"going on from step {status['step']} of 390" in result.err
    assert result.json[0]["status"] == "complete"
    assert pd.read_csv(run_of("results", "none").folder / "train.csv")["step"].is_monotonic_increasing


# ---- in this process


class Left(BaseException):
    """The process would have ended here."""


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The codes with which this process, which watches for signals, would have ended; an exception ends it instead."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Left

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with signals.kept_handlers():
        signals.watch()
        yield codes
        signals.watch()  # no signal has come, and nothing has been said


@pytest.mark.parametrize("words", [["poscli", "ls"], ["poscli", "ls", "--json"]], ids=len)
def test_the_first_signal_is_an_exception_and_the_second_ends_the_process(
    words: list[str], left: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", words)
    assert signals.pending_exit_code() == 0
    with pytest.raises(signals.Interruption) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert (caught.value.exit_code, signals.pending_exit_code(), left) == (143, 143, [])
    with pytest.raises(Left):
        signal.raise_signal(signal.SIGINT)
    told = capfd.readouterr()
    assert (left, told.err) == ([130], f"error: {signals.MESSAGE}\n")
    document = {"error": signals.MESSAGE, "exit_code": 130}
    assert [json.loads(line) for line in told.out.splitlines()] == [document] * ("--json" in words)
    signals.end_silently()
    with pytest.raises(Left):
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr() == ("", "")
    signals.watch()
    assert signals.pending_exit_code() == 0


def test_a_signal_during_an_import_ends_the_process_unless_a_file_is_being_written(
    here: Path, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(here)
    (here / "imports.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    with pytest.raises(Left):
        importlib.import_module("imports")
    assert left == [130]
    (here / "writes.py").write_text("from poscli.system import files\nfiles.write_atomic('written', 'text')\n")
    monkeypatch.setattr(os, "fsync", lambda handle: signal.raise_signal(signal.SIGINT))
    with pytest.raises(signals.Interruption):
        importlib.import_module("writes")
    assert left == [130]
    assert not [path for path in here.iterdir() if path.suffix == ".tmp"]


def test_a_job_is_asked_to_stop_and_the_signal_counts_after_it_unless_the_job_obeys(
    left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for obeys in (True, False):
        with contextlib.ExitStack() as after:
            if not obeys:
                after.enter_context(pytest.raises(signals.Interruption))
            with signals.stoppable(obeys=obeys) as stop:
                assert not stop
                signal.raise_signal(signal.SIGTERM)
                assert (bool(stop), stop.signum) == (True, signal.SIGTERM)
                seconds, interval = signal.getitimer(signal.ITIMER_REAL)
                assert (0 < seconds <= signals.PATIENCE_SECONDS, interval) == (True, pytest.approx(0.1))
                with pytest.raises(KeyboardInterrupt):  # it does not wait for the end of the step
                    signal.raise_signal(signal.SIGINT)
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    monkeypatch.setattr(signals, "PATIENCE_SECONDS", 0.02)
    with signals.stoppable(obeys=True) as stop:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)  # a block that must not be abandoned
        with pytest.raises(signals.Abandoned), stop.abandonable():
            time.sleep(60)
        time.sleep(0.15)
    assert left == []


# ---- any other time


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_signal_at_a_random_time(seed: int) -> None:
    draw = random.Random(seed)
    signum = draw.choice(list(CODES))
    process = started(*draw.choice([TRAIN, ("ls", "encodings"), ("ls", "encodings", "--json")]))
    time.sleep(draw.uniform(0.02, 3))
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert "Exception ignored" not in err
    if process.returncode == -signum:  # before Python has run a line of poscli; a shell shows the same code
        assert "/poscli/" not in err
    elif process.returncode:
        assert_interrupted(process.returncode, err, signum)


def _signal_at_rename(number: int, counted: Path) -> Callable[[], None]:
    """What a forked process does first: from then on it gets SIGTERM just before it gives its n-th file its name."""

    def prepare() -> None:
        rename, count = os.replace, itertools.count(1)

        def replace(*paths: object) -> None:
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGTERM)
            counted.write_text(f"{counted.read_text() if counted.exists() else ''}.")
            rename(*paths)  # type: ignore[arg-type]

        os.replace = replace  # type: ignore[assignment]

    return prepare


@pytest.mark.parametrize(
    ("stage", "share"), first(1, [("train", 0.5), ("train", 1.0), ("extrapolate", 1.0), ("report", 1.0)])
)
def test_a_signal_before_the_last_file_is_written_never_ends_with_success(here: Path, stage: str, share: float) -> None:
    """Also where the step that it was to stop is the last one of a run: the next run must not begin."""

    def of(stage: str) -> tuple[object, ...]:
        return (*arguments(stage, out), *(("--enc", "none") if stage == "train" else ()))

    out, counted, stages = here / "results", here / "counted", ("train", "extrapolate", "report")
    for earlier in stages[: stages.index(stage)]:
        assert command(*of(earlier)).code == 0
    before = shutil.copytree(out, here / "before") if out.exists() else None
    assert command(*of(stage), prepare=_signal_at_rename(0, counted)).code == 0
    last = round(len(counted.read_text()) * share)
    shutil.rmtree(out)
    if before:
        shutil.copytree(before, out)
    ended = command(*of(stage), prepare=_signal_at_rename(last, here / "again"))
    assert ended.out == ""
    assert_interrupted(ended.code, ended.err, signal.SIGTERM)
