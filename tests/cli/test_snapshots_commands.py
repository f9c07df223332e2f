"""Walks through the commands with options of every kind: all that they say, and all that they write."""

from __future__ import annotations

import inspect
import io
import json
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli_runner import COMMANDS, LS, Result, cli, errors
from cli_runner import snapshot as files_of

from poscli.cli import command_tree
from poscli.native import library

Snapshot = Callable[..., None]
OF_AN_OPTION = ("default", "show_default", "required", "multiple", "help")
NANO = ("--preset", "nano", "--batch", 4, "--tokens", "2k")
REFUSED = Path(__file__).with_name("refused_commands.txt")  # command lines, one a line
SUITE = """
title = "A suite of two texts"
description = "what does a walk see?"
encodings = ["rope+window(16)", "learned"]
seeds = [0, 3]
[train]
preset = "nano"
length = 32
batch = 4
tokens = 1_280
[extrapolate]
max_len = "2x"
tokens = 256
stride = 8
[[part]]
train = {corpus = "text:notes"}
[[part]]
train = {corpus = "text:notes/0*.txt", recipe = {clip = 0.5}}
extrapolate = {lengths = [1, 1.5]}
"""


# Or of this process: plugins are all that other tests have loaded.
OF_THIS_MACHINE = {
    "commit", "cores", "cpu", "cpu_bfloat16", "engine", "engine_reason", "fingerprint", "machine", "peak_mb",
    "platform", "plugins", "poscli", "python", "schema", "seconds", "spent", "threads", "tokens_per_s", "torch",
}  # fmt: skip
# What no two machines or moments say alike, and what stands for it.
MASKS = (
    (re.compile(r"(?<=it is kept in )\S+"), "CACHE"),
    (re.compile(r"(?<= on )(?:text:HERE|\.\.\.\S*)(?=/notes)"), "PLACE"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "SHA"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z"), "DATE"),
    (re.compile(r"\d+(?::\d\d)+(?=\s)|(?<=  )\d[\d.]*[kM](?=  +(ok|oom|unsupported)\b| *$)", re.MULTILINE), "#"),
    (re.compile(r"(?:\d[\d,.]*k?|<\d+) ?(?:ms|s|min|h|tokens/s|GB|MB|KiB|MiB|GiB)\b"), "#"),
    (re.compile(r"^! note: .* runs on the engine .*\n", re.MULTILINE), ""),
    (re.compile(r"(?:\d+\.\d\d times as long as )?the fastest"), "#"),
    (re.compile(r"─+"), "─"),
    (re.compile(r"  +"), "  "),
    (re.compile(r" +$", re.MULTILINE), ""),
    (re.compile(r"(?<=[\]-]  )\d+(?=  (?:ok|oom|unsupported)\b|$)", re.MULTILINE), "#"),  # few tokens/s: a busy machine
)
IDENTITY = re.compile(r"(?<=-)(?:[0-9a-f]{8}|[0-9a-f]{6})\b")
LONG_DECIMAL = re.compile(r"(?<!arXiv:)(?<!\d)-?\d+\.(?:\d{4,}(?:e[-+]?\d+)?|\d+e[-+]?\d+)")
MOST_ROWS = 24  # of a table that is shown whole


class Walk:
    """Runs commands in the current folder, one after the other, and keeps what each has said.

    Names that end in a hash are numbered in the order in which they occur, so that it shows which are the same.
    Numbers with many digits are shortened.
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.hashes: dict[str, str] = {}

    def run(self, *arguments: object) -> Result:
        """Run a command; its streams and a failure's exit code become part of the text."""
        done = cli(*arguments)
        said = _document(json.loads(done.out)) if "--json" in arguments else done.out
        code = f"exit code {done.code}\n" if done.code else ""
        errors = "".join(f"! {line}\n" for line in done.err.splitlines())
        self.parts.append(f"$ poscli {' '.join(map(str, arguments))}\n{code}{said}{errors}")
        return done

    def show(self, *paths: Path) -> None:
        """The names of the files in folders, and what those say that hold text."""
        for path in paths:
            for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
                content = _content(file)
                self.parts.append(f"# {file}\n{content}" if content else f"# {file}")

    @property
    def text(self) -> str:
        """All parts."""
        text = "\n".join(self.parts).replace(str(Path.cwd()), "HERE")
        for pattern, mark in MASKS:
            text = pattern.sub(mark, text)
        text = LONG_DECIMAL.sub(lambda number: _short(float(number[0])), text)
        return IDENTITY.sub(lambda name: self.hashes.setdefault(name[0], f"id{len(self.hashes) + 1}"), text)


def _short(number: float) -> str:
    """A number with the digits that CPUs agree on after a short training."""
    return f"{number:.3f}" if abs(number) < 1 else f"{number:#.3g}"


def _content(file: Path) -> str:
    if file.suffix == ".json":
        return _document(json.loads(file.read_text()))
    if file.suffix == ".csv":
        return _table(pd.read_csv(file))
    if file.suffix == ".parquet":
        return _table(pd.read_parquet(file))
    return file.read_text() if file.suffix in {".toml", ".md", ".py", ".txt"} else ""


def _document(value: Any) -> str:
    """A JSON document: rows with equal keys as a table, all else as it is."""
    if (
        isinstance(value, list)
        and value
        and all(isinstance(row, dict) and row.keys() == value[0].keys() for row in value)
    ):
        return _table(pd.DataFrame(value))
    return json.dumps(_without(value), ensure_ascii=False) + "\n"


def _without(value: Any) -> Any:
    """A document in which what is of this machine is a mark."""
    if isinstance(value, dict):
        return {key: "#" if key in OF_THIS_MACHINE else _without(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each) for each in value[:4]] + ([f"... {len(value)} in all"] if len(value) > 4 else [])
    return value


def _table(table: pd.DataFrame) -> str:
    """A table: what is the same in all rows in one line, then the rows; of many only some, beside sums and means."""
    shown = table.drop(columns=[name for name in table if name in OF_THIS_MACHINE])
    same = [name for name in shown if shown[name].astype(str).nunique() == 1 and len(shown) > 1]
    constant = ", ".join(f"{name}={shown[name].iloc[0]}" for name in same)
    shown = shown.drop(columns=same)
    sums = ""
    if len(shown) > MOST_ROWS:
        sums = f"{len(shown)} rows, sums {shown.select_dtypes(['integer', 'bool']).sum().to_dict()}"
        sums += f", means {shown.select_dtypes('floating').mean().to_dict()}\n"
        shown = pd.concat([shown.head(4), shown.iloc[len(shown) // 2 :].head(2), shown.tail(2)])
    text = io.StringIO()
    shown.to_csv(text, index=False)
    return f"columns {','.join(table)}\nall: {constant}\n{sums}{text.getvalue()}"


@pytest.fixture
def walk(here: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """A walk in a folder with forty small texts."""
    monkeypatch.setenv("COLUMNS", "4000")  # a folded line is folded elsewhere where a time in it is longer
    draw = random.Random(0)
    words = [begin + end for begin in ("ka", "lo", "mi", "ne", "pu") for end in ("n", "ra", "sto", "vel", "x")]
    Path("notes").mkdir()
    for number in range(40):
        Path("notes", f"{number:02}.txt").write_text(" ".join(draw.choices(words, k=800)) + ".\n")
    return Walk()


def test_runs_of_a_text(walk: Walk, snapshot: Snapshot) -> None:
    nano = (*NANO, "--corpus", "text:notes", "--length", 32)
    other = ("--heads", 2, "--width", 32, "--layers", 3, "--memory", 16, "--accumulate", 2, "--set", "matrix_lr=0.02")
    short = ("--tokens", 512, "--stride", 8)
    walk.run("train", "--enc", "alibi", "--enc", "rope", *nano, "--dry-run")
    walk.run("train", "--enc", "alibi", "--enc", "rope", *nano)
    walk.run("train", "--enc", "learned", *nano, "--seed", 1, "--json")
    walk.run("train", "--enc", "kerple-log", *nano, *other, "--set", "warmup=0.2")
    walk.run("extrapolate", "--lengths", "1,1.5,4", *short, "--baseline", "sink(2)+window", "--dry-run")
    sinks = ("--baseline", "sink(2)+window", "--ngram", 3)
    walk.run("extrapolate", "--max-len", "4x", *short, *sinks, "--enc", "alibi", "--enc", "learned")
    after = ("--as", "yarn(factor=4)", "--as", "rope-ntk", "--recalibrate", 1280)
    walk.run("extrapolate", "--lengths", "1,1.5,4", *short, *after, "--enc", "rope", "--json")
    walk.run("extrapolate", "--max-len", 128, "--tokens", 512, "--run", "kerple-log", "--why", "--force")
    walk.run("ls", "runs")
    walk.run("ls", "runs", "--json")
    walk.run("compare", "alibi", "rope")
    walk.run("compare", "alibi", "rope", "--json", "--protocol", "fixed")
    walk.run("report", "--baseline", "rope", "--to", "paper")
    walk.run("generate", "--enc", "rope", "--prompt", "kan lora", "--tokens", 5, "--temperature", 0.0, "--json")
    walk.run("generate", "--run", "kerple-log", "--prompt", "mivel ", "--tokens", 9)
    walk.show(Path("results/runs"))
    walk.run("rm", "--enc", "learned")
    walk.run("rm", "--enc", "learned", "--yes")
    walk.run("rm", "alibi", "--yes", "--json")
    walk.run("ls", "runs")
    snapshot(walk.text, "runs", trained=True)


def test_runs_of_tasks(walk: Walk, snapshot: Snapshot) -> None:
    recall = ("--enc", "rope", "--enc", "t5(buckets=8)")
    walk.run("train", *recall, "--task", "recall", *NANO, "--dry-run", "--json")
    walk.run("train", *recall, "--task", "recall", *NANO)
    walk.run("extrapolate", "--max-len", "4x", "--tokens", 256, *recall)
    walk.run("report")
    walk.run("compare", "rope", "t5(buckets=8)")
    walk.run("train", "--enc", "alibi", "--task", "passkey", *NANO, "--length", 48)
    walk.run("extrapolate", "--lengths", "1,2", "--tokens", "1k", "--enc", "alibi", "--json")
    walk.run("generate", "--enc", "alibi", "--tokens", 8, "--json")
    images = ("--task", "grid", "--corpus", "images?levels=4", "--length", 64)
    walk.run("train", "--enc", "rope-2d", *images, *NANO)
    walk.run("extrapolate", "--max-len", "4x", "--tokens", 512, "--enc", "rope-2d", "--json")
    walk.run("generate", "--enc", "rope-2d", "--rows", 3, "--side", 10, "--image", 2, "--to", "picture.png", "--json")
    for name in ("units.csv", "config.toml", "env.json", "eval.csv"):
        walk.show(*sorted(Path("results/runs").glob(f"*/{name}")))
    snapshot(walk.text, "tasks", trained=True)


def test_a_suite(walk: Walk, snapshot: Snapshot) -> None:
    Path("suites").mkdir()
    Path("suites/two.toml").write_text(SUITE)
    walk.run("ls", "suites")
    walk.run("run", "suites/two.toml", "--dry-run")
    walk.run("run", "suites/two.toml", "--dry-run", "--json", "--workers", 2)
    walk.run("run", "suites/two.toml")
    walk.run("run", "suites/two.toml", "--dry-run", "--yes")
    walk.run("run", "suites/two.toml", "--dry-run", "--force")
    walk.run("report", "--site", "site", "--json")
    walk.show(Path("site"))
    snapshot(walk.text, "suite", trained=True)


@pytest.mark.skipif(library() is None, reason="the lists name the engines of a machine with a compiler")
def test_lists(walk: Walk, snapshot: Snapshot) -> None:
    for what in LS:
        walk.run("ls", what)
        walk.run("ls", what, "--json")
    walk.run("ls", "encodings", "--verbose")
    snapshot(walk.text, "lists")


def test_what_is_refused(walk: Walk, snapshot: Snapshot) -> None:
    """Nothing of it trains or writes: some of it is allowed, and a dry run says what it would do.

    With --json the error is a document on stdout, and the same line on stderr.
    """
    walk.run("train", "--enc", "rope", *NANO, "--corpus", "text:notes", "--length", 32)
    before = files_of(Path.cwd())
    for line in REFUSED.read_text(encoding="utf-8").splitlines():
        dry = ["--dry-run"] if line.startswith(("train", "extrapolate", "run", "advise")) else []
        words = [*shlex.split(line), *dry]
        done = walk.run(*words)
        if done.code and "--json" not in words and words[0] in COMMANDS and words[-1] not in ("--prompt", "ls"):
            again = cli(*words, "--json")
            assert (again.code, errors(again)) == (done.code, errors(done)), words
            assert again.json == {"error": again.json["error"], "exit_code": done.code}
            assert errors(done) == [f"error: {' '.join(again.json['error'].split())}"]
    assert files_of(Path.cwd()) == before
    snapshot(walk.text, "refused")


def test_options(snapshot: Snapshot) -> None:
    """Every option of every command: its names, its type, its default and what its help says."""
    lines = []
    commands: dict[str, Any] = command_tree().commands
    for name, command in sorted(commands.items()):
        parts = getattr(command, "commands", {"": command})
        for part, each in sorted(parts.items()):
            lines.append(f"poscli {name} {part}\n  {inspect.cleandoc(each.help or '')}".rstrip())
            for option in each.params:
                facts = [repr(getattr(option, name, "")) for name in OF_AN_OPTION]
                lines.append(f"  {' '.join([*option.opts, *option.secondary_opts])} | {' | '.join(facts)}")
    snapshot("\n".join(lines) + "\n", "options")


@pytest.mark.parametrize("kind", ["bias", "absolute", "rotary", "relative"])
def test_an_encoding_of_ones_own(kind: str, walk: Walk, snapshot: Snapshot) -> None:
    walk.run("new", "my-encoding", "--kind", kind, "--to", "mine")
    walk.run("new", "my-encoding", "--kind", kind, "--to", "mine")
    walk.run("new", "my-encoding", "--kind", kind, "--to", "mine", "--force", "--json")
    walk.show(Path("mine"))
    snapshot(walk.text, f"new-{kind}")
