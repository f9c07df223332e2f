"""The files that a path in a spec stands for, their state, and reading them with errors that name them."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poscli.errors import DataError


def find(kind: str, argument: str, suffix: str = "") -> tuple[str, list[Path]]:
    """The absolute form of a file, folder or glob, and its files: those of a folder are found recursively.

    In a folder, files and folders whose name begins with a dot are passed over, as are files without `suffix`.
    """
    path = Path(argument).expanduser().resolve()
    with readable(path):
        if path.is_file():
            return str(path), [path]
        if path.is_dir():
            files = [file for file in path.rglob(f"*{suffix}") if file.is_file() and _shown(file.relative_to(path))]
            fault = f"the folder {path} holds no file named *{suffix}"
        else:
            names = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            files = [Path(name) for name in names if Path(name).is_file()]
            fault = f"{path} is no file, no folder and no pattern that matches a file"
    if not files:
        raise DataError(f"{kind}:{argument}: {fault}; check the path")
    return str(path), sorted(files)


def state(files: list[Path]) -> list[tuple[str, int, int]]:
    """Path, size and time of every file: what changes when one is edited."""
    stats = [(path, path.stat()) for path in files]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def read(path: Path) -> bytes:
    """A file's bytes; DataError if the system refuses them."""
    with readable(path):
        return path.read_bytes()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what goes wrong while `path` is read into a DataError that names it."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot read {path}: {reason}; make it readable or leave it out of the corpus") from error


def _shown(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts)
