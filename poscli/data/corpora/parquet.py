"""`parquet:PATH[#COLUMN]`: parquet files; each row is one document.

The files are not read through `datasets`, which would copy them into a second cache and would not name the row of an
error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from poscli.data.corpora import CORPORA, Kind
from poscli.data.filesets import field_bytes, no_field, readable, row_source
from poscli.data.source import Source
from poscli.system.errors import DataError
from poscli.system.text import printable

ROWS = 64  # in memory at once: documents may have megabytes


def source(argument: str) -> Source:
    """The corpus `parquet:PATH[#COLUMN]`."""
    return row_source("parquet", argument, _rows)


def _rows(path: Path, column: str) -> Iterator[bytes]:
    from pyarrow import ArrowException

    try:
        with readable(path), path.open("rb") as stream:
            yield from _texts(stream, column, printable(path))
    except (ArrowException, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{printable(path)} is not a parquet file, or damaged ({reason}); check the path") from error


def _texts(stream: BinaryIO, column: str, where: str) -> Iterator[bytes]:
    from pyarrow import parquet

    file = parquet.ParquetFile(stream)
    if column not in file.schema_arrow.names:
        raise no_field(where, column, file.schema_arrow.names)
    number = 0
    for rows in file.iter_batches(ROWS, columns=[column]):
        for row in rows.to_pylist():
            number += 1
            yield field_bytes(row, column, f"{where} row {number}")


CORPORA.add("parquet", Kind("parquet:PATH[#COLUMN]", "parquet files; one document per row", source))
