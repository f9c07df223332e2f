"""`parquet:PATH[#COLUMN]`: parquet files; each row is one document.

The files are not read through `datasets`, which would copy them into a second cache and would not name the row of an
error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from poscli.data.corpora import CORPORA, Kind
from poscli.data.fields import field_bytes, no_field, row_source
from poscli.data.filesets import readable
from poscli.data.source import Source
from poscli.system.errors import DataError


def source(argument: str) -> Source:
    """The corpus `parquet:PATH[#COLUMN]`."""
    return row_source("parquet", argument, _rows)


def _rows(path: Path, column: str) -> Iterator[bytes]:
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
                yield field_bytes(row, column, f"{path} row {number}")


CORPORA.add("parquet", Kind("parquet:PATH[#COLUMN]", "parquet files; one document per row", source))
