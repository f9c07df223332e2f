"""Deleting runs: all of a run and nothing else, damaged ones too, and none that another process works on."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import assert_refused, cli, document

from poscli.config.run import SCHEMA, RunConfig
from poscli.runs.lock import locked
from poscli.runs.run import TRASH, create, delete_run, evaluated_as, list_runs
from poscli.system.errors import LockedError, PoscliError, UsageError


@pytest.fixture
def runs(here: Path, results: Path) -> Path:
    """The folder of three runs, of alibi, learned and sinusoidal, in results of its own."""
    shutil.copytree(results, here / "results")
    return here / "results" / "runs"


def left(runs: Path) -> list[str]:
    return sorted(run.config.encoding for run in list_runs(runs))


def test_runs_are_named_by_id_by_the_beginning_of_one_or_by_encoding(runs: Path) -> None:
    """A whole id does not name the runs that begin with it. What an interrupted deletion left goes, too."""
    (runs / TRASH / "old" / "t5-3").mkdir(parents=True)
    os.utime(runs / TRASH / "old", (0, 0))
    (run,) = [run for run in list_runs(runs) if run.config.encoding == "learned"]
    (runs / f"{run.id}-2").mkdir()
    assert document("rm", run.id, "--yes") == [{"run_id": run.id, "folder": f"results/runs/{run.id}"}]
    (runs / f"{run.id}-2").rmdir()
    assert left(runs) == ["alibi", "sinusoidal"]
    result = cli("rm", "sinus", "--yes")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("deleted results/runs/sinusoidal-")
    assert cli("rm", "--enc", "alibi(trainable=false)", "--yes").code == 0
    assert list(runs.iterdir()) == []


def test_damaged_runs_are_deleted_by_the_name_of_their_folder(runs: Path) -> None:
    folder = next(runs.glob("alibi-*"))
    (folder / "config.toml").write_text("damaged")
    result = cli("rm", "--enc", "learned", "--yes")
    assert (result.code, result.err.count("left out")) == (0, 1)
    assert cli("rm", folder.name, "--yes").code == 0
    assert left(runs) == ["sinusoidal"]


def test_a_terminal_is_asked_and_a_pipe_must_say_yes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(("rm", "alibi", "learned"), 2, ("2 runs would be deleted: alibi-", "learned-", "--yes"))
    for answer, names in (("n", ["alibi", "learned", "sinusoidal"]), ("y", ["learned", "sinusoidal"])):
        terminal = SimpleNamespace(isatty=lambda: True, readline=lambda answer=answer: f"{answer}\n")
        monkeypatch.setattr(sys, "stdin", terminal)
        result = cli("rm", "alibi", "--json")
        assert (result.code, len(result.json)) == (0, answer == "y")
        assert "results/runs/alibi-" in result.err
        assert "Delete 1 run?" in result.err
        assert left(runs) == names


def test_what_names_no_run_is_refused(runs: Path) -> None:
    for arguments, words in (
        (("",), "RUN '' is empty"),
        (("..",), "there is no run '..'"),
        (("../..",), "there is no run '../..'"),
        (("--enc", "rope"), "no run in results/runs has the encoding rope: there are alibi,"),
        (("--enc", "alibi", "--enc", "rope"), "no run in results/runs has the encoding rope: there are alibi,"),
        (("learned", "--enc", "alibi"), "no run learned in results/runs has the encoding alibi: there is learned"),
        (("--enc", "rpoe"), "rpoe"),
    ):
        assert_refused(("rm", *arguments, "--yes"), 2, words)


def test_runs_of_a_plugin_are_deleted_also_where_its_file_is_gone(here: Path) -> None:
    config = RunConfig(encoding="gone.py:Mine")
    env = {"schema": SCHEMA, "corpus": {"fingerprint": "0123456789abcdef"}}
    folder = create(here / "results" / "runs" / config.run_id("0123456789abcdef"), config, env).folder
    result = cli("rm", "--enc", "gone.py:Mine", "--yes")
    assert (result.code, result.err) == (0, "")
    assert not folder.exists()


def test_a_run_that_is_worked_on_is_refused(runs: Path) -> None:
    with locked(next(runs.glob("alibi-*"))):
        result = cli("rm", "alibi", "--yes")
    assert (result.code, result.out) == (75, "")
    assert f"is being worked on by process {os.getpid()} on " in result.err
    assert left(runs) == ["alibi", "learned", "sinusoidal"]
    with locked(next(runs.glob("learned-*"))):
        result = cli("rm", "alibi", "learned", "--yes")
    assert (result.code, result.out) == (75, "")
    assert "deleted results/runs/alibi-" in result.err  # before the other one was refused
    assert left(runs) == ["learned", "sinusoidal"]


def test_a_run_that_is_evaluated_under_another_encoding_is_refused(runs: Path) -> None:
    (run,) = [run for run in list_runs(runs) if run.config.encoding == "alibi"]
    with evaluated_as(run, "none").locked():
        with pytest.raises(LockedError, match=r"none-.* is being worked on by process"):
            delete_run(run.folder)
        assert left(runs) == ["alibi", "learned", "sinusoidal"]
    delete_run(run.folder)
    assert left(runs) == ["learned", "sinusoidal"]


def test_what_another_process_is_deleting_is_left_to_it(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / TRASH / "of another process").mkdir(parents=True)
    delete_run(next(runs.glob("alibi-*")))
    assert [path.name for path in (runs / TRASH).iterdir()] == ["of another process"]

    def gone(**_: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(tempfile, "mkdtemp", gone)
    with pytest.raises(PoscliError, match="another process deletes runs there, too; try again"):
        delete_run(next(runs.glob("learned-*")))
    assert left(runs) == ["learned", "sinusoidal"]


def test_links_are_never_followed(runs: Path, tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", next(runs.glob("alibi-*"))
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (run / "link").symlink_to(outside)
    (run / "checkpoints" / "file").symlink_to(outside / "kept")
    delete_run(run)
    assert (outside / "kept").read_text() == "kept"
    with pytest.raises(UsageError, match=r"there is no folder .*; `poscli ls runs` shows"):
        delete_run(run)
    (runs / "linked").symlink_to(outside)
    with pytest.raises(UsageError, match="symbolic link"):
        delete_run(runs / "linked")
    shutil.rmtree(runs / TRASH, ignore_errors=True)
    (runs / TRASH).symlink_to(outside)
    with pytest.raises(UsageError, match="symbolic link"):
        delete_run(next(runs.glob("learned-*")))
    assert [path.name for path in outside.iterdir()] == ["kept"]
