"""The files that a path in a spec stands for, and reading them with errors that name the file."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poscli.data import compressed
from poscli.system.errors import DataError
from poscli.system.text import printable


def find_files(kind: str, argument: str, suffixes: tuple[str, ...] = ("",)) -> tuple[str, list[Path]]:
    """(absolute path, sorted files) of a path in a spec: a file, a folder or a glob pattern.

    A folder stands for all files below it that end in one of `suffixes`, except for hidden files and those in hidden
    folders (their names begin with a dot). Raises DataError if there is no file.
    """
    path = _absolute(argument)
    with readable(path):
        if path.is_file():
            return str(path), [path]
        if path.is_dir():
            files = list(_below(path, suffixes))
            fault = f"the folder {printable(path)} holds no file named *{suffixes[0]}"
        else:
            names = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            files = [Path(name) for name in names if Path(name).is_file()]
            fault = f"{printable(path)} is no file, no folder and no pattern that matches a file"
    if not files:
        raise DataError(f"{kind}:{argument}: {fault}; check the path")
    return str(path), sorted(files)


def _absolute(argument: str) -> Path:
    try:
        with readable(Path(argument)):
            return Path(argument).expanduser().resolve()
    except (RuntimeError, ValueError) as error:  # links that form a loop, ~USER without such a user, a NUL
        raise DataError(f"cannot find {argument}: {error}; check the path") from error


def stamps(files: list[Path]) -> list[tuple[str, int, int]]:
    """Path, size and modification time (ns) of each file: the stamp of a source that reads these files."""
    found = []
    for path in files:
        with readable(path):
            stat = path.stat()
        found.append((str(path), stat.st_size, stat.st_mtime_ns))
    return found


def read_file(path: Path) -> bytes:
    """The bytes of a file, decompressed if it is .gz or .zst; DataError if it cannot be read or expands too far."""
    with readable(path):
        if path.suffix not in compressed.SUFFIXES:
            return path.read_bytes()
        with compressed.open_stream(path) as stream:
            content = stream.read(compressed.LARGEST_DOCUMENT_BYTES + 1)
    if len(content) > compressed.LARGEST_DOCUMENT_BYTES:
        raise compressed.too_large(printable(path))
    return content


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an OSError raised in the block into a DataError that names `path`."""
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error.strerror or error).split())  # pyarrow raises OSErrors of several lines
        raise DataError(
            f"cannot read {printable(path)}: {reason}; make it readable or leave it out of the corpus"
        ) from error


def _below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files below a folder that are not hidden and have one of the suffixes."""

    def fail(error: OSError) -> None:
        raise error  # os.walk passes over folders that cannot be read, unless it is told not to

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(parent, name) for name in names if not name.startswith(".") and name.endswith(suffixes)]
        yield from (path for path in paths if path.is_file())
