"""The core works without satellites: in a copy of poscli without their folders, models train and are compared."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import BRIEF, NANO, ROOT, environment, in_a_copy, in_new_process

# A satellite -> the encodings, tasks and corpora, or the commands and options, that are gone with it.
NAMES: dict[str, set[str]] = {
    "checkpoints": {"needle", "facts", "repeat"},
    "grids": {"rope-2d", "grid", "images[:FOLDER][?patch=4&levels=32]"},
}
WORDS: dict[str, list[list[str]]] = {
    "bench": [["bench"]],
    "board": [["agree"], ["board"], ["recommend"], ["report", "--board"]],
    "checkpoints": [["card"], ["advise"], ["audit"], ["extrapolate", "--model", "org/name"]],
    "cluster": [["run", "suite.toml", "--ray"]],
    "inspect": [["inspect"]],
    "grids": [],
}


@pytest.mark.parametrize(
    "removed", [list(WORDS), *(pytest.param([each], marks=pytest.mark.wide) for each in WORDS)], ids="-".join
)
def test_the_core_without_satellites(removed: list[str], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "poscli", tmp_path / "poscli", ignore=shutil.ignore_patterns("__pycache__", *removed))
    gone = [words for satellite in removed for words in WORDS[satellite]]
    commands = [
        ["train", "--enc", "alibi", "--enc", "rope", *NANO, "--tokens", "1k"],
        ["extrapolate", *BRIEF],
        ["report"],
        *(["ls", what] for what in ("encodings", "tasks", "corpora")),
    ]
    results = in_a_copy(tmp_path, [*commands, *gone])
    assert [result["code"] for result in results] == [0] * 6 + [2] * len(gone)
    encodings, tasks, corpora = (result["out"] for result in results[3:6])
    names = {row["name"] for row in encodings} | {row["task"] for row in tasks} | {row["corpus"] for row in corpora}
    assert {"alibi", "language", "stdlib"} <= names
    assert not names & set().union(*(NAMES.get(satellite, set()) for satellite in removed))
    for words, result in zip(gone, results[6:], strict=True):
        command = len(words) == 1
        word = words[0] if command else next(word for word in words if word.startswith("--"))
        assert f"o such {'command' if command else 'option'}" in result["out"]["error"]
        assert word in result["out"]["error"]
    assert not {words[0] for words in gone if len(words) == 1} & commands_of(tmp_path)


def commands_of(folder: Path) -> set[str]:
    """The commands that the help of a copy of poscli shows; it imports nothing heavy."""
    code = (
        "import sys; from poscli.cli import command_tree; print(*command_tree().commands); "
        "print({'torch', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    environ = environment(PYTHONPATH=str(folder))
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True)
    assert run.stderr == "set()\n"
    return set(run.stdout.split())


VISITING = """
import typer

def greet(name: str = typer.Option("world", help="Whom to greet.")) -> None:
    \"\"\"Greet somebody.\"\"\"
    print(f"hello {name}")
"""


def test_a_command_of_another_package(tmp_path: Path) -> None:
    """It is listed, runs, and leaves with --no-plugins; one that cannot be imported is named with its cause."""
    (tmp_path / "visiting.py").write_text(VISITING)
    info = tmp_path / "visiting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: visiting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[poscli.cli.commands]\ngreet = visiting:greet\nbroken = visiting:gone\nls = visiting:greet\n"
    )
    path = f"{tmp_path}:{ROOT}"
    commands = (["--help"], ["greet", "--name", "you"], ["broken"], ["ls", "tasks"])
    listed, greeted, broken, ours = in_new_process(tmp_path, commands, path)
    assert "Greet somebody." in listed.out
    assert "broken" not in listed.out
    assert (greeted.code, greeted.out, greeted.err) == (0, "", "hello you\n")  # stdout is for results
    assert broken.code == 2
    assert broken.err.startswith("error: the command broken cannot be used: ")
    assert ours.code == 0
    (unknown,) = in_new_process(tmp_path, [["greet", "--no-plugins"]], path)
    assert unknown.code == 2
