"""The folder of compiled kernels: code that anybody else could have put there is not run."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from test_native import REAL, copying_compiler, fresh, needs_kernels  # noqa: F401 - a fixture

from poscli.native import library, why_not
from poscli.native import library as library_of

pytestmark = [needs_kernels, pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")]
STRANGER = 12345  # a user
Say = Callable[[], str]


class Cache:
    """A new cache folder `native` with kernels in it, and a compiler that counts how often it is called."""

    def __init__(self, folder: Path, calls: Path) -> None:
        self.folder, self.calls = folder, calls

    def restarted(self) -> ctypes.CDLL | None:
        """The kernels as a new process finds them."""
        library_of.__globals__["_loaded"].cache_clear()
        return library()

    @property
    def kept(self) -> Path:
        (path,) = self.folder.glob("*.so")
        return path

    def compiled(self) -> int:
        return len(self.calls.read_text().split())


@pytest.fixture
def cache(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:  # noqa: F811
    monkeypatch.setitem(library_of.__globals__, "disagreement", lambda _: "")
    compiler = Path(copying_compiler(tmp_path))
    compiler.write_text(compiler.read_text().replace("#!/bin/sh", f'#!/bin/sh\necho called >> "{tmp_path / "calls"}"'))
    monkeypatch.setenv("CXX", str(compiler))
    made = Cache(fresh, tmp_path / "calls")
    assert made.restarted() is not None
    assert made.compiled() == 1
    return made


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    return lambda: " ".join(capsys.readouterr().err.split())


def test_kernels_in_a_folder_of_ones_own_are_found_again(cache: Cache, say: Say) -> None:
    say()
    for mode in (0o755, 0o700):
        cache.folder.chmod(mode)
        assert cache.restarted() is not None
    assert cache.compiled() == 1
    assert say() == ""


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
@pytest.mark.parametrize("which", ["the folder", "its parent"])
def test_a_folder_that_others_can_write_is_neither_read_nor_written(
    cache: Cache, say: Say, mode: int, which: str
) -> None:
    folder = cache.folder if which == "the folder" else cache.folder.parent
    folder.chmod(mode)
    say()
    before = sorted(cache.folder.iterdir())
    assert cache.restarted() is not None
    if which == "its parent" and mode == 0o1777:  # as /tmp: what is ours stays where it is
        assert cache.compiled() == 1
        return
    line = say()
    assert f"others can write {folder} (mode {mode:o})" in line
    assert f"chmod go-w {folder}" in line
    assert cache.compiled() == 2
    assert sorted(cache.folder.iterdir()) == before


@pytest.mark.parametrize("which", ["the folder", "its parent"])
def test_a_folder_of_another_user_is_neither_read_nor_written(
    cache: Cache, say: Say, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Only root can give a folder away; for anybody else, this user becomes another one."""
    folder, owner = cache.folder if which == "the folder" else cache.folder.parent, STRANGER
    if os.getuid() == 0:
        os.chown(folder, STRANGER, -1)
    else:
        owner, folder = os.getuid(), cache.folder
        monkeypatch.setattr(os, "getuid", lambda: STRANGER)
    say()
    before = sorted(cache.folder.iterdir())
    cache.restarted()
    line = say()
    assert f"{folder} belongs to user {owner}" in line
    assert "set POSCLI_CACHE to a folder of your own" in line
    assert cache.compiled() == 2
    assert sorted(cache.folder.iterdir()) == before


def test_a_link_to_a_folder_that_others_can_write_is_followed_before_it_is_checked(
    cache: Cache, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    cache.folder.rename(tmp_path / "open" / "native")
    (tmp_path / "link").symlink_to(tmp_path / "open")
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "link"))
    say()
    assert cache.restarted() is not None
    assert f"others can write {tmp_path / 'open'} " in say()
    assert cache.compiled() == 2


def test_a_link_in_place_of_the_kernels_is_not_followed(cache: Cache, say: Say, tmp_path: Path) -> None:
    path, whole = cache.kept, cache.kept.read_bytes()
    path.rename(tmp_path / "elsewhere.so")
    path.symlink_to(tmp_path / "elsewhere.so")
    assert cache.restarted() is not None
    assert "could have been written by another user" in say()
    assert cache.compiled() == 2
    assert not cache.kept.is_symlink()
    assert cache.kept.read_bytes() == whole


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can give a file away")
def test_kernels_of_another_user_are_not_run(cache: Cache, say: Say) -> None:
    os.chown(cache.kept, STRANGER, -1)
    assert cache.restarted() is not None
    assert "could have been written by another user" in say()
    assert cache.compiled() == 2
    assert cache.kept.stat().st_uid == 0


@pytest.mark.parametrize("open_files", ["/proc/self/fd", "/there/is/no/such/folder"])
@pytest.mark.parametrize("moment", ["after the hash", "before the load"])
def test_what_is_loaded_is_what_was_hashed(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, moment: str, open_files: str
) -> None:
    """Another file takes the place of the kernels between the two."""
    path, whole, loaded = cache.kept, cache.kept.read_bytes(), []
    sha256, load = hashlib.sha256, ctypes.CDLL

    def exchange() -> None:
        (other := path.with_name("other")).write_bytes(whole + b"planted")
        other.replace(path)

    def hashing(content: bytes) -> object:
        done = sha256(content)
        if content == whole and moment == "after the hash":
            exchange()
        return done

    def loading(name: str) -> ctypes.CDLL:
        if moment == "before the load":
            exchange()
        loaded.append(Path(name).read_bytes())
        return load(name)

    monkeypatch.setitem(library_of.__globals__, "OPEN_FILES", Path(open_files))
    monkeypatch.setattr(hashlib, "sha256", hashing)
    monkeypatch.setattr(ctypes, "CDLL", loading)
    assert cache.restarted() is not None
    assert path.read_bytes() == whole + b"planted"
    assert loaded == [whole]
    assert cache.compiled() == 1


def test_a_second_library_is_not_taken_for_the_first(cache: Cache, tmp_path: Path) -> None:
    """The system gives the number of a closed file to the next one, and loaders know files by it."""
    first = library()
    (other := tmp_path / "other.so").write_bytes(Path(REAL).read_bytes() + b"\0")  # what follows a library is not read
    name = f"{cache.kept.stem.partition('-')[0]}-{hashlib.sha256(other.read_bytes()).hexdigest()[:16]}.so"
    cache.kept.unlink()
    other.replace(cache.folder / name)
    second = cache.restarted()
    assert cache.compiled() == 1
    assert first is not None
    assert second is not None
    assert first._handle != second._handle


def test_no_umask_leaves_folders_or_kernels_that_others_can_write(
    cache: Cache, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "new" / "cache"))
    before = os.umask(0)
    try:
        assert cache.restarted() is not None
    finally:
        os.umask(before)
    made = list((tmp_path / "new").rglob("*"))
    assert {path.suffix for path in made} == {"", ".so"}
    assert not any(path.stat().st_mode & 0o022 for path in [tmp_path / "new", *made])
    assert cache.restarted() is not None
    assert why_not() == ""
    assert cache.compiled() == 2
