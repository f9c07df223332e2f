"""The lock of a run: one process at a time works on a folder, and a file beside the lock says which one it is.

The lock is the kernel's (filelock), so that it ends with the process that holds it, however that process ends. Not
every file system has such locks: `unlockable` finds out where they do not hold. Some hold on one machine only; then a
file that names a process of another machine is the only sign of it.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from poscli.system.console import warn_once
from poscli.system.errors import CorruptError, LockedError, StorageError
from poscli.system.files import make_folder, read_object, remove_temporaries, storing
from poscli.system.text import utc_stamp

LOCK = ".lock"
HOLDER = ".holder.lock"  # names the process that holds the lock; empty once that has ended in order
GRACE_SECONDS = 0.3  # `is_locked` holds the lock for an instant, which must not turn a worker away
REFUSALS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)  # of a file system that has no locks
BOOT = Path("/proc/sys/kernel/random/boot_id")  # tells machines of one name, such as localhost, apart
CONTAINER = Path("/proc/self/ns/pid")  # a link that names the container in which processes are counted
_reasons: dict[int, str] = {}  # number of a file system -> why locks do not hold there, or ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder in the block; LockedError, which says who holds it, if another process does."""
    make_folder(folder)
    with unused(folder):
        remove_temporaries(folder)
        since, command = utc_stamp(), " ".join(["poscli", *sys.argv[1:]])
        me = {"process": os.getpid(), "host": platform.node(), "boot": _boot(), "command": command, "since": since}
        path = folder / HOLDER
        with storing(folder):
            path.write_text(json.dumps(me))
        try:
            yield
        finally:
            if _holder(folder) == me and os.getpid() == me["process"]:  # a fork of this process holds nothing
                with suppress(OSError):
                    path.write_bytes(b"")  # not removed: the folder stays as it was if nothing changes


@contextmanager
def unused(folder: Path) -> Iterator[None]:
    """Hold the lock and write nothing, so that a run can be deleted while the disk is full; errors as of `locked`."""
    reason = unlockable(folder)
    if reason:
        warn_once(
            f"{reason}, so that two processes could work on the same run; run one at a time there, or put results on "
            "another file system with --out"
        )
    lock, owner = FileLock(folder / LOCK), os.getpid()
    with storing(folder):
        try:
            if not reason:
                lock.acquire(timeout=GRACE_SECONDS, poll_interval=0.05)
        except Timeout as error:
            raise LockedError(f"{folder.name} is being worked on by {holder_of(folder)}; wait for it to end") from error
    try:
        _look_for_other_holder(folder, without_locks=bool(reason))
        yield
    finally:
        if os.getpid() == owner:  # a fork shares the lock, and would take it from its parent
            lock.release()


def _look_for_other_holder(folder: Path, *, without_locks: bool) -> None:
    """LockedError if locks do not hold here (`without_locks`) and a process of this machine still works on a folder.

    A holder on another machine was killed, or its lock does not reach here: it is named in a warning.
    """
    holder = _holder(folder)
    if not holder or (_is_here(holder) and holder.get("process") == os.getpid()):
        return
    if not _is_here(holder):
        warn_once(
            f"{folder.name} was left by {_in_words(holder)}; if that still runs, locks do not hold between machines on "
            "this file system: end one of the two, or choose another folder with --out"
        )
    elif without_locks and _lives(holder):
        raise LockedError(
            f"locks do not hold on this file system: {_in_words(holder)} works on {folder.name}; wait for it to end, "
            "or choose another folder with --out"
        )


def unlockable(folder: Path) -> str:
    """Why locks do not hold on the file system of a folder, in words that name the folder; "" if they hold.

    The folder must exist. Each file system is tried once per process; StorageError if that fails.
    """
    with storing(folder):
        system = folder.stat().st_dev
        if system not in _reasons:
            fault = _fault_of_locks(folder / LOCK)
            _reasons[system] = f"the file system of {folder} {fault}" if fault else ""
    return _reasons[system]


def is_locked(folder: Path) -> bool:
    """Whether a process works on a run's folder; true if that cannot be found out."""
    try:
        if not (folder / LOCK).exists() or unlockable(folder):
            holder = _holder(folder)
            return bool(holder) and (not _is_here(holder) or _lives(holder))
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except (Timeout, OSError, StorageError):
        return True
    lock.release()
    return False


def holder_of(folder: Path) -> str:
    """The process that a folder names as its holder, in words."""
    return _in_words(_holder(folder))


def _in_words(holder: dict[str, Any]) -> str:
    """A holder in words; an empty one has just begun, and has not written its name yet."""
    if not holder:
        return "another process"
    return f"process {holder.get('process')} on {holder.get('host')} (`{holder.get('command')}`)"


def _holder(folder: Path) -> dict[str, Any]:
    """The process that a folder names as its holder; an empty dictionary if there is none, or half a name."""
    try:
        return read_object(folder / HOLDER, "")
    except CorruptError:
        return {}


def _boot() -> str:
    """The number that Linux draws when it starts, and the container, which counts its own processes; else ""."""
    try:
        return BOOT.read_text().strip() + str(CONTAINER.readlink())
    except OSError:
        return ""


def _is_here(holder: dict[str, Any]) -> bool:
    """Whether a holder is a process of this machine, since its last start."""
    return (holder.get("host"), holder.get("boot")) == (platform.node(), _boot())


def _lives(holder: dict[str, Any]) -> bool:
    """Whether a process of this machine lives; true if that cannot be found out."""
    try:
        if sys.platform != "win32":  # where signal 0 would be Ctrl-C
            os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return True
    return True


def _fault_of_locks(path: Path) -> str:
    """What is wrong with locks on a file, which is created if it is missing; "" if they hold.

    The file is locked through two descriptors. The second lock must be refused while the first is held.
    """
    if sys.platform == "win32":  # its file servers keep locks with the file that is open
        return ""
    import fcntl

    handles: list[int] = []
    taken = 0
    try:
        for _ in range(2):
            handles.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666))
            with suppress(BlockingIOError, PermissionError):  # some file systems say a lack of permission
                fcntl.flock(handles[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken += 1
        return "grants one lock twice" if taken == 2 else ""
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return f"refuses locks ({error.strerror})"
    finally:
        for handle in handles:
            os.close(handle)
