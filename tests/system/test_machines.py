"""Results of several machines: rows name theirs, and a report says who measured what."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from cli_runner import ALIBI, ROOT, SHORT, cli, document, run_of
from fake_results import BEHAVIOUR, results

from poscli.report import build_report
from poscli.runs.results import evaluation
from poscli.runs.run import Run
from poscli.system.provenance import commit, cpu, machine


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was trained on the machine `first` and evaluated on the machine `second`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("machines"))
        for name, command in (("first", ALIBI), ("second", ("extrapolate", *SHORT))):
            patch.setenv("POSCLI_MACHINE", name)
            assert cli(*command).code == 0
        return run_of(Path("results").absolute(), "alibi")


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("node 7", "node 7"),
        ("", platform.node()),
        ("two\n lines\x1b[31m", "two lines\\x1b[31m"),
        ("a" * 1000, "a" * 100),
        ("\udcff", "\\udcff"),
    ],
    ids=repr,
)
def test_a_machine_has_the_name_that_it_is_given_on_one_line(named: str, expected: str, monkeypatch) -> None:
    monkeypatch.setenv("POSCLI_MACHINE", named)
    assert machine() == expected


@pytest.mark.parametrize(
    ("system", "listed", "expected"),
    [
        (
            "linux",
            "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: Another\n",
            "A CPU @ 2 GHz",
        ),
        ("linux", "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "some, CPU implementer 0x41, CPU part 0xd0c"),
        ("darwin", "", "Apple M7"),
    ],
)
def test_processors_of_every_system_have_a_name_of_their_own(
    system: str, listed: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "processor", lambda: "some")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: listed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="Apple M7\n"))
    assert cpu.__wrapped__() == expected


def test_results_name_the_commit_of_the_source_tree_and_whether_it_was_changed() -> None:
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.strip()

    if not (ROOT / ".git").exists():
        assert commit() == ""
        return
    mark = "+" if git("diff", "HEAD", "--", "poscli") else ""
    assert commit() == git("rev-parse", "--short=10", "HEAD") + mark


def test_the_run_says_where_it_was_trained_and_its_rows_where_they_were_measured(measured: Run) -> None:
    assert (measured.env["machine"], measured.env["cpu"]) == ("first", cpu())
    rows = evaluation(measured)
    columns = ["machine", "cpu", "torch"]
    assert rows[columns].drop_duplicates().values.tolist() == [["second", cpu(), torch.__version__]]


def test_commands_show_the_machine(measured: Run, monkeypatch) -> None:
    monkeypatch.setenv("POSCLI_MACHINE", "third")
    out = measured.folder.parent.parent
    (row,) = document("ls", "runs", "--out", out)
    assert row["machine"] == "first"
    assert "first" in cli("ls", "runs", "--out", out).out
    checks = {check["check"]: check["detail"] for check in document("doctor")}
    assert checks["machine"].startswith("third in results")
    assert checks["cpu"] == cpu()


def two_machines() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of three encodings: two machines, and one encoding that has runs on both."""
    chosen = {name: BEHAVIOUR[name] for name in ("alibi", "rope", "none")}
    rows, positions = results(chosen, seeds=(0, 1), lengths=(256, 512))
    far = (rows["encoding"] == "rope") | ((rows["encoding"] == "none") & (rows["seed"] == 1))
    rows.loc[far, ["machine", "cpu", "torch", "device", "commit"]] = ["far", "CPU 2", "2.14", "cuda:GPU", "fedcba9"]
    return rows, positions


def test_a_report_says_which_machine_measured_what(tmp_path: Path) -> None:
    report = build_report(*two_machines(), tmp_path)
    assert dict(zip(report.summary["encoding"], report.summary["machine"], strict=True)) == {
        "alibi": "bench", "rope": "far", "none": "bench, far",
    }  # fmt: skip
    page = (tmp_path / "report.md").read_text()
    assert "- Machine bench: a processor; torch 2.13.0; cpu; commit 0123abc; 3 runs\n" in page
    assert "- Machine far: CPU 2; torch 2.14; cuda:GPU; commit fedcba9; 3 runs\n" in page
    assert "Measured on bench and far: seconds, tokens per second and memory" in page
    assert "times of different machines cannot be compared" in page
    head, _, *lines = [line for line in page.splitlines() if line.startswith("|")][:5]
    at = head.split("|").index(" machine ")
    assert [line.split("|")[at].strip() for line in lines] == list(report.summary["machine"])
