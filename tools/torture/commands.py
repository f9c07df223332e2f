"""Random command lines: every command with malformed values, in this process, in a folder of its own.

A command line may fail, but only with a documented exit code, one line of error, and no file outside its folder.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

from cli_runner import UNSEEN, Result, cli, errors, snapshot

from poscli.cli import command_tree

CODES = {0, 1, 2, 3, 4, 5, 75}
NUMBERS = [
    "0", "-1", "1", "2", "7", "1.5", "nan", "inf", "-inf", "1e-300", "1e300", "1e400", "0x10", "\uff11", "-0.0", "1_0",
    str(2**31), str(2**63 - 1), str(2**63), str(10**20), str(-(10**20)), "9" * 5000, "64,,128", "0k", "1e3k",
    "9" * 30 + "g",
]  # fmt: skip
TEXTS = [
    "", " ", "auto", "none", "alibi", "rope(base=1e999)", "rope(base=-0)", "(((((", "a" * 5000,
    "../../etc", "/dev/null", "/",
    ".", "~", "file", "folder", "nowhere/deep", "mine.toml", "cpu", "cuda:0", "meta", "a\nb", "\x1b[2J", "[red]x[/]",
    ":rocket:", "\u202e", "ümlaut", "😀", "\udcff", "%s", "{0}", "--", "-", "--help", "x=1", "=", "lr=nan", "os:system",
    "json:JSONDecoder", "a:b:c", "text:", "text:file", "text:folder", "jsonl:file", "parquet:file", "hf:",
]  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """An option or an argument of a command."""

    flag: str  # "" for an argument
    takes_value: bool


@cache
def commands() -> dict[tuple[str, ...], list[Parameter]]:
    """Every command with its parameters."""
    return dict(_commands(command_tree(), ()))


def _commands(command: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Parameter]]]:
    inner = getattr(command, "commands", None)
    if inner:
        for name, each in inner.items():
            yield from _commands(each, (*path, name))
        return
    found = [
        Parameter(p.opts[0] if p.param_type_name == "option" else "", not getattr(p, "is_flag", False))
        for p in command.params  # type: ignore[attr-defined]
    ]
    yield path, found


def command_line(draw: random.Random) -> list[str]:
    """A command with a few random options and values. What could take long is bounded by options at its end."""
    known = commands()
    first = draw.choice(sorted({path[0] for path in known}))  # as many of `ls` as of every other command
    path = draw.choice([path for path in sorted(known) if path[0] == first])
    words = list(path)
    for parameter in draw.sample(known[path], k=min(len(known[path]), draw.randint(1, 3))):
        if parameter.flag in ("--install-completion", "--show-completion"):
            continue
        words += [parameter.flag] if parameter.flag else []
        words += [draw.choice(draw.choice([NUMBERS, TEXTS]))] if parameter.takes_value else []
    return words + draw.choice(BOUNDED.get(path, [[]]))


# Options that end a command before its work, by an encoding or a corpus that does not exist.
BOUNDED = {
    ("train",): [["--enc", "no-such-encoding"], ["--enc", "rope", "--corpus", "text:nowhere"]],
    ("bench",): [["--enc", "no-such-encoding"], ["--enc", "none", "--engine", "no-such-engine"]],
    ("verify",): [["no-such-encoding"]],
    ("inspect",): [["no-such-encoding"]],
    ("new",): [["--to", "folder"]],  # the last one counts: nothing is written elsewhere
}


def check(words: list[str], results: Path | None = None) -> Result:
    """Run a command line in a fresh folder; AssertionError if it ends in a way that no command may.

    `results` are runs to copy into that folder.
    """
    with tempfile.TemporaryDirectory() as base, contextlib.chdir(_furnished(Path(base))):
        outside = snapshot(Path(base) / "outside")
        if results:
            shutil.copytree(results, "results")
        with mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}):
            result = cli(*words)
        assert snapshot(Path(base) / "outside") == outside, words
    said = f"{words!r} ended with {result.code}: {result.err}"
    assert result.code in CODES, said
    assert "Traceback" not in result.err, said
    assert "a bug of poscli" not in result.err, said
    assert not UNSEEN.search(result.err), said
    assert len(errors(result)) == (result.code not in (0, 3)) or _has_results(words, result), said
    return result


def _has_results(words: list[str], result: Result) -> bool:
    """Whether a command failed with a table of what failed instead of an error, as `doctor` does."""
    return words[0] == "doctor" and result.code == 1 and "broken" in result.out


def _furnished(base: Path) -> Path:
    """A folder to run in, with files of the names that TEXTS uses, beside one that must not change."""
    (base / "outside").mkdir()
    (base / "outside" / "file").write_text("unchanged")
    here = base / "here"
    (here / "folder").mkdir(parents=True)
    (here / "file").write_bytes(b"\x00\xff not what anybody expects")
    (here / "mine.toml").write_text('title = "[red]"\nencodings = ["nothing"]\n')
    return here


def torture(seed: int, count: int, results: Path | None = None) -> list[list[str]]:
    """Check `count` random command lines, drawn from a seed; returns them. `results` are runs to work on."""
    draw = random.Random(seed)
    lines = [command_line(draw) for _ in range(count)]
    for words in lines:
        check(words, results)
    return lines
