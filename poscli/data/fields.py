"""Sources whose documents are one field of each row of a file: what jsonl.py, parquet.py and hub.py share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from poscli.data.filesets import find_files, stamps
from poscli.data.source import Document, Reading, Source
from poscli.system.errors import DataError, near

DEFAULT_FIELD = "text"  # the name that nearly every data set uses


def row_source(
    kind: str, argument: str, rows: Callable[[Path, str], Iterator[bytes]], compressed: tuple[str, ...] = ()
) -> Source:
    """The source `KIND:PATH[#FIELD]`; `rows` yields the texts of one field of one file.

    In a folder, files are read whose names end in .KIND, or in .KIND and one of the suffixes `compressed`.
    """
    name, _, field = argument.partition("#")
    path, files = find_files(kind, name, tuple(f".{kind}{suffix}" for suffix in ("", *compressed)))
    field = field or DEFAULT_FIELD
    spec = f"{kind}:{path}" + (f"#{field}" if field != DEFAULT_FIELD else "")
    documents = (Document(content) for file in files for content in rows(file, field))
    return Source(spec, stamps(files), lambda: Reading(documents, {}))


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
