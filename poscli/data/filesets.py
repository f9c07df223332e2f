"""The files that a path in a spec stands for, and reading them with errors that name the file.

Files may be compressed: `.gz` and `.zst` are decompressed piece by piece, and only up to a limit. Of files of rows, one
field of each row is a document.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from poscli.data.source import Document, Reading, Source
from poscli.system.errors import DataError, near
from poscli.system.text import printable

SUFFIXES = (".gz", ".zst")
LARGEST_DOCUMENT_BYTES = 2**30  # of a compressed file or of one line: documents are held in memory one at a time


@contextmanager
def open_stream(path: Path) -> Iterator[BinaryIO]:
    """The content of a file, decompressed if its name ends in .gz or .zst.

    Raises DataError if the compressed data is truncated or damaged, and OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        if path.suffix not in SUFFIXES:
            yield file
            return
        try:
            if path.suffix == ".zst":
                from pyarrow import CompressedInputStream

                yield io.BufferedReader(CompressedInputStream(file, "zstd"))
            else:
                yield gzip.GzipFile(fileobj=file)  # type: ignore[misc]
        except (OSError, zlib.error, EOFError) as error:
            if getattr(error, "errno", None):  # the disk has failed, not the data
                raise
            reason = " ".join(str(error).split())
            raise DataError(
                f"{printable(path)} is truncated or damaged ({reason}); fetch it again, or leave it out of the corpus"
            ) from error


def too_large(where: str) -> DataError:
    """The error for a document that expands beyond the limit."""
    return DataError(
        f"{where} holds more than {LARGEST_DOCUMENT_BYTES / 2**30:g} GiB in one document; split it into documents"
    )


def find_files(kind: str, argument: str, suffixes: tuple[str, ...] = ("",)) -> tuple[str, list[Path]]:
    """(absolute path, sorted files) of a path in a spec: a file, a folder or a glob pattern.

    A folder stands for all files below it that end in one of `suffixes`, except for hidden files and those in hidden
    folders (their names begin with a dot). Raises DataError if there is no file.
    """
    try:
        with readable(Path(argument)):
            path = Path(argument).expanduser().resolve()
    except (RuntimeError, ValueError) as error:  # links that form a loop, ~USER without such a user, a NUL
        raise DataError(f"cannot find {argument}: {error}; check the path") from error
    with readable(path):
        if path.is_file():
            return str(path), [path]
        if path.is_dir():
            files = list(_below(path, suffixes))
            fault = f"the folder {printable(path)} holds no file named *{suffixes[0]}"
        else:
            there = next(parent for parent in path.parents if parent.is_dir())  # whose brackets are part of a name
            pattern = Path(glob.escape(str(there)), path.relative_to(there))
            names = glob.glob(str(pattern), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            files = [Path(name) for name in names if Path(name).is_file()]
            fault = f"{printable(path)} is no file, no folder and no pattern that matches a file"
    if not files:
        raise DataError(f"{kind}:{argument}: {fault}; check the path")
    return str(path), sorted(files)


def stamps(files: list[Path]) -> list[tuple[str, int, int]]:
    """Path, size and modification time (ns) of each file: the stamp of a source that reads these files."""
    stamp = []
    for path in files:
        with readable(path):
            stat = path.stat()
        stamp.append((str(path), stat.st_size, stat.st_mtime_ns))
    return stamp


def read_file(path: Path) -> bytes:
    """The bytes of a file, decompressed if it is .gz or .zst; DataError if it cannot be read or expands too far."""
    with readable(path):
        if path.suffix not in SUFFIXES:
            return path.read_bytes()
        with open_stream(path) as stream:
            content = stream.read(LARGEST_DOCUMENT_BYTES + 1)
    if len(content) > LARGEST_DOCUMENT_BYTES:
        raise too_large(printable(path))
    return content


def check_text(content: bytes, where: str, kind: str) -> bytes:
    """The content of a file if it is UTF-8 text; DataError, which names the file by `where`, if it is not.

    Nothing is converted or skipped.
    """
    if b"\0" in content:
        at = content.index(0)
        raise DataError(f"{where} is binary (byte 0x00 at offset {at}); leave it out: {kind}: takes UTF-8 text")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 (byte 0x{content[error.start]:02x} at offset {error.start}); convert it, for "
            f"example with iconv -f latin1 -t utf-8, or leave it out"
        ) from error
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


DEFAULT_FIELD = "text"  # the name that nearly every data set uses


def row_source(
    kind: str, argument: str, rows: Callable[[Path, str], Iterator[bytes]], compressions: tuple[str, ...] = ()
) -> Source:
    """The source `KIND:PATH[#FIELD]`; `rows` yields the texts of one field of one file.

    In a folder, files are read whose names end in .KIND, or in .KIND and one of the suffixes `compressions`.
    """
    name, _, field = argument.partition("#")
    path, files = find_files(kind, name, tuple(f".{kind}{suffix}" for suffix in ("", *compressions)))
    field = field or DEFAULT_FIELD
    spec = f"{kind}:{path}" + (f"#{field}" if field != DEFAULT_FIELD else "")

    def read() -> Reading:
        return Reading((Document(content) for file in files for content in rows(file, field)), {})

    return Source(spec, stamps(files), read, made_of=frozenset(map(str, files)))


def field_bytes(row: dict[str, Any], field: str, where: str) -> bytes:
    """The text of a row as UTF-8; null is an empty text.

    Raises DataError, which names the row by `where`, if the field is absent, holds something else than text, or holds
    text that UTF-8 cannot represent.
    """
    if field not in row:
        raise no_field(where, field, row)
    text = row[field] if row[field] is not None else ""
    if not isinstance(text, str):
        raise DataError(f"{where}: field {field!r} holds {type(text).__name__}, not text; name another with #FIELD")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: character {error.start} of {field!r} is half a surrogate pair; repair the row"
        ) from error


def no_field(where: str, field: str, known: Iterable[str]) -> DataError:
    """The error for a field, or a column, that does not exist."""
    return DataError(f"{where} has no field {field!r}: {near(field, known)}; name one with #FIELD after the corpus")
