"""The library of compiled kernels: compiled once, torch's kernels without it, and no code that others could plant."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from compiled import REAL, needs_kernels
from torch.nn import functional as F
from toys import make

from poscli.attention import Place, choose
from poscli.model.transformer import RMSNorm
from poscli.native import library, why_not
from poscli.native import library as library_of

STRANGER = 12345  # a user
Say = Callable[[], str]


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without kernels, and a process that has not loaded any."""
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("POSCLI_NATIVE", raising=False)
    # The kernels that this process has loaded come back afterwards: whoever had to load them again would say so.
    loaded = library_of.__globals__["_loaded"]
    monkeypatch.setitem(library_of.__globals__, "_loaded", functools.cache(loaded.__wrapped__))
    return tmp_path / "native"


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def copying_compiler(folder: Path) -> str:
    """A compiler that needs no time: it copies the kernels of this machine to where they are asked for."""
    if not Path(REAL).exists():
        pytest.skip("the kernels of this process are not kept")
    return fake_compiler(folder, f'while [ "$1" != -o ]; do shift; done; cp "{REAL}" "$2"')


def assert_torch_takes_over(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert library() is None
    assert reason in why_not()
    choice = choose(make("alibi"))
    assert choice.name == "sdpa"
    assert reason in choice.reason
    assert reason in " ".join(capsys.readouterr().err.split())
    norm = RMSNorm(8)
    assert torch.equal(norm(torch.ones(2, 8)), F.rms_norm(torch.ones(2, 8), (8,), norm.weight, 1e-6))


def test_kernels_that_this_machine_compiles_are_right() -> None:
    """Without kernels the other tests of them are skipped, also if it is their own proof that refuses them."""
    assert "are wrong on this CPU" not in why_not()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("PATH", "/nowhere", "no C++ compiler (c++, g++, clang++) is found"),
        ("CXX", "c+++", "CXX=c+++ is not found"),
        ("CXX", "echo 'In x.cpp:\nx.cpp:1: error: no way' >&2; exit 1", "cannot compile them: x.cpp:1: error: no way"),
        ("CXX", "echo ' no idea ' >&2; exit 1", "cannot compile them: no idea"),
        ("CXX", "exit 3", "cannot compile them: it ended with code 3 and said nothing"),
        ("CXX", 'while [ "$1" != -o ]; do shift; done; echo no > "$2"', "the compiled kernels cannot be loaded"),
    ],
    ids=[
        "none is there",
        "the one that is asked for is not there",
        "it fails",
        "it says little",
        "it says nothing",
        "it writes no library",
    ],
)
def test_without_a_compiler_that_works_torch_takes_over(
    fresh, monkeypatch, capsys, tmp_path, name, value, reason
) -> None:
    monkeypatch.setenv(name, fake_compiler(tmp_path, value) if " " in value else value)
    assert_torch_takes_over(reason, capsys)
    assert not list(fresh.glob("*"))


def test_apples_compiler_is_not_asked_for_openmp_that_it_lacks(fresh, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert_torch_takes_over("is found but Apple's, which has no OpenMP; CXX may name another", capsys)


@needs_kernels
def test_kernels_that_are_wrong_are_not_used(fresh, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    monkeypatch.setitem(library_of.__globals__, "disagreement", lambda _: "the output differs by 1.0")
    assert_torch_takes_over("wrong on this CPU: the output differs by 1.0", capsys)
    assert not list(fresh.glob("*"))


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSCLI_NATIVE", "0")
    assert choose(make("none")).name == "sdpa"
    assert choose(make("none")).reason == "not native: POSCLI_NATIVE=0 switches compiled kernels off"
    assert choose(make("none"), place=Place(gradient=False)).name == "tiles"


@needs_kernels
def test_kernels_are_compiled_once_and_damaged_ones_again(fresh, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    assert library() is not None
    assert "compiling kernels for this CPU, once" in capsys.readouterr().err
    (kept,) = fresh.iterdir()
    assert re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]{16}\.so", kept.name)
    whole = kept.read_bytes()
    library_of.__globals__["_loaded"].cache_clear()
    assert library() is not None
    assert capsys.readouterr().err == ""
    kept.unlink()  # the loaded file stays as it is
    kept.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    library_of.__globals__["_loaded"].cache_clear()
    assert library() is not None
    assert "is damaged: its kernels are compiled again" in " ".join(capsys.readouterr().err.split())
    assert [path.read_bytes() for path in fresh.iterdir()] == [whole]


@needs_kernels
def test_a_folder_that_cannot_be_written_costs_a_compilation_and_nothing_else(
    fresh, monkeypatch, capsys, tmp_path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", copying_compiler(tmp_path))
    assert library() is not None
    assert why_not() == ""
    assert "cannot be kept" in " ".join(capsys.readouterr().err.split())


# What others could have written. Owners and modes are those of POSIX.

posix = pytest.mark.skipif(os.name != "posix" or not REAL, reason="needs owners and modes, and kernels")


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
def cache(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
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


def assert_neither_read_nor_written(cache: Cache, say: Say, *said: str) -> None:
    """The kernels are compiled for this process alone, what lies in the folder stays, and a line says why."""
    say()
    before = sorted(cache.folder.iterdir())
    assert cache.restarted() is not None
    line = say()
    assert all(each in line for each in said), line
    assert cache.compiled() == 2
    assert sorted(cache.folder.iterdir()) == before


@posix
def test_kernels_in_a_folder_of_ones_own_are_found_again(cache: Cache, say: Say) -> None:
    """Also in one whose parent is open and sticky, as /tmp: what is ours stays where it is."""
    say()
    for folder, mode in ((cache.folder, 0o755), (cache.folder, 0o700), (cache.folder.parent, 0o1777)):
        folder.chmod(mode)
        assert cache.restarted() is not None
    assert cache.compiled() == 1
    assert say() == ""


@posix
@pytest.mark.parametrize(
    ("which", "mode"), [("native", 0o775), ("native", 0o757), ("native", 0o1777), ("..", 0o775), ("..", 0o777)]
)
def test_a_folder_that_others_can_write_is_neither_read_nor_written(
    cache: Cache, say: Say, which: str, mode: int
) -> None:
    folder = cache.folder if which == "native" else cache.folder.parent
    folder.chmod(mode)
    assert_neither_read_nor_written(cache, say, f"others can write {folder} (mode {mode:o})", f"chmod go-w {folder}")


@posix
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
    said = f"{folder} belongs to user {owner}", "set POSCLI_CACHE to a folder of your own"
    assert_neither_read_nor_written(cache, say, *said)


@posix
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


@posix
@pytest.mark.parametrize("how", ["a link", "of another user"])
def test_kernels_that_another_user_could_have_written_are_not_run(
    cache: Cache, say: Say, tmp_path: Path, how: str
) -> None:
    path, whole = cache.kept, cache.kept.read_bytes()
    if how == "a link":
        path.rename(tmp_path / "elsewhere.so")
        path.symlink_to(tmp_path / "elsewhere.so")
    elif os.getuid() == 0:
        os.chown(path, STRANGER, -1)
    else:
        pytest.skip("only root can give a file away")
    assert cache.restarted() is not None
    assert "could have been written by another user" in say()
    assert cache.compiled() == 2
    assert not cache.kept.is_symlink()
    assert cache.kept.stat().st_uid == os.getuid()
    assert cache.kept.read_bytes() == whole


@posix
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
