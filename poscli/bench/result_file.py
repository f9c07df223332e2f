"""A result file of a bench: a CSV that is written after every row, so that an interrupted bench loses nothing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from poscli.bench.columns import COLUMNS, KEYS
from poscli.bench.conditions import Row
from poscli.runs.schema import frame, read_table, write_table


class ResultFile:
    """The rows of one CSV. The name of the file selects its columns; with `resume` the rows on disk are kept.

    CorruptError if the file on disk is damaged.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path, self.columns, self.key = path, COLUMNS[path.name], KEYS[path.name]
        self.rows: list[Row] = []
        if resume and path.exists():
            known = read_table(path, self.columns)
            self.rows = [{str(name): value for name, value in row.items()} for row in known.to_dict("records")]

    def add(self, row: Row) -> None:
        """Append a row and write the file."""
        self.rows.append(row)
        write_table(self.path, self.table())

    def has(self, row: Row) -> bool:
        """Whether the file has a row with equal key columns; other columns of `row` are ignored."""
        return any(all(known[name] == row[name] for name in self.key) for known in self.rows)

    def known_columns(self, row: Row) -> Row:
        """The part of a row whose columns this file has."""
        return {name: value for name, value in row.items() if name in self.columns}

    def table(self) -> pd.DataFrame:
        """All rows; a failed row has 0 in counts and empty texts where nothing was measured."""
        counts = dict.fromkeys((name for name, (kind, _) in self.columns.items() if kind == "int64"), 0)
        texts = dict.fromkeys((name for name, (kind, _) in self.columns.items() if kind == "str"), "")
        return frame([counts | texts | row for row in self.rows], self.columns)
