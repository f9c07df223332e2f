"""`jsonl:PATH[#FIELD]` and `parquet:PATH[#COLUMN]`: one document per row. Both read files, folders and globs.

Neither goes through `datasets`: its readers copy the data into a second cache and lose the line of an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from poscli.data.filesets import find, readable, state
from poscli.data.source import Document, Reading, Source
from poscli.errors import DataError, near

TEXT = "text"  # the field that nearly every data set uses


def jsonl(argument: str) -> Source:
    """The corpus `jsonl:PATH[#FIELD]`."""
    return _source("jsonl", argument, _json_lines)


def parquet(argument: str) -> Source:
    """The corpus `parquet:PATH[#COLUMN]`."""
    return _source("parquet", argument, _parquet_rows)


def encode(row: dict[str, Any], field: str, where: str) -> bytes:
    """A row's text as UTF-8; null counts as no text. DataError naming `where` if there is no text to be had."""
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
    """The error for a field, or a column, that is not there."""
    return DataError(f"{where} has no field {field!r}: {near(field, known)}; name one with #FIELD after the corpus")


def _source(kind: str, argument: str, rows: Callable[[Path, str], Iterator[bytes]]) -> Source:
    name, _, field = argument.partition("#")
    path, files = find(kind, name, f".{kind}")
    field = field or TEXT
    spec = f"{kind}:{path}" + (f"#{field}" if field != TEXT else "")
    documents = (Document(content) for file in files for content in rows(file, field))
    return Source(spec, state(files), lambda: Reading(documents, {}))


def _json_lines(path: Path, field: str) -> Iterator[bytes]:
    with readable(path), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield encode(_object(line, f"{path} line {number}"), field, f"{path} line {number}")


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:  # no JSON, or no UTF-8
        raise DataError(f"{where} is not JSON ({error}); jsonl: takes one JSON object per line") from error
    if not isinstance(row, dict):
        raise DataError(f"{where} is a JSON {type(row).__name__}, not an object; jsonl: takes one JSON object per line")
    return row


def _parquet_rows(path: Path, column: str) -> Iterator[bytes]:
    from pyarrow import ArrowInvalid, parquet

    with readable(path), path.open("rb") as stream:
        try:
            file = parquet.ParquetFile(stream)
        except ArrowInvalid as error:
            raise DataError(f"{path} is not a parquet file ({error}); check the path") from error
        if column not in file.schema_arrow.names:
            raise no_field(str(path), column, file.schema_arrow.names)
        number = 0
        for rows in file.iter_batches(columns=[column]):
            for row in rows.to_pylist():
                number += 1
                yield encode(row, column, f"{path} row {number}")
