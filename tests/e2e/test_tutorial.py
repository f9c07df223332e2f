"""docs/TUTORIAL.md: every file and every command in it, in its order, as a reader would take them.

`make test` trains on fewer tokens (`SHRINK`) and calls commands and tests in this process; `make slow` runs every line
as it is written, in a process of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import ROOT, cli, environment

from poscli.cli import command_tree
from poscli.system import plugins

TUTORIAL = ROOT / "docs" / "TUTORIAL.md"
BLOCK = re.compile(r"^```(bash|python|diff) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What `make test` adds to the commands that take long; later options override earlier ones.
SHRINK = {
    "train": ("--length", 32, "--batch", 4, "--tokens", "4k", "--device", "cpu"),
    "extrapolate": ("--max-len", 128, "--tokens", 256, "--stride", 16, "--device", "cpu"),
}


def steps() -> list[tuple[str, str, str]]:
    """Language, file and text of each block, in order: files to have, changes to make, commands to run."""
    return BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))


def commands() -> list[list[str]]:
    """The words of every command."""
    return [shlex.split(line) for language, _, text in steps() if language == "bash" for line in text.splitlines()]


def change(path: Path, diff: str) -> None:
    """Replace the lines of a diff that begin with - by those that begin with +; each must be there once."""
    content, lines = path.read_text(encoding="utf-8"), diff.splitlines()
    olds, news = ([line[1:] for line in lines if line[0] == sign] for sign in "-+")
    for old, new in zip(olds, news, strict=True):
        assert content.splitlines().count(old) == 1, old
        content = content.replace(old + "\n", new + "\n")
    path.write_text(content, encoding="utf-8")


def run_here(words: list[str]) -> None:
    """Run a command of the tutorial in this process, in little time."""
    if words[0] == "pytest":
        written: dict[str, Any] = {"__name__": "written"}
        sys.modules.pop(words[1].removeprefix("test_").removesuffix(".py"), None)
        exec(compile(Path(words[1]).read_text(), words[1], "exec"), written)
        found = [each for name, each in written.items() if name.startswith("test_")]
        assert len(found) == 2
        for each in found:
            each()
        return
    result = cli(*words[1:], *SHRINK.get(words[1], ()))
    assert result.code == 0, result.err


def run_in_a_shell(words: list[str]) -> None:
    """Run a command of the tutorial as it is written."""
    program = [sys.executable, "-m", *words]
    done = subprocess.run(program, env=environment(PYTHONPATH=os.environ.get("PYTHONPATH", str(ROOT))), check=False)
    assert done.returncode == 0, words


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_tutorial_can_be_followed(here: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    monkeypatch.syspath_prepend(here)
    if full:
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for language, name, text in steps():
        if language == "python":  # a file that a command has written
            assert Path(name).read_text(encoding="utf-8") == text
        elif language == "diff":
            change(Path(name), text)
            plugins.forget_edited()
        else:
            for words in map(shlex.split, text.splitlines()):
                if words[:2] == ["poscli", "inspect"] and "inspect" not in command_tree().commands:
                    continue
                (run_in_a_shell if full else run_here)(words)
    text = Path("results/report/report.md").read_text(encoding="utf-8")
    assert "my\\_encoding.py:MyEncoding" in text
    assert len(Path("my_encoding.py").read_text().splitlines()) < 30


def test_the_tutorial_covers_the_way_from_nothing_to_a_report() -> None:
    order = ["new", "verify", "inspect", "train", "extrapolate", "compare", "report"]
    named = [words[1] for words in commands() if words[0] == "poscli"]
    assert list(dict.fromkeys(name for name in named if name in order)) == order
    assert ["pytest", "test_my_encoding.py"] in commands()


def test_verify_finds_what_the_tutorial_says_about_a_wrong_encoding(here: Path) -> None:
    assert cli("new", "my-encoding").code == 0
    path = Path("my_encoding.py")
    path.write_text(path.read_text().replace("d.sqrt()", "(d / len(d)).sqrt()"))
    result = cli("verify", "my_encoding.py")
    assert result.code == 1
    text = " ".join(TUTORIAL.read_text(encoding="utf-8").split())
    failed = [line.split() for line in result.out.splitlines() if " failed " in line]
    assert failed
    quoted = re.search(r"`(\w+ failed [^`]*)`", text)[1]
    # How far off it is, and what counts as rounding, differ from engine to engine.
    assert without_numbers(quoted) in [without_numbers(" ".join(words)) for words in failed]


def without_numbers(sentence: str) -> str:
    """What a check says up to its first comma, with # for each number."""
    return re.sub(r"\d[\d.]*", "#", sentence.partition(", ")[0])
