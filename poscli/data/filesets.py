"""The files that a path in a spec stands for, and reading them with errors that name the file."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poscli.system.errors import DataError


def find_files(kind: str, argument: str, suffix: str = "") -> tuple[str, list[Path]]:
    """(absolute path, sorted files) of a path in a spec: a file, a folder or a glob pattern.

    A folder stands for all files below it that end in `suffix`, except for hidden files and those in hidden folders
    (their names begin with a dot). Raises DataError if there is no file.
    """
    try:
        path = Path(argument).expanduser().resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name, a loop of links, no home folder
        raise DataError(f"{kind}:{argument} is no path: {error}") from error
    with readable(path):
        if path.is_file():
            return str(path), [path]
        if path.is_dir():
            files = [f for f in path.rglob(f"*{suffix}") if f.is_file() and not _hidden(f.relative_to(path))]
            fault = f"the folder {path} holds no file named *{suffix}"
        else:
            names = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            files = [Path(name) for name in names if Path(name).is_file()]
            fault = f"{path} is no file, no folder and no pattern that matches a file"
    if not files:
        raise DataError(f"{kind}:{argument}: {fault}; check the path")
    return str(path), sorted(files)


def stamps(files: list[Path]) -> list[tuple[str, int, int]]:
    """Path, size and modification time (ns) of each file: the stamp of a source that reads these files."""
    stats = [(path, path.stat()) for path in files]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def read_file(path: Path) -> bytes:
    """The bytes of a file; DataError if it cannot be read."""
    with readable(path):
        return path.read_bytes()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn an OSError raised in the block into a DataError that names `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot read {path}: {reason}; make it readable or leave it out of the corpus") from error


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
