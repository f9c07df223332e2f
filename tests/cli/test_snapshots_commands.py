"""Walks through the commands with options of every kind: all that they say, and all that they write."""

from __future__ import annotations

import inspect
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runner import COMMANDS, LS
from walks import Walk

from poscli.cli import command_tree
from poscli.native import library

Snapshot = Callable[..., None]
OF_AN_OPTION = ("default", "show_default", "required", "multiple", "help")
NANO = ("--preset", "nano", "--batch", 4, "--tokens", "2k")
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
REFUSED = """
train
train --enc nonsense
train --enc alibbi
train --enc alibi --enc alibi
train --enc rope(bsae=3)
train --enc rope(base=zero)
train --enc rope(base=-1)
train --enc rope(base=1,base=2)
train --enc rope(base=1
train --enc ALIBI
train --enc rope(theta=5)
train --enc none(base=5)
train --enc rope(base=inf)
train --enc rope(fraction=2)
train --enc rope(layout=halves)
train --enc alibi(trainable=maybe)
train --enc window(1.5)
train --enc 'window(1, 2)'
train --enc ''
train --enc alibi,rope
train --enc 'alibi, rope; ls'
train --enc 'sinusoidal|rope'
train --enc 'rope|none|alibi' --preset nano
train --enc nowhere:Mine
train --enc json:JSONDecoder
train --enc alibi --enc rpoe
train alibi
train --enc
train --enc alibi --lenght 32
train --enc alibi --epochs 3
train --enc rope --preset nano --width 12
train --enc rope|
train --enc rope+
train --enc rope+rope
train --enc rope+learned+xpos
train --enc window(0)
train --enc t5(buckets=7)
train --enc rope-2d
train --enc alibi --task gird
train --enc alibi --task grid --length 60
train --enc alibi --task grid --memory 8
train --enc alibi --task passkey --length 8
train --enc alibi --task passkey --corpus stdlib
train --enc alibi --corpus nowhere
train --enc alibi --corpus text:missing
train --enc alibi --corpus jsonl:missing.jsonl
train --enc alibi --corpus bayes:bigrm
train --enc alibi --corpus images
train --enc alibi --tokenizer bpe:10
train --enc alibi --tokenizer words
train --enc alibi --preset huge
train --enc alibi --preset nano --width 63
train --enc alibi --preset nano --heads 3
train --enc alibi --layers 0
train --enc alibi --length 4
train --enc alibi --length 2000000
train --enc alibi --batch 0
train --enc alibi --batch 3 --accumulate 2
train --enc alibi --tokens 0
train --enc alibi --tokens 1.5
train --enc alibi --tokens many
train --enc alibi --tokens 100
train --enc alibi --set matrix_lr
train --enc alibi --set matrix_lr=fast
train --enc alibi --set matrix_lr=-1
train --enc alibi --set matrix_rl=0.1
train --enc alibi --set momentum=1
train --enc alibi --set warmup=1.5
train --enc alibi --precision float8
train --enc alibi --seed -1
train --enc alibi --seed 1.5
train --enc alibi --length long
train --enc alibi --tokens 2MB
train --enc alibi --tokens -5
train --enc alibi --mlp -1
train --enc alibi --set dropout=0.1
train --enc alibi --set =0.1
train --enc alibi --set matrix_lr=nan
train --enc alibi --set clip=inf
train --enc alibi --precision fp16
train --enc alibi --device mps
train --enc alibi --corpus stdlb
train --enc alibi --corpus wikitext
train --enc alibi --corpus text:
train --enc alibi --corpus notes/00.txt
train --enc alibi --corpus stdlib:3.11
train --enc alibi --corpus hf:a/b?bytes=many
train --enc alibi --device gpu
train --enc alibi --width 60000 --heads 2 --layers 100
train --enc learned --memory 16
train --enc none.py
extrapolate --max-len 0
extrapolate --max-len 0.5x
extrapolate --max-len far
extrapolate --lengths 2,4
extrapolate --lengths 1,one
extrapolate --lengths 0.5
extrapolate --lengths abc
extrapolate --lengths 1,,2
extrapolate --lengths nan
extrapolate --max-len 8k
extrapolate --stride 0
extrapolate --ngram 0
extrapolate --ngram 65
extrapolate --as yanr
extrapolate --baseline winow
extrapolate --protocol slide
extrapolate --recalibrate 100
extrapolate --recalibrate-length 64
extrapolate --judge rope
extrapolate --judge rope --why
extrapolate --enc alibi
extrapolate --run unknown
extrapolate --as learned
extrapolate --as rope
extrapolate --as yarn(factor=0)
extrapolate --as yarn --recalibrate 100
extrapolate --tokens 8
extrapolate --stride 64
extrapolate --max-len 16
extrapolate --max-len 100000
extrapolate --protocol answer
extrapolate --model missing
extrapolate --model missing --enc rope
extrapolate --corpus stdlib
extrapolate --length 64
report
report --baseline rope
report --formats gif
report runs
report --to notes/00.txt
report --mix --site notes/00.txt
report --baseline rope --mix
compare rope
compare rope alibi
generate --enc alibi
generate --rows 3
generate --tokens 0
generate --temperature -1
generate --temperature nan
generate --temperature hot
generate --prompt
verify
verify nonsense
verify rope --all
verify --all rope --seed -1
new 9lives
new rope
new class
new json
new my-encoding --kind spiral
new my-encoding --to notes/00.txt
ls
ls everything
ls suites --fodler x
ls runs --watch --json
ls suites --folder nowhere
rm
rm alibi
rm rope
rm --enc alibi
run missing.toml
run notes/00.txt
run notes
run
run quick
run elsewhere/demo.toml
inspect
inspect nonsense
inspect rope --length 0
bench --enc nonsense
bench --what speed
bench --repeats 0
bench --enc none --batch 100000000000000000000
bench --engine warp
card missing
card notes
advise missing
advise missing --target 4x
advise missing --target 0
tarin
frobnicate
--versoin
"""


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """A walk in a folder with forty small texts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
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
    """Nothing of it trains: some of it is allowed, and a dry run says what it would do."""
    walk.run("train", "--enc", "rope", *NANO, "--corpus", "text:notes", "--length", 32)
    for line in REFUSED.strip().splitlines():
        dry = ["--dry-run"] if line.startswith(("train", "extrapolate", "run", "advise")) else []
        walk.run(*shlex.split(line), *dry)
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
    assert {*COMMANDS} <= {*commands}
    snapshot("\n".join(lines) + "\n", "options")


@pytest.mark.parametrize("kind", ["bias", "absolute", "rotary", "relative"])
def test_an_encoding_of_ones_own(kind: str, walk: Walk, snapshot: Snapshot) -> None:
    walk.run("new", "my-encoding", "--kind", kind, "--to", "mine")
    walk.run("new", "my-encoding", "--kind", kind, "--to", "mine")
    walk.run("new", "my-encoding", "--kind", kind, "--to", "mine", "--force", "--json")
    walk.show(Path("mine"))
    snapshot(walk.text, f"new-{kind}")
