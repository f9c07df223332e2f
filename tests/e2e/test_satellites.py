"""The core works without any satellite: in a copy of poscli without its folder, models train and are compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import NANO, ROOT, SHORT, environment
from test_contributing import COMMANDS

# A satellite -> the encodings, tasks, corpora and commands that are gone with it; of a command, perhaps an option only.
WITHOUT: dict[str, tuple[str, ...]] = {
    "bench": ("bench",),
    "checkpoints": ("card", "advise", "extrapolate --model org/name"),
    "cluster": ("run suite.toml --ray",),
    "grids": ("rope-2d", "grid", "images[:FOLDER][?patch=4&levels=32]"),
    "inspect": ("inspect",),
}


@pytest.mark.parametrize("satellite", WITHOUT)
def test_the_core_without_a_satellite(satellite: str, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "poscli", tmp_path / "poscli", ignore=ignored)
    shutil.rmtree(tmp_path / "poscli" / satellite)
    missing = [] if satellite == "grids" else [gone.split() for gone in WITHOUT[satellite]]
    commands = [
        ["train", "--enc", "alibi", "--enc", "rope", *NANO, "--json"],
        ["extrapolate", *SHORT, "--json"],
        ["report", "--json"],
        *(["ls", what, "--json"] for what in ("encodings", "tasks", "corpora")),
        *([*words, "--json"] for words in missing),
    ]
    run = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([list(map(str, command)) for command in commands])],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(line) for line in run.stdout.splitlines()]
    assert [result["code"] for result in results] == [0] * 6 + [2] * len(missing), run.stderr
    encodings, tasks, corpora = (result["out"] for result in results[3:6])
    names = {row["name"] for row in encodings} | {row["task"] for row in tasks} | {row["corpus"] for row in corpora}
    assert {"alibi", "language", "stdlib"} <= names
    assert not names & set(WITHOUT[satellite])
    for words, result in zip(missing, results[6:], strict=True):
        told = words[0] if len(words) == 1 else next(word for word in words if word.startswith("--"))
        assert f"o such {'command' if len(words) == 1 else 'option'}" in result["out"]["error"]
        assert told in result["out"]["error"]
    assert not {words[0] for words in missing if len(words) == 1} & commands_of(tmp_path)


def commands_of(folder: Path) -> set[str]:
    """The commands that the help of a copy of poscli shows; it imports nothing heavy."""
    code = (
        "import sys; from poscli.cli import command_tree; print(*command_tree().commands); "
        "print({'torch', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(PYTHONPATH=str(folder)),
        capture_output=True,
        text=True,
        check=True,
    )
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

    def poscli(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "poscli", *arguments],
            cwd=tmp_path,
            env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"),
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    assert "Greet somebody." in poscli("--help")[1]
    assert "broken" not in poscli("--help")[1]
    assert poscli("greet", "--name", "you") == (0, "", "hello you\n")  # stdout is for results
    assert poscli("greet", "--no-plugins")[0] == 2
    code, _, told = poscli("broken")
    assert code == 2
    assert told.startswith("error: the command broken cannot be used: ")
    assert poscli("ls", "tasks")[0] == 0
