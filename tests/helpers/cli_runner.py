"""Runs poscli's command line, mostly inside the test's process, because importing torch takes seconds per process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from poscli.cli import command_tree, main
from poscli.runs.run import Run, list_runs

ROOT = Path(__file__).parents[2]
COMMANDS = [*command_tree().commands]
LS = ["encodings", "layouts", "tasks", "corpora", "tokenizers", "protocols", "baselines", "runs", "suites"]
LENGTH = 32  # tokens of a training window
NANO = ("--preset", "nano", "--length", LENGTH, "--batch", 4, "--tokens", "4k")  # 31 steps: attention has an effect
ALIBI = ("train", "--enc", "alibi", *NANO)
# A suite of four short runs.
SUITE = """
title = "Tiny"
encodings = ["none", "rope"]
seeds = [0, 1]
[train]
preset = "nano"
length = 32
batch = 4
tokens = 2_560
[extrapolate]
max_len = 64
tokens = 128
stride = 16
"""
# Characters that a terminal obeys or does not show, apart from the end of a line.
UNSEEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
SHORT = ("--max-len", 4 * LENGTH, "--tokens", 256, "--stride", 16)
BRIEF = ("--max-len", 2 * LENGTH, "--tokens", 128, "--stride", 16)  # where no test asks for numbers


@dataclass(frozen=True)
class Result:
    """The exit code of a command and the text of its two streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document on stdout. Text beside it, NaN and Infinity are errors."""
        return json.loads(self.out, parse_constant=_refuse)


def cli(*arguments: object) -> Result:
    """Run `poscli ARGUMENTS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["poscli", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            return Result(end.code, out.getvalue(), err.getvalue())
    raise AssertionError("main always exits")


def environment(**changes: str) -> dict[str, str]:
    """The environment of a subprocess: one thread, and no variable that changes how the output looks."""
    looks = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "POSCLI_QUIET", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in looks}
    return kept | {"OMP_NUM_THREADS": "1"} | changes


# Runs commands one after the other, because importing torch costs more than they do.
ONE_BY_ONE = """
import contextlib, io, json, sys
from unittest import mock

import pytest
from poscli.cli import main
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["poscli", *command])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            print(json.dumps([end.code, out.getvalue(), err.getvalue()]), file=sys.__stdout__)
"""


def in_new_process(folder: Path, commands: Iterable[Iterable[object]], path: str) -> list[Result]:
    """What commands give in one new process, in a folder, which finds its packages on this path."""
    words = json.dumps([[*map(str, command)] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, words],
        cwd=folder,
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [Result(*json.loads(line)) for line in done.stdout.splitlines()]


def in_a_copy(folder: Path, commands: Iterable[Iterable[object]]) -> list[Any]:
    """The exit code and the document of each command, with --json, of the copy of poscli in a folder."""
    results = in_new_process(folder, [[*command, "--json"] for command in commands], str(folder))
    return [{"code": each.code, "out": json.loads(each.out or "null")} for each in results]


def in_own_process(function: Callable[..., Any], *arguments: object) -> Any:
    """What a function of a file of tests returns in a new process; arguments and result as JSON.

    For peaks of memory: what earlier tests have freed, the allocator would use again, and the peak would not rise.
    """
    module, name = function.__module__, function.__name__
    code = f"import json, sys, {module}; print(json.dumps({module}.{name}(*json.loads(sys.argv[1]))))"
    path = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(PYTHONPATH=path), check=True)
    return json.loads(done.stdout.splitlines()[-1])


def document(*arguments: object) -> Any:
    """Run a command with --json: it must succeed and print one document, without colours."""
    result = cli(*arguments, "--json")
    assert result.code == 0, result.err
    assert result.out.endswith("\n")
    assert_plain(result)
    return result.json


def assert_plain(result: Result) -> None:
    """Fail if a stream holds an escape sequence."""
    assert "\x1b" not in result.out + result.err


def run_of(out: Path | str, encoding: str) -> Run:
    """The only run of an encoding in a results folder."""
    (run,) = [run for run in list_runs(Path(out) / "runs") if run.config.encoding == encoding]
    return run


def errors(result: Result) -> list[str]:
    """The lines of stderr that report an error."""
    return [line for line in result.err.splitlines() if line.startswith("error: ")]


def assert_refused(arguments: tuple[object, ...], code: int, words: str | tuple[str, ...], notes: int = 0) -> None:
    """A command must fail with one error on stderr, the same error in a document under --json, and write nothing."""
    assert not Path("pyproject.toml").exists(), "the checkout is everyone's: take a folder of your own (in_tmp)"
    before = snapshot(Path.cwd())
    result = cli(*arguments)
    assert result.code == code, result.err
    (line,) = errors(result)
    assert len(result.err.splitlines()) <= 1 + notes, result.err
    assert result.err.endswith(line + "\n")
    assert "Traceback" not in result.err
    assert "a bug of poscli" not in result.err
    for word in words if isinstance(words, tuple) else (words,):
        assert word in line
    assert result.out == ""
    first = len(arguments) if arguments[0] == "ls" else 1
    document = cli(*arguments[:first], "--json", *arguments[first:])
    assert document.code == code
    assert set(document.json) == {"error", "exit_code"}
    assert document.json["exit_code"] == code
    assert f"error: {' '.join(document.json['error'].split())}" == errors(document)[0] == line
    assert snapshot(Path.cwd()) == before


def ask_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands ask before work of any length, without its estimate, which differs from one call to the next."""
    monkeypatch.setattr("poscli.cli.plan.ASKED_FROM", -1.0)
    monkeypatch.setattr("poscli.cli.plan.duration", lambda seconds: "long")


def trained(base: Path) -> Path:
    """A results folder with three runs, trained and evaluated once per test session. Tests must not change it."""
    out = base / "trained"
    if not out.exists():
        encodings = [word for name in ("alibi", "learned", "sinusoidal") for word in ("--enc", name)]
        for command in (("train", *encodings, *NANO), ("extrapolate", *SHORT)):
            result = cli(*command, "--out", out)
            assert result.code == 0, result.err
    return out


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path under a folder with its size and time of change, but for locks and what Python compiles on import."""
    stats = {
        str(path.relative_to(folder)): path.lstat() for path in folder.rglob("*") if "__pycache__" not in path.parts
    }
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items() if not name.endswith(".lock")}


def assert_same_runs(first: Path, second: Path) -> None:
    """Two folders of runs must hold the same ones, with the bits of the same weights and the same evaluations."""
    import pandas as pd
    import torch

    from poscli.model.initialise import weights_of
    from poscli.model.load import load_trained

    others = {run.id: run for run in list_runs(second)}
    assert {run.id for run in list_runs(first)} == others.keys()
    for run in list_runs(first):
        both = (run, others[run.id])
        weights, expected = (weights_of(load_trained(each, torch.device("cpu"))) for each in both)
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
        tables = [
            pd.read_csv(each.folder / "eval.csv").drop(columns=["seconds", "tokens_per_s", "peak_mb"]) for each in both
        ]
        pd.testing.assert_frame_equal(*tables, check_exact=True)


def forget(folder: Path) -> None:
    """Let the modules in a folder be imported anew."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")
