"""The state of runs: sealed files, locks, and suites that meet."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from cli_runner import cli
from test_suites import SUITE
from torture.processes import Started

from poscli.runs.lock import is_locked, locked
from poscli.runs.run import list_runs
from poscli.runs.sealed import MANIFEST, Sealed
from poscli.system.errors import CorruptError, LockedError, StorageError
from poscli.system.files import remove_temporaries, write_atomic

FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # who holds a lock beats


def sealed(folder: Path) -> Sealed:
    return Sealed(folder, "delete it")


def test_a_sealed_file_comes_back(tmp_path: Path) -> None:
    sealed(tmp_path).write("a.csv", "one")
    sealed(tmp_path).write("deep/b.bin", b"\0two")
    assert sealed(tmp_path).read("a.csv") == b"one"
    assert sealed(tmp_path).read("deep/b.bin") == b"\0two"
    assert not sealed(tmp_path).has("c.csv")


def test_what_was_replaced_is_valid_only_until_the_next_write(tmp_path: Path) -> None:
    files = sealed(tmp_path)
    for content in ("one", "two", "three"):
        files.write("a.csv", content)
    (tmp_path / "a.csv").write_text("two")  # a process that died between the manifest and the file
    assert files.read("a.csv") == b"two"
    (tmp_path / "a.csv").write_text("one")
    with pytest.raises(CorruptError, match=r"a\.csv is not the file that was written .*; delete it"):
        files.read("a.csv")


def test_a_damaged_file_does_not_become_valid_by_a_write_that_fails(tmp_path: Path, monkeypatch) -> None:
    files = sealed(tmp_path)
    files.write("a.csv", "one")
    (tmp_path / "a.csv").write_text("edited")
    written: list[str] = []

    def only_the_manifest(path: Path, content: object) -> None:
        written.append(path.name)
        if path.name != MANIFEST:
            raise StorageError("no room")
        write_atomic(path, content)  # type: ignore[arg-type]

    monkeypatch.setattr("poscli.runs.sealed.write_atomic", only_the_manifest)
    with pytest.raises(StorageError):
        files.write("a.csv", "two")
    assert written == [MANIFEST, "a.csv"]
    with pytest.raises(CorruptError):
        files.read("a.csv")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(
        StorageError, match=r"cannot write .*/a: No space left on device; make room, or choose another folder"
    ):
        write_atomic(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_a_killed_process_left_is_removed_under_the_lock(tmp_path: Path) -> None:
    (tmp_path / ".eval.csv.x1y2.tmp").write_text("half")
    (tmp_path / "mine.tmp").write_text("kept")
    (tmp_path / "nll").mkdir()
    (tmp_path / "nll" / ".32.parquet.x1y2.tmp").write_text("half")
    remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine.tmp", "nll"]


def _try(folder: Path, answer) -> None:  # type: ignore[no-untyped-def]
    try:
        with locked(folder):
            answer.put("got it")
    except LockedError as error:
        answer.put(str(error))


@FORKS
def test_a_lock_says_who_holds_it_and_ends_with_its_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    with locked(tmp_path):
        assert is_locked(tmp_path)
        other = context.Process(target=_try, args=(tmp_path, answer))
        other.start()
        assert f"process {os.getpid()}" in answer.get(timeout=30)
        other.join()
    assert not is_locked(tmp_path)
    if (holder := os.fork()) == 0:
        locked(tmp_path).__enter__()
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(holder, 0)[1]) == 9
    with locked(tmp_path):
        pass


@pytest.mark.wide
@FORKS
def test_a_suite_waits_for_a_run_that_another_process_works_on(tmp_path: Path, monkeypatch) -> None:
    """It does everything else first, then waits, and its report is the one of a suite that was alone."""
    monkeypatch.setattr("poscli.sweep.drive.SECONDS_BETWEEN_TRIES", 0.05)
    suite, alone, waited = tmp_path / "tiny.toml", tmp_path / "alone", tmp_path / "waited"
    suite.write_text(SUITE)
    assert cli("run", suite, "--out", alone).code == 0
    first = list_runs(alone / "runs")[0]
    with locked(waited / "runs" / first.id):
        process = Started(("run", suite, "--out", waited))
        deadline = time.monotonic() + 60
        while len(list((waited / "runs").glob("*/eval.json"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    ended = process.wait()
    assert ended.code == 0, ended.err
    assert f"process {os.getpid()}" in ended.err
    assert "is put off" in ended.err
    assert (waited / "tiny" / "summary.csv").read_text() == (alone / "tiny" / "summary.csv").read_text()
