"""The lock of a run: one process at a time works on a folder, and the others can say which one it is.

The lock is the kernel's, so that it ends with the process that holds it, however that process ends. Not every file
system has such locks: `unlockable` finds out where they do not hold, and `holder` sees holders on other machines.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from poscli.runs.holder import beating, holder_of, names_holder, refuse_living_holder
from poscli.system.console import warn_once
from poscli.system.errors import LockedError, StorageError
from poscli.system.files import make_folder, remove_temporaries, storing

LOCK = ".lock"
GRACE_SECONDS = 0.3  # `is_locked` holds the lock for an instant, which must not turn a worker away
REFUSALS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)  # of a file system that has no locks
_reasons: dict[int, str] = {}  # number of a file system -> why locks do not hold there, or ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder in the block; LockedError, which says who holds it, if another process does."""
    make_folder(folder)
    with unused(folder):
        remove_temporaries(folder)
        with beating(folder):
            yield


@contextmanager
def unused(folder: Path) -> Iterator[None]:
    """Hold the lock and write nothing, so that a run can be deleted while the disk is full; errors as of `locked`."""
    reason = unlockable(folder)
    if reason:
        warn_once(
            f"{reason}, so that two processes could work on the same run; run one at a time there, or put results on "
            "another file system with --out"
        )
    with nullcontext() if reason else _kernel_lock(folder):
        refuse_living_holder(folder, without_locks=bool(reason))
        yield


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
    """Whether a process holds the lock of a run's folder; true if that cannot be found out."""
    try:
        if not (folder / LOCK).exists() or unlockable(folder):
            return names_holder(folder)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except (Timeout, OSError, StorageError):
        return True
    lock.release()
    return False


@contextmanager
def _kernel_lock(folder: Path) -> Iterator[None]:
    lock, owner = FileLock(folder / LOCK), os.getpid()
    with storing(folder):
        try:
            lock.acquire(timeout=GRACE_SECONDS, poll_interval=0.05)
        except Timeout as error:
            raise LockedError(f"{folder.name} is being worked on by {holder_of(folder)}; wait for it to end") from error
    try:
        yield
    finally:
        if os.getpid() == owner:  # a fork shares the lock, and would take it from its parent
            lock.release()


def _fault_of_locks(path: Path) -> str:
    """What is wrong with locks on a file, which is created if it is missing; "" if they hold.

    The file is locked through two descriptors. The second lock must be refused while the first is held.
    """
    if sys.platform == "win32":  # its file servers keep locks with the file that is open
        return ""
    handles: list[int] = []
    try:
        for _ in range(2):
            handles.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666))
        return "grants one lock twice" if all(map(_take, handles)) else ""
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return f"refuses locks ({error.strerror})"
    finally:
        for handle in handles:
            os.close(handle)


def _take(handle: int) -> bool:
    """Lock an open file, if it is free; OSError if the file system cannot tell."""
    assert sys.platform != "win32"
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some file systems call a lock that is held a lack of permission
        return False
    return True
