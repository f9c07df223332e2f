"""Files that are written whole or not at all, sealed against changes, under a lock that ends with its process."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from poscli.runs.lock import is_locked, locked
from poscli.runs.sealed import MANIFEST, Sealed
from poscli.system.errors import CorruptError, LockedError, StorageError
from poscli.system.files import remove_temporaries, write_atomic


def test_a_sealed_file_comes_back_and_what_was_replaced_is_valid_only_until_the_next_write(tmp_path: Path) -> None:
    files = Sealed(tmp_path, "delete it")
    files.write("deep/b.bin", b"\0two")
    assert Sealed(tmp_path, "").read("deep/b.bin") == b"\0two"
    assert not files.has("c.csv")
    for content in ("one", "two", "three"):
        files.write("a.csv", content)
    (tmp_path / "a.csv").write_text("two")  # a process that died between the manifest and the file
    assert files.read("a.csv") == b"two"
    (tmp_path / "a.csv").write_text("one")
    with pytest.raises(CorruptError, match=r"a\.csv is not the file that was written .*; delete it"):
        files.read("a.csv")


def test_a_damaged_file_does_not_become_valid_by_a_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Sealed(tmp_path, "")
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


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr("os.fsync", full)
    said = r"cannot write .*/a: No space left on device; make room, or choose another folder"
    with pytest.raises(StorageError, match=said):
        write_atomic(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(StorageError, match=r": (Not a directory|File exists); choose another folder"):
        write_atomic(tmp_path / "a" / "b", "new")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_reaches_the_disk_in_pieces_before_it_has_its_name_and_folders_do_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may read it as the user's mask says, which stays as it was."""
    synced: list[Path] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, content[:3]))
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink()))
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a" / "b" / "file", "whole content")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    *parents, temporary, folder = synced
    assert sorted(parents) == [tmp_path, tmp_path / "a"]
    assert (temporary.parent, temporary.suffix, folder) == (tmp_path / "a" / "b", ".tmp", tmp_path / "a" / "b")
    (file,) = folder.iterdir()
    assert (file.name, file.read_text(), file.stat().st_mode & 0o777) == ("file", "whole content", 0o640)


@pytest.mark.skipif(sys.platform != "linux", reason="made to look like macOS")
@pytest.mark.parametrize("can", [True, False])
def test_on_macos_the_drive_itself_is_asked_where_the_file_system_can(
    can: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def asks_drive(_: int, what: int) -> None:
        asked.append(f"the drive by {what}")
        if not can:
            raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", asks_drive)
    monkeypatch.setattr(os, "fsync", lambda _: asked.append("the system"))
    write_atomic(tmp_path / "file", "content")
    once = ["the drive by 51"] if can else ["the drive by 51", "the system"]
    assert asked == 2 * once  # the file and its folder


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "nll").mkdir()
    for name in (".eval.csv.x1y2.tmp", "mine.tmp", "nll/.32.parquet.x1y2.tmp"):
        (tmp_path / name).write_text("half")
    remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine.tmp", "nll"]


def _try(folder: Path, answer) -> None:  # type: ignore[no-untyped-def]
    try:
        with locked(folder):
            answer.put("got it")
    except LockedError as error:
        answer.put(str(error))


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_lock_says_who_holds_it_and_ends_with_its_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    with locked(tmp_path):
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
