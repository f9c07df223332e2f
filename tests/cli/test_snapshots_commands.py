"""Walks through the commands with options of every kind: all that they say, and all that they write."""

from __future__ import annotations

import inspect
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import COMMANDS, LS, cli, errors
from cli_runner import snapshot as files_of
from walks import Walk

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
