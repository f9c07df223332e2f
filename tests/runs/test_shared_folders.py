"""File systems without locks, and those whose locks hold on one machine only: what is detected, and what is said."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import ALIBI, cli, run_of

from poscli.runs import lock
from poscli.runs.lock import HOLDER, holder_of, is_locked, locked, unlockable
from poscli.runs.run import delete_run
from poscli.system import console
from poscli.system.errors import LockedError, StorageError


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system was tried before, and no warning was given."""
    monkeypatch.setattr(lock, "_reasons", {})
    monkeypatch.setattr(console, "_warned", set())


def no_locks(monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    """A file system that grants every lock, or refuses all with an error."""

    def flock(handle: int, operation: int) -> None:
        if code:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)


def left_behind(folder: Path, **changes: object) -> None:
    """Leave the file of a process that was killed, or whose lock does not reach this machine."""
    with locked(folder):
        known = json.loads((folder / HOLDER).read_text())
    (folder / HOLDER).write_text(json.dumps(known | changes))


@pytest.fixture
def ended_process() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_locks_hold_here_and_are_tried_once(tmp_path: Path, monkeypatch) -> None:
    assert unlockable(tmp_path) == ""
    no_locks(monkeypatch)
    assert unlockable(tmp_path) == ""  # known by now
    monkeypatch.setattr(lock, "_reasons", {})
    assert unlockable(tmp_path) == f"the file system of {tmp_path} grants one lock twice"


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


@pytest.mark.parametrize("code", [0, errno.ENOLCK])
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


def test_without_locks_a_living_process_of_this_machine_is_seen(
    tmp_path: Path, monkeypatch, ended_process: int
) -> None:
    no_locks(monkeypatch)
    left_behind(tmp_path, process=os.getppid())
    assert is_locked(tmp_path)
    begin = rf"^locks do not hold on this file system: process {os.getppid()} on .* works on {tmp_path.name}; wait for"
    with pytest.raises(LockedError, match=begin):
        locked(tmp_path).__enter__()
    with pytest.raises(LockedError, match=begin):
        delete_run(tmp_path)
    known = json.loads((tmp_path / HOLDER).read_text())
    for process, lives in (("x", True), (None, True), (2**100, True), (ended_process, False)):  # if in doubt, it lives
        (tmp_path / HOLDER).write_text(json.dumps(known | {"process": process}))
        assert is_locked(tmp_path) is lives
    with locked(tmp_path):
        pass


def test_a_holder_on_another_machine_is_named_in_a_warning(here: Path, monkeypatch, capsys) -> None:
    """It was killed, or locks end at the machine. Another machine may have the name of this one: a container's."""
    assert cli(*ALIBI).code == 0
    folder = run_of("results", "alibi").folder
    for number, changes in ((4711, {"host": "far\n\x1b[31m"}), (os.getpid(), {"boot": "another"})):
        left_behind(folder, process=number, **changes)
        monkeypatch.setattr(console, "_warned", set())
        result = cli(*ALIBI)
        assert result.code == 0
        (line,) = [line for line in result.err.splitlines() if line.startswith("note: ")]
        assert line.startswith(f"note: {folder.name} was left by process {number} on ")
        assert "if that still runs, locks do not hold between machines on this file system: end one of the two" in line
        assert "\x1b" not in line
        assert (folder / HOLDER).read_bytes() == b""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"process": 7, "host"'], ids=repr)
def test_a_name_that_is_not_whole_stops_nobody(content: str, tmp_path: Path, capsys, monkeypatch) -> None:
    """The holder leaves the folder as it was. Only Linux tells a start of a machine from another one."""
    monkeypatch.setattr(lock, "BOOT", tmp_path / "nowhere")
    (tmp_path / HOLDER).write_text(content)
    assert holder_of(tmp_path) == "another process"
    (tmp_path / ".lock").touch()
    before = tmp_path.stat().st_mtime_ns
    with locked(tmp_path):
        assert f"process {os.getpid()} on {platform.node()} (`poscli" in holder_of(tmp_path)
    assert capsys.readouterr().err == ""
    assert (tmp_path / HOLDER).read_bytes() == b""
    assert tmp_path.stat().st_mtime_ns == before


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_does_not_end_what_its_parent_holds(tmp_path: Path) -> None:
    context = locked(tmp_path)
    context.__enter__()
    if (child := os.fork()) == 0:
        context.__exit__(None, None, None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_locked(tmp_path)
    assert (tmp_path / HOLDER).read_bytes()
    context.__exit__(None, None, None)
    assert not is_locked(tmp_path)
