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

WITHOUT = {  # a satellite -> an encoding, a task and a kind of corpus that are gone with it
    "grids": ("rope-2d", "grid", "images[:FOLDER][?patch=4&levels=32]"),
}


@pytest.mark.parametrize("satellite", WITHOUT)
def test_the_core_without_a_satellite(satellite: str, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "poscli", tmp_path / "poscli", ignore=ignored)
    shutil.rmtree(tmp_path / "poscli" / satellite)
    commands = [
        ["train", "--enc", "alibi", "--enc", "rope", *NANO, "--json"],
        ["extrapolate", *SHORT, "--json"],
        ["report", "--json"],
        *(["ls", what, "--json"] for what in ("encodings", "tasks", "corpora")),
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
    assert [result["code"] for result in results] == [0] * len(commands), run.stderr
    *_, encodings, tasks, corpora = (result["out"] for result in results)
    names = {row["name"] for row in encodings} | {row["task"] for row in tasks} | {row["corpus"] for row in corpora}
    assert {"alibi", "language", "stdlib"} <= names
    assert not names & set(WITHOUT[satellite])
