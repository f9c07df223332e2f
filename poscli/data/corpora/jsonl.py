"""`jsonl:PATH[#FIELD]`: files of one JSON object per line; each line is one document.

The files are not read through `datasets`, which would copy them into a second cache and would not name the line of an
error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poscli.data import filesets
from poscli.data.corpora import CORPORA, Kind
from poscli.data.filesets import field_bytes, readable, row_source
from poscli.data.source import Source
from poscli.system.errors import DataError
from poscli.system.text import printable


def source(argument: str) -> Source:
    """The corpus `jsonl:PATH[#FIELD]`."""
    return row_source("jsonl", argument, _rows, filesets.SUFFIXES)


def _rows(path: Path, field: str) -> Iterator[bytes]:
    largest = filesets.LARGEST_DOCUMENT_BYTES
    with readable(path), filesets.open_stream(path) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(largest + 1), b""), start=1):
            where = f"{printable(path)} line {number}"
            if len(line) > largest:
                raise filesets.too_large(where)
            if line.strip():
                yield field_bytes(_object(line, where), field, where)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except RecursionError as error:
        raise DataError(f"{where} is nested too deeply; jsonl: takes one flat JSON object per line") from error
    except ValueError as error:  # neither JSON nor, perhaps, UTF-8
        raise DataError(f"{where} is not JSON ({error}); jsonl: takes one JSON object per line") from error
    if not isinstance(row, dict):
        raise DataError(f"{where} is a JSON {type(row).__name__}, not an object; jsonl: takes one JSON object per line")
    return row


CORPORA.add(
    "jsonl", Kind("jsonl:PATH[#FIELD]", "one JSON object per line, also .gz or .zst; one document per line", source)
)
