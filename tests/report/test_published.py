"""What a user runs changes no tracked file: only results/published is tracked, and only maintainers write there."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cli_runner import ROOT

from poscli.bench.commands import bench
from poscli.cli.commands.report import report
from poscli.cli.commands.run_suite import run

pytestmark = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git and a checkout"
)


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


def written() -> list[str]:
    """The folders that the commands of the README and of the Makefile write to."""
    out = inspect.signature(run).parameters["out_"].default
    costs = inspect.signature(bench).parameters["out_"].default
    assert isinstance(out, Path)
    assert inspect.signature(report).parameters["out_"].default == out
    suites = [f"{out}/{path.stem}" for path in (ROOT / "suites").glob("*.toml")]
    return [f"{out}/runs", f"{out}/report", str(costs), *suites]


@pytest.mark.parametrize("folder", written())
def test_what_a_command_writes_is_ignored(folder: str) -> None:
    assert git("check-ignore", "--quiet", f"{folder}/report.md").returncode == 0


def test_only_published_results_are_tracked() -> None:
    tracked = git("ls-files", "results").stdout.split()
    assert tracked
    assert all(name.startswith(("results/published/", "results/torture/")) for name in tracked)
    assert git("check-ignore", "--quiet", "results/published/quick/new.png").returncode == 1


def test_only_the_targets_for_maintainers_write_to_published_results() -> None:
    recipes = re.findall(r"^([a-z]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {name for name, recipe in recipes if "results/published" in recipe} == {"bench", "publish"}
