"""The lock of a run: one process at a time works on a folder, and the others can say which one it is.

The lock is the kernel's, so that it ends with the process that holds it, however that process ends.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from poscli.system.errors import CorruptError, LockedError
from poscli.system.files import make_folder, read_object, remove_temporaries, storing

LOCK, HOLDER = ".lock", ".holder.lock"  # the lock itself, and who holds it
GRACE_SECONDS = 0.3  # `is_locked` holds the lock for an instant, which must not turn a worker away


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder in the block; LockedError, which says who holds it, if another process does."""
    make_folder(folder)
    with unused(folder):
        remove_temporaries(folder)
        with storing(folder):
            (folder / HOLDER).write_text(json.dumps(_this_process()))
        yield


@contextmanager
def unused(folder: Path) -> Iterator[None]:
    """Hold the lock and write nothing, so that a run can be deleted while the disk is full; errors as of `locked`."""
    lock = FileLock(folder / LOCK)
    with storing(folder):
        try:
            lock.acquire(timeout=GRACE_SECONDS, poll_interval=0.05)
        except Timeout as error:
            raise LockedError(f"{folder.name} is being worked on by {_holder(folder)}; wait for it to end") from error
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a run's folder; true if that cannot be found out."""
    if not (folder / LOCK).exists():
        return False
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def _this_process() -> dict[str, object]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    command = " ".join(["poscli", *sys.argv[1:]])
    return {"process": os.getpid(), "host": platform.node(), "command": command, "since": since}


def _holder(folder: Path) -> str:
    """The process that holds a lock, in words."""
    try:
        known = read_object(folder / HOLDER, "")
    except CorruptError:  # the holder has just begun, and has not written its name yet
        return "another process"
    return f"process {known.get('process')} on {known.get('host')} (`{known.get('command')}`)"
