"""`poscli rm`: which runs it deletes, when it asks, and what it refuses."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from cli_runner import assert_refused, cli, document, errors, trained

from poscli.runs.lock import locked
from poscli.runs.run import list_runs


@pytest.fixture
def runs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of three runs, of alibi, learned and sinusoidal, in results of its own."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained(tmp_path_factory.getbasetemp()), tmp_path / "results")
    return tmp_path / "results" / "runs"


def left(runs: Path) -> list[str]:
    return sorted(run.config.encoding for run in list_runs(runs))


def answering(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A terminal at which somebody gives this answer."""

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer + "\n"

    monkeypatch.setattr(sys, "stdin", Terminal())


def test_runs_are_named_by_id_by_the_beginning_of_one_or_by_encoding(runs: Path) -> None:
    (run,) = [run for run in list_runs(runs) if run.config.encoding == "learned"]
    assert document("rm", run.id, "--yes") == [{"run_id": run.id, "folder": f"results/runs/{run.id}"}]
    assert left(runs) == ["alibi", "sinusoidal"]
    result = cli("rm", "sinus", "--yes")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("deleted results/runs/sinusoidal-")
    assert cli("rm", "--enc", "alibi(trainable=false)", "--yes").code == 0
    assert left(runs) == []
    assert list(runs.iterdir()) == []


def test_a_whole_id_does_not_name_the_runs_that_begin_with_it(runs: Path) -> None:
    for name in ("old", "old-2"):
        (runs / name).mkdir()
    assert [row["run_id"] for row in document("rm", "old", "--yes")] == ["old"]


def test_damaged_runs_are_deleted_by_the_name_of_their_folder(runs: Path) -> None:
    folder = next(runs.glob("alibi-*"))
    (folder / "config.toml").write_text("damaged")
    result = cli("rm", "--enc", "learned", "--yes")
    assert (result.code, result.err.count("left out")) == (0, 1)
    assert cli("ls", "runs").code == 3  # the others are listed
    assert cli("rm", folder.name, "--yes").code == 0
    assert left(runs) == ["sinusoidal"]


def test_a_terminal_is_asked_and_a_pipe_must_say_yes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(("rm", "alibi", "learned"), 2, ("2 runs would be deleted: alibi-", "learned-", "--yes"))
    for answer, names in (("n", ["alibi", "learned", "sinusoidal"]), ("y", ["learned", "sinusoidal"])):
        answering(monkeypatch, answer)
        result = cli("rm", "alibi")
        assert result.code == 0
        assert "results/runs/alibi-" in result.err
        assert "Delete 1 run?" in result.err
        assert left(runs) == names


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name runs to delete"),
        (("alibbi",), ("there is no run 'alibbi'", "there are: alibi-")),
        (("",), "RUN '' is empty"),
        (("..",), "there is no run '..'"),
        (("../..",), "there is no run '../..'"),
        (("--enc", "rope"), "no run has the encoding rope;"),
        (("--enc", "rpoe"), "rpoe"),
    ],
)
def test_what_names_no_run_is_refused(runs: Path, arguments: tuple[str, ...], words: str | tuple[str, ...]) -> None:
    assert_refused(("rm", *arguments, "--yes"), 2, words)


def test_a_run_that_is_worked_on_is_refused(runs: Path) -> None:
    folder = next(runs.glob("alibi-*"))
    with locked(folder):
        result = cli("rm", "alibi", "--yes")
    assert result.code == 75
    assert f"is being worked on by process {os.getpid()} on " in errors(result)[0]
    assert left(runs) == ["alibi", "learned", "sinusoidal"]
