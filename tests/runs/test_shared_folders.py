"""File systems without locks, and those whose locks hold on one machine only: what is detected, and what is said."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import ALIBI, cli, run_of

from poscli.runs import holder, lock
from poscli.runs.delete import delete_run
from poscli.runs.holder import HOLDER
from poscli.runs.lock import is_locked, locked, unlockable
from poscli.system import console
from poscli.system.errors import LockedError, StorageError

PATIENCE_SECONDS = 60.0  # for what another thread does at once, unless the machine is busy
REAL_FLOCK = fcntl.flock


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system was tried before, and no warning was given."""
    monkeypatch.setattr(lock, "_reasons", {})
    monkeypatch.setattr(console, "_warned", set())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """What happens between two looks at another process's file, in place of the time that passes."""
    happens: list[Callable[[], object]] = []
    sleep = lambda seconds: [each() for each in happens]  # noqa: E731
    times = SimpleNamespace(sleep=sleep, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(holder, "time", times)
    return happens


def no_locks(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    """A file system that grants every lock, or refuses all with an error."""

    def flock(handle: int, operation: int) -> None:
        if code:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)


@contextmanager
def on_machine(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "node", lambda: name)
        yield


@contextmanager
def worked_on(folder: Path, machine: str = "far", beat_seconds: float = 3600.0) -> Iterator[None]:
    """A folder on which a process of another machine works, whose lock does not reach this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, "BEAT_SECONDS", beat_seconds)
        with on_machine(machine):
            entered = holder.beating(folder)
            entered.__enter__()
        yield
        entered.__exit__(None, None, None)


def left_behind(folder: Path, **changes: object) -> Path:
    """The file of a process that was killed."""
    known = json.loads(holder._content(holder._this_process(), 7))
    (folder / HOLDER).write_text(json.dumps(known | changes))
    return folder / HOLDER


def eventually(happened: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(happened())


def test_locks_hold_here_and_are_tried_once(tmp_path: Path, monkeypatch) -> None:
    assert unlockable(tmp_path) == ""
    no_locks(monkeypatch)
    assert unlockable(tmp_path) == ""  # known by now
    monkeypatch.setattr(lock, "_reasons", {})
    assert unlockable(tmp_path) == f"the file system of {tmp_path} grants one lock twice"


def test_a_lock_that_another_process_holds_does_hold(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert unlockable(tmp_path) == ""


def test_a_held_lock_may_be_told_as_a_lack_of_permission(tmp_path: Path, monkeypatch) -> None:
    kernels = fcntl.flock

    def flock(handle: int, operation: int) -> None:
        try:
            kernels(handle, operation)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error

    with locked(tmp_path):
        monkeypatch.setattr(fcntl, "flock", flock)
        assert is_locked(tmp_path)
        with pytest.raises(LockedError), locked(tmp_path):
            pass
    assert not is_locked(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=os.strerror)
def test_a_refusal_of_locks_is_told_from_other_errors(code: int, tmp_path: Path, monkeypatch) -> None:
    no_locks(monkeypatch, code)
    assert unlockable(tmp_path) == f"the file system of {tmp_path} refuses locks ({os.strerror(code)})"
    monkeypatch.setattr(lock, "_reasons", {})
    no_locks(monkeypatch, errno.EIO)
    with pytest.raises(StorageError, match="Input/output error"):
        unlockable(tmp_path)


@pytest.mark.parametrize("code", [0, errno.ENOLCK, errno.ENOSYS])
def test_without_locks_a_command_warns_once_and_goes_on(code: int, tmp_path: Path, monkeypatch, capsys) -> None:
    no_locks(monkeypatch, code)
    for name in ("one", "two"):
        with locked(tmp_path / name):
            assert is_locked(tmp_path / name)
        assert not is_locked(tmp_path / name)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"note: the file system of {tmp_path}/one ")
    assert "two processes could work on the same run; run one at a time there, or" in line
    assert line.endswith("--out")


def test_without_locks_a_living_process_of_this_machine_is_seen(tmp_path: Path, monkeypatch, looks) -> None:
    no_locks(monkeypatch)
    file = left_behind(tmp_path, process=1)
    looks.append(lambda: file.write_bytes(file.read_bytes().replace(b"7", b"8")))
    with pytest.raises(LockedError, match=r"^locks do not hold on this file system: process 1 on "):
        locked(tmp_path).__enter__()


def test_a_living_process_of_another_machine_is_seen_by_its_beats(tmp_path: Path, capsys) -> None:
    with worked_on(tmp_path, beat_seconds=0.01):
        with pytest.raises(LockedError) as caught:
            locked(tmp_path).__enter__()
        with pytest.raises(LockedError):
            delete_run(tmp_path)
    said = str(caught.value)
    begin = f"locks do not hold between machines on this file system: process {os.getpid()} on far (`poscli"
    assert said.startswith(begin)
    assert f"works on {tmp_path.name}; wait for it to end, or choose another folder with --out" in said
    assert "watching for up to 10 s" in capsys.readouterr().err
    with locked(tmp_path):  # the lock was given back, and the other process has ended
        pass


def test_a_command_says_so_in_one_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli(*ALIBI).code == 0
    with worked_on(run_of("results", "alibi").folder, beat_seconds=0.01):
        result = cli(*ALIBI)
    assert result.code == 75
    (line,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert "locks do not hold between machines" in line


def test_a_holder_that_was_killed_is_watched_and_then_replaced(tmp_path: Path, looks, capsys) -> None:
    """The other machine may have the name of this one: a container's, or localhost."""
    for changes in ({"host": "far"}, {"boot": "another"}):
        left_behind(tmp_path, **changes)
        times: list[int] = []
        looks[:] = [lambda times=times: times.append(1)]
        with locked(tmp_path):
            assert f"process {os.getpid()} on {platform.node()}" in holder.holder_of(tmp_path)
        assert len(times) == holder.WATCH_SECONDS / holder.LOOK_SECONDS
        assert "was left by process" in capsys.readouterr().err


def test_a_holder_that_ends_while_it_is_watched_is_waited_for(tmp_path: Path, looks) -> None:
    file, times = left_behind(tmp_path, host="far"), []
    looks.append(lambda: times.append(file.write_bytes(b"")))
    with locked(tmp_path):
        assert f"process {os.getpid()} on {platform.node()}" in holder.holder_of(tmp_path)
    assert len(times) == 1  # it is not watched to the end


@pytest.mark.parametrize(
    "content", ["", "{", '{"process": 7, "host": "far", "command": "poscli run"}', "[]", '{"beat": '], ids=repr
)
def test_who_cannot_be_another_machines_is_not_waited_for(content: str, tmp_path: Path, looks) -> None:
    """Nobody, half of a name, and versions of poscli that left the file behind whenever they ended."""
    looks.append(lambda: pytest.fail("it waited"))
    (tmp_path / HOLDER).write_text(content)
    with locked(tmp_path):
        pass
    left_behind(tmp_path, process=1)  # killed on this machine: the kernel's lock has ended with it
    with locked(tmp_path):
        pass


def test_the_holder_beats_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(holder, "BEAT_SECONDS", 0.01)
    with locked(tmp_path):
        pass
    before = tmp_path.stat().st_mtime_ns
    with locked(tmp_path):
        first = (tmp_path / HOLDER).read_bytes()
        assert eventually(lambda: (tmp_path / HOLDER).read_bytes() != first)
        beat = (tmp_path / HOLDER).read_bytes()
        assert len(beat) == len(first)
        assert json.loads(beat) | {"beat": ""} == json.loads(first) | {"beat": ""}
    assert (tmp_path / HOLDER).read_bytes() == b""
    assert tmp_path.stat().st_mtime_ns == before
    assert all(thread.name != "beat" for thread in threading.enumerate())


def test_beats_that_fail_do_no_harm_and_come_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(holder, "BEAT_SECONDS", 0.01)
    write, failed = holder._overwrite, []

    def full(path: Path, content: bytes, flags: int = 0) -> None:
        if b"000000000001" in content or b"000000000002" in content:
            failed.append(content)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content, flags)

    monkeypatch.setattr(holder, "_overwrite", full)
    with locked(tmp_path):
        assert eventually(lambda: (tmp_path / HOLDER).read_bytes()[-14:-2] >= b"000000000003")
    assert len(failed) == 2


def test_a_run_that_is_deleted_is_not_made_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(holder, "BEAT_SECONDS", 0.01)
    with locked(tmp_path):
        (tmp_path / HOLDER).unlink()
        assert eventually(lambda: all(thread.name != "beat" for thread in threading.enumerate()))
    assert not (tmp_path / HOLDER).exists()


def test_a_second_worker_is_noticed_by_the_first(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(holder, "BEAT_SECONDS", 0.01)
    with locked(tmp_path):
        theirs = left_behind(tmp_path, host="far\n\x1b[31m").read_bytes()
        assert eventually(lambda: all(thread.name != "beat" for thread in threading.enumerate()))
    assert (tmp_path / HOLDER).read_bytes() == theirs
    (line,) = capsys.readouterr().err.splitlines()
    assert "has begun to work on" in line
    assert "\x1b" not in line


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_does_not_end_what_its_parent_holds(tmp_path: Path) -> None:
    context = locked(tmp_path)
    context.__enter__()
    if (child := os.fork()) == 0:
        context.__exit__(None, None, None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_locked(tmp_path)
    assert holder.names_holder(tmp_path)
    context.__exit__(None, None, None)
    assert not is_locked(tmp_path)
