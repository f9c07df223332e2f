"""Deleting runs: all of a run and nothing else, damaged ones too, and none that another process works on."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from poscli.runs.run import TRASH, delete_run
from poscli.system.errors import LockedError, UsageError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run, beside another one."""
    for name in ("alibi-1", "rope-2"):
        (tmp_path / "runs" / name / "checkpoints").mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").write_text("damaged")
        (tmp_path / "runs" / name / "checkpoints" / "last").write_bytes(b"weights")
    return tmp_path / "runs" / "alibi-1"


def left(run: Path) -> list[str]:
    return sorted(path.name for path in run.parent.iterdir())


def test_all_of_a_run_is_deleted_and_nothing_else(run: Path) -> None:
    delete_run(run)
    assert left(run) == ["rope-2"]
    assert (run.parent / "rope-2" / "checkpoints" / "last").read_bytes() == b"weights"


def test_links_are_never_followed(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (run / "link").symlink_to(outside)
    (run / "checkpoints" / "file").symlink_to(outside / "kept")
    delete_run(run)
    assert (outside / "kept").read_text() == "kept"
    (run.parent / "linked").symlink_to(outside)
    with pytest.raises(UsageError, match="symbolic link"):
        delete_run(run.parent / "linked")
    (run.parent / TRASH).symlink_to(outside)
    with pytest.raises(UsageError, match="no folder"):
        delete_run(run)
    with pytest.raises(UsageError, match="symbolic link"):
        delete_run(run.parent / "rope-2")
    assert [path.name for path in outside.iterdir()] == ["kept"]


def test_a_run_that_is_worked_on_stays(run: Path) -> None:
    with FileLock(run / ".lock"), pytest.raises(LockedError, match="alibi-1"):
        delete_run(run)
    assert (run / "checkpoints" / "last").read_bytes() == b"weights"
    assert left(run) == ["alibi-1", "rope-2"]


def test_what_an_interrupted_deletion_left_is_removed_by_the_next(run: Path) -> None:
    (run.parent / TRASH / "old" / "t5-3").mkdir(parents=True)
    delete_run(run)
    assert left(run) == ["rope-2"]
