"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from poscli.errors import PoscliError


def write_atomic(path: Path, write: bytes | str | Callable[[Path], object]) -> None:
    """Write `path` under a temporary name beside it, sync it to disk, then rename it into place.

    `write` is the content, or a function that writes a file at the path it is given (pandas, safetensors, ...).
    """
    path = Path(path)
    make_folder(path.parent)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        raise PoscliError(f"cannot write {path}: {error.strerror}; choose another folder with --out") from error
    os.close(handle)
    temporary = Path(name)
    try:
        if callable(write):
            write(temporary)
        else:
            temporary.write_bytes(write.encode() if isinstance(write, str) else write)
        _sync(temporary)
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files private
        temporary.replace(path)
    except OSError as error:
        raise PoscliError(
            f"cannot write {path}: {error.strerror or error}; free space or choose another --out"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its parents; say which path cannot be made, and why."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PoscliError(f"cannot create {path}: {error.strerror}; choose another folder with --out") from error


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make a rename inside `path` survive a power failure (a no-op where folders cannot be opened)."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # Windows: folders have no descriptor, and renames are journalled
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
