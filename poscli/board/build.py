"""The files of the board: tables, pictures and pages, from the standings alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from poscli.board.standings import RANKED, Standings
from poscli.board.tables import answers_of, board_columns, csv_of, legend_of, record_of_table
from poscli.report.documents import escape, markdown_table
from poscli.system.files import write_atomic

JSON, CSV, MARKDOWN = "board.json", "board.csv", "board.md"


def write_board(tables: Sequence[Standings], folder: Path) -> list[Path]:
    """Write the files of the board to a folder, the same bytes for the same cells; returns their paths."""
    files = {
        MARKDOWN: markdown_of(tables),
        CSV: csv_of(tables),
        JSON: json.dumps([record_of_table(table) for table in tables], indent=1, allow_nan=False) + "\n",
    }
    for name, content in files.items():
        write_atomic(Path(folder) / name, content)
    return [Path(folder) / name for name in files]


def markdown_of(tables: Sequence[Standings]) -> str:
    """The board as a document."""
    lines = [f"# The board, season {tables[0].season}", ""]
    for table in tables:
        lines += [f"## {table.title}", "", *(f"{escape(said)}\n" for said in answers_of(table))]
        lines += [str(markdown_table(board_columns(table))), ""]
        lines += [f"- {escape(line)}" for line in legend_of(table)]
        lines += [
            f"- {escape(row.label)}: {row.status}: {escape(row.why)}" for row in table.rows if row.status != RANKED
        ]
        lines.append("")
    return "\n".join(lines)
