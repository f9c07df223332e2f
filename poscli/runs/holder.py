"""The process that holds a lock, named in a file that it renews every few seconds for as long as it lives.

File systems exist whose locks hold on one machine only. A process on another machine gets such a lock as well; it sees
by the beats of this file that the holder lives. Clocks of two machines differ, so that only changes count, never times.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from poscli.system.console import note, warn_once
from poscli.system.errors import CorruptError, LockedError
from poscli.system.files import parse_object, storing

HOLDER = ".holder.lock"
BEAT_SECONDS = 2.0  # from one beat to the next
WATCH_SECONDS = 10.0  # without a beat, after which a holder counts as dead: several beats, and a slow file server
LOOK_SECONDS = 0.5  # from one look at another process's file to the next
BOOT = Path("/proc/sys/kernel/random/boot_id")  # tells machines of one name, such as localhost, apart


@contextmanager
def beating(folder: Path) -> Iterator[None]:
    """In the block, a file in the folder names this process, and a thread renews it; StorageError if that cannot begin.

    The file is empty afterwards. It is not removed, so that the folder stays as it was if the process changes nothing.
    """
    me, path, end = _this_process(), folder / HOLDER, threading.Event()
    thread = threading.Thread(target=_beat, args=(path, me, end), name="beat", daemon=True)
    try:
        with storing(folder):
            _overwrite(path, _content(me, 0), os.O_CREAT)
        thread.start()
        yield
    finally:
        if os.getpid() == me["process"]:  # a fork of it holds nothing
            end.set()
            if thread.ident:
                thread.join(WATCH_SECONDS)  # else its last beat could come after the end
            with suppress(OSError):  # processes on other machines will watch for some seconds whether this one lives
                if _is_mine(path, me):
                    _overwrite(path, b"")


def refuse_living_holder(folder: Path, *, without_locks: bool) -> None:
    """LockedError if a process that no lock keeps apart from this one works on a folder, which takes seconds to see.

    These are processes on other machines; `without_locks`, where locks do not hold at all, those on this one as well.
    Returns at once where the last holder ended in order, or was on this machine.
    """
    path = folder / HOLDER
    seen = _read(path)
    if not _may_live(known := _parsed(seen), without_locks):
        return
    note(f"{folder.name} was left by {in_words(known)}; watching for up to {WATCH_SECONDS:g} s whether that still runs")
    for _ in range(round(WATCH_SECONDS / LOOK_SECONDS)):
        time.sleep(LOOK_SECONDS)
        now = _read(path)
        if not now:  # it has just ended in order
            return
        if now != seen:
            where = "on this file system" if without_locks else "between machines on this file system"
            raise LockedError(
                f"locks do not hold {where}: {in_words(_parsed(now))} works on {folder.name}; wait for it to end, "
                "or choose another folder with --out"
            )


def holder_of(folder: Path) -> str:
    """The process named in a folder as its holder, in words."""
    return in_words(_parsed(_read(folder / HOLDER)))


def names_holder(folder: Path) -> bool:
    """Whether a process works on a folder, or was killed while it did."""
    return bool(_read(folder / HOLDER))


def in_words(process: dict[str, Any]) -> str:
    """The holder in words; an empty one has just begun, and has not written its name yet."""
    if not process:
        return "another process"
    return f"process {process.get('process')} on {process.get('host')} (`{process.get('command')}`)"


def _this_process() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    command = " ".join(["poscli", *sys.argv[1:]])
    return {"process": os.getpid(), "host": platform.node(), "boot": _boot(), "command": command, "since": since}


def _boot() -> str:
    """The number that Linux draws when it starts; "" on other systems."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def _may_live(holder: dict[str, Any], without_locks: bool) -> bool:
    """Whether a holder may be alive although this process got its lock."""
    me = _this_process()
    if "beat" not in holder:  # there is none, or one of an older version, which left the file behind without beats
        return False
    same_machine = all(holder.get(key) == me[key] for key in ("host", "boot"))
    if same_machine and holder.get("process") == me["process"]:
        return False
    return without_locks or not same_machine


def _content(me: dict[str, Any], beat: int) -> bytes:
    """The content of the file, which has the same length at every beat."""
    return json.dumps(me | {"beat": f"{beat:012d}"}).encode()


def _beat(path: Path, me: dict[str, Any], end: threading.Event) -> None:
    """Renew the file until `end` is set, or until it names another process. What fails is tried again the next time."""
    beat = 0
    while not end.wait(BEAT_SECONDS):
        beat += 1
        if not _is_mine(path, me):
            _warn_of_second(path)
            return
        with suppress(OSError):  # a run does not fail because others cannot see that it lives
            _overwrite(path, _content(me, beat))


def _warn_of_second(path: Path) -> None:
    if other := _parsed(_read(path)):
        warn_once(
            f"{in_words(other)} has begun to work on {path.parent.name}, too, because locks do not hold there; "
            "end one of the two"
        )


def _is_mine(path: Path, me: dict[str, Any]) -> bool:
    known = _parsed(_read(path))
    return {key: known.get(key) for key in me} == me


def _overwrite(path: Path, content: bytes, flags: int = 0) -> None:
    """Give a file another content in place: no reader finds it empty, and no more space is needed on a full disk.

    A file that is missing is created only with the flag O_CREAT: a run that was deleted stays deleted.
    """
    handle = os.open(path, os.O_WRONLY | flags, 0o666)
    try:
        os.write(handle, content)
        os.ftruncate(handle, len(content))
    finally:
        os.close(handle)


def _read(path: Path) -> bytes:
    """The content of a file, opened anew because network file systems look for changes then; empty if there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parsed(content: bytes) -> dict[str, Any]:
    """The process in the content of a file; an empty one if there is none, or only a part of it."""
    try:
        return parse_object(content, Path(HOLDER), "")
    except CorruptError:
        return {}
