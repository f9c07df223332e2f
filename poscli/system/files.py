"""Writing files atomically: neither a reader nor a crash leaves a half-written file under its final name."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from poscli.system.errors import PoscliError


def write_atomic(path: Path, write: bytes | str | Callable[[Path], object]) -> None:
    """Write a file under a temporary name beside `path`, sync it to disk, then rename it to `path`.

    `write` is the content, or a function that writes the file at a given path. Raises PoscliError.
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
    """Create a folder and its parents; PoscliError with the reason if that fails."""
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
    """Sync a folder to disk, so that a rename inside it survives a power failure. Does nothing on Windows."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # Windows: folders cannot be opened, and the file system journals renames
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
