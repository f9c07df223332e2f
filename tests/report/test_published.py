"""What a user runs changes no tracked file: only results/published is tracked, and only maintainers write there."""

from __future__ import annotations

import hashlib
import inspect
import json
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


def test_what_commands_write_is_ignored_and_only_published_results_are_tracked() -> None:
    out, also_out, costs = (inspect.signature(each).parameters["out_"].default for each in (run, report, bench))
    assert also_out == out
    suites = [f"{out}/{path.stem}" for path in (ROOT / "suites").glob("*.toml")]
    written = [f"{folder}/report.md" for folder in (f"{out}/runs", f"{out}/report", costs, *suites)]
    assert git("check-ignore", *written).stdout.split() == written
    assert git("check-ignore", "--quiet", "results/published/quick/new.png").returncode == 1
    tracked = git("ls-files", "results").stdout.split()
    assert tracked
    assert all(name.startswith(("results/published/", "results/torture/", "results/board/")) for name in tracked)
    recipes = re.findall(r"^([a-z]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {name for name, recipe in recipes if "results/published" in recipe} == {"bench", "publish"}


def test_a_clone_can_write_what_is_published_anew() -> None:
    """What a list beside a page does not name is taken for the user's, and never replaced."""
    pages = git("ls-files", "results/published/*/report.md", "results/board/board.md").stdout.split()
    assert len(pages) > 8
    for page in pages:
        folder = (ROOT / page).parent
        listed = json.loads((folder / "files.json").read_text())
        assert Path(page).name in listed
        for name in listed.keys() & {Path(name).name for name in git("ls-files", f"{folder}/").stdout.split()}:
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() in listed[name], folder / name
