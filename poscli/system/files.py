"""Reading and writing files: nothing is left half-written under its final name, and every failure names the path."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poscli.system.errors import CorruptError, DataError, StorageError

NO_SYNC = (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP)  # of file systems that cannot sync folders
TEMPORARY = ".tmp"  # the end of the names of files that are being written


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file under a temporary name beside `path`, sync it to disk, rename it to `path`, sync the folder.

    A reader, a crash or a power failure at any moment finds the old file or the new one. Raises StorageError.
    """
    path = Path(path)
    make_folder(path.parent)
    with storing(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=TEMPORARY)
        try:
            try:
                rest = memoryview(content.encode() if isinstance(content, str) else content)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                sync(handle)
                if os.name != "nt":  # mkstemp makes files private
                    mask = os.umask(0)
                    os.umask(mask)
                    with contextlib.suppress(OSError):  # some mounted file systems have no modes to change
                        os.fchmod(handle, 0o666 & ~mask)
            finally:
                os.close(handle)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
        sync_folder(path.parent)


def write_display(path: Path, content: str) -> None:
    """Write a file that only people look at, whole or not at all. If that fails, it is stale, and nothing else."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    with contextlib.suppress(OSError):
        temporary.write_text(content)
        temporary.replace(path)


def remove_display(path: Path) -> None:
    """Remove a file that `write_display` wrote, if there is one."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, durably; StorageError if that fails."""
    with storing(path):
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            sync_folder(each.parent)


def check_folder(path: Path, option: str) -> None:
    """StorageError if no file can be written to a folder, so that nobody computes for it; `option` named the folder."""
    nearest = next(each for each in (path.absolute(), *path.absolute().parents) if os.path.lexists(each))
    if not nearest.is_dir():
        raise StorageError(f"cannot write {path}: {nearest} is not a folder; choose another folder with {option}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {path}: {nearest} is read-only; choose another folder with {option}")


def remove_temporaries(folder: Path) -> None:
    """Remove files that a process killed in `write_atomic` left in a folder or directly below it.

    No other process may be writing there.
    """
    with storing(folder):
        for path in (*folder.glob(f".*{TEMPORARY}"), *folder.glob(f"*/.*{TEMPORARY}")):
            if path.is_file():
                path.unlink(missing_ok=True)


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an OSError raised in the block, which writes `path`, into a StorageError that names it."""
    try:
        yield
    except OSError as error:
        room = "make room, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; {room}choose another folder: "
            "nothing finished is lost, and the same command goes on"
        ) from error


def read_bytes(path: Path, cure: str) -> bytes:
    """The content of a file. CorruptError, which ends with `cure`, if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CorruptError(f"{path} is missing; {cure}") from error
    except OSError as error:
        raise CorruptError(f"{path} cannot be read ({error.strerror or error}); {cure}") from error


def read_object(path: Path, cure: str) -> dict[str, Any]:
    """The JSON object in a file. CorruptError, which ends with `cure`, if there is none."""
    return parse_object(read_bytes(path, cure), path, cure)


def parse_object(content: bytes, path: Path, cure: str) -> dict[str, Any]:
    """The JSON object in `content`, which was read from `path`. CorruptError, ending with `cure`, if it is none."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise CorruptError(f"{path} is not JSON ({str(error).splitlines()[0]}); {cure}") from error
    if not isinstance(value, dict):
        raise CorruptError(f"{path} is a JSON {type(value).__name__}, not an object; {cure}")
    return value


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(handle: int) -> None:
    """Wait until what was written to an open file or folder is on the disk, where a power failure leaves it."""
    if sys.platform == "darwin":  # whose fsync waits until the drive has it, perhaps in its memory only
        import fcntl

        with contextlib.suppress(OSError):  # some file systems cannot do more
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)


def sync_folder(path: Path) -> None:
    """Sync a folder to disk, so that a rename inside it survives a power failure. Does nothing on Windows."""
    if os.name == "nt":  # folders cannot be opened, and the file system journals renames
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """$POSCLI_CACHE, or `poscli` in the user's cache folder. Raises DataError if no home folder is known."""
    variable, usual = ("LOCALAPPDATA", "~/AppData/Local") if sys.platform == "win32" else ("XDG_CACHE_HOME", "~/.cache")
    named = os.environ.get("POSCLI_CACHE")
    try:
        return Path(named).expanduser() if named else Path(os.environ.get(variable) or usual).expanduser() / "poscli"
    except RuntimeError as error:  # there is no such user, or no home folder
        raise DataError(f"cannot find the cache folder: {error}; set POSCLI_CACHE to a folder") from error


def make_in_cache(folder: Path) -> None:
    """Create a folder of the cache and its missing parents, which nobody else can write, whatever the umask.

    Compiled kernels lie in the cache, and are run only if nobody else can have put them there. Raises OSError.
    """
    for missing in reversed([each for each in (folder, *folder.parents) if not os.path.lexists(each)]):
        missing.mkdir(mode=0o755, exist_ok=True)
