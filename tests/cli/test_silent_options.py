"""What was once taken without a word and had no effect: each is an error of one line now, before anything is done."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runner import NANO, SUITE, assert_refused, cli, environment, errors

from poscli.cli import command_tree
from poscli.system import plugins

PASSKEY = ("train", "--enc", "rope", "--task", "passkey", "--preset", "nano", "--tokens", "4k")
CLASS = """
from poscli.encodings import Encoding

class Toy(Encoding):
    '''s -= d / 8.'''

    def distance_bias(self, d):
        return -d[None] / 8
"""
PRINTING = """
import os, subprocess, sys
print("while imported")
subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
""" + CLASS.replace(
    "        return", "        print('in a forward pass'); os.write(1, b'from C'); sys.stdout.flush()\n        return"
)


@pytest.fixture(autouse=True)
def files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no folder, and a suite."""
    monkeypatch.setattr(plugins, "_run", {})
    (here / "file").write_text("not a folder")
    (here / "tiny.toml").write_text(SUITE)


def commands(tree: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The words of every command, and the command."""
    if not hasattr(tree, "commands"):
        yield words, tree
    for name, each in getattr(tree, "commands", {}).items():
        yield from commands(each, (*words, name))


OPTIONS = [
    pytest.param(words, max(each.opts, key=len), id=" ".join([*words, each.name]))
    for words, command in commands(command_tree())
    for each in command.params
    if each.param_type_name == "option" and not each.is_flag and each.name != "prompt"
]


@pytest.mark.parametrize(("words", "option"), OPTIONS)
def test_no_option_takes_an_empty_text(words: tuple[str, ...], option: str) -> None:
    result = cli(*words, option, "")
    assert result.code == 2, result.err
    (line,) = errors(result)
    assert "''" in line or "empty" in line
    assert "a bug of poscli" not in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--to"),
        ("report", "--site"),
        ("report", "--out"),
        ("run", "tiny.toml", "--dry-run", "--to"),
        ("run", "tiny.toml", "--out"),
        ("inspect", "rope", "--to"),
        ("inspect", "rope", "--out"),
        ("bench", "--enc", "none", "--out"),
        ("new", "my-encoding", "--to"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_where_a_folder_is_meant_is_refused_before_anything_is_computed(
    arguments: tuple[str, ...], path: str
) -> None:
    option = arguments[-1]
    assert_refused((*arguments, path), 1, (f"cannot write {path}", "is not a folder", f"with {option}"))


def test_a_folder_where_a_picture_is_meant_is_refused(here: Path) -> None:
    assert_refused(("generate", "--to", "."), 2, ("--to . is a folder", "name a file in it"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*PASSKEY, "--corpus", "stdlib"), ("--corpus stdlib", "the task passkey does not read text", "leave it out")),
        ((*PASSKEY, "--tokenizer", "bytes"), ("--tokenizer bytes", "does not read text", "leave it out")),
        (("train", "--enc", "rope-2d", "--task", "grid", "--corpus", "stdlib"), ("--corpus stdlib", "the task grid")),
    ],
    ids=lambda value: value[-1],
)
def test_an_option_without_effect_is_refused(arguments: tuple[object, ...], words: tuple[str, ...]) -> None:
    assert_refused(arguments, 2, words)


def test_a_corpus_that_a_part_of_a_suite_ignores_is_refused(here: Path) -> None:
    (here / "parts.toml").write_text(
        SUITE.replace("[train]", '[train]\ncorpus = "stdlib"') + '[[part]]\ntrain.task = "passkey"'
    )
    assert_refused(("run", "parts.toml"), 2, ("--corpus stdlib", "the task passkey does not read text"))


def test_stdout_is_one_document_whatever_a_plugin_prints(here: Path) -> None:
    (here / "toy.py").write_text(PRINTING)
    command = [sys.executable, "-m", "poscli", "train", "--enc", "toy.py", *map(str, NANO), "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"][0]["encoding"] == "toy.py:Toy"
    for printed in ("while imported", "from a child", "in a forward pass", "from C"):
        assert printed not in done.stdout
        assert printed in done.stderr


def test_what_a_plugin_prints_in_this_process_goes_to_stderr(here: Path) -> None:
    (here / "toy.py").write_text(CLASS.replace("        return", "        print('seen'); return"))
    result = cli("train", "--enc", "toy.py", *NANO, "--tokens", "1k", "--json", "--dry-run")
    assert result.code == 0, result.err
    assert result.json["jobs"][0]["encoding"] == "toy.py:Toy"
    assert "seen" in result.err


LEAVING = {
    "while imported": ("import os\nos._exit(0)\n" + CLASS, 2, "it called os._exit(0) while it was imported"),
    "under another name": ("from os import _exit as bye\nbye(0)\n" + CLASS, 2, "called os._exit(0) while it was"),
    "in a forward pass": (
        CLASS.replace("        return", "        import os; os._exit(0)\n        return"), 1,
        "the encoding toy.py:Toy, which is not part of poscli, called os._exit(0) (toy.py, line ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("when", LEAVING)
def test_a_plugin_that_leaves_the_process_has_failed(here: Path, when: str) -> None:
    code, exit_code, said = LEAVING[when]
    (here / "toy.py").write_text(code)
    result = cli("train", "--enc", "toy.py", *NANO, "--json")
    assert result.code == exit_code
    (line,) = errors(result)
    assert said in line


@pytest.mark.wide
def test_a_worker_whose_plugin_leaves_has_not_done_its_run(here: Path) -> None:
    in_workers = "import os, sys\n        if 'sweep' in sys.argv[0]: os._exit(0)\n        return"
    (here / "toy.py").write_text(CLASS.replace("return", in_workers))
    (here / "two.toml").write_text(SUITE.replace('["none", "rope"]', '["none", "toy.py"]').replace("[0, 1]", "[0]"))
    result = cli("run", "two.toml", "--workers", 2, "--json")
    assert result.code == 3, result.err
    (failed,) = result.json["failures"]
    assert "toy.py" in failed["encoding"]
    assert "called os._exit(0)" in failed["error"]
    assert [row["encoding"] for row in result.json["summary"]] == ["none"]


def test_of_many_plugins_an_error_names_the_latest_three() -> None:
    for name in ("one.py", "two.py", "three.py", "four.py", "two.py"):
        plugins.will_run(name)
    assert re.search(r"has been loaded: two\.py and four\.py and three\.py and \d+ more$", plugins.suspects())


@pytest.mark.parametrize(
    "breaking", ["import torch\ntorch.nn.functional.linear = 5\n", "import sys\nsys.excepthook = 5\n"]
)
@pytest.mark.parametrize("loads", [True, False])
def test_a_plugin_that_breaks_something_else_is_named(
    here: Path, breaking: str, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.nn.functional, "linear", torch.nn.functional.linear)  # restored when the test ends
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    (here / "toy.py").write_text(breaking + (CLASS if loads else "raise KeyError"))

    def broken(*_: object, **__: object) -> None:
        raise TypeError("'int' object is not callable")

    monkeypatch.setattr("poscli.estimate.trainings", broken)
    assert cli("train", "--enc", "toy.py", *NANO).code == (1 if loads else 2)
    result = cli("train", "--enc", "toy.py" if loads else "rope", *NANO)
    assert result.code == 1
    (line,) = errors(result)
    said = "TypeError: 'int' object is not callable (a bug of poscli, or of what is not part of it and has been loaded"
    assert said in line
    assert ": toy.py" in line
