"""The files of the board: tables, pictures and pages, from the standings alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from poscli.board.agree_words import Said
from poscli.board.page import board_html, families_of
from poscli.board.page.encoding import HOME, encoding_files, encoding_pages
from poscli.board.picture import ranks_png
from poscli.board.season import Season
from poscli.board.standings import Standings
from poscli.board.tables import answers_of, board_columns, csv_of, legend_of, reasons_of, record_of_table
from poscli.report.documents import escape, markdown_table
from poscli.report.folder import FolderKind, write_folder

JSON, CSV, MARKDOWN, PICTURE, LIST = "board.json", "board.csv", "board.md", "ranks.png", "files.json"
OURS = re.compile(r"board\.(html|md|csv|json)|ranks\.png|encoding-[A-Za-z0-9.+-]+\.html")
UNFINISHED = """<!doctype html><title>This board is not finished</title><p>poscli was stopped while it wrote this
folder. Repeat the command that wrote it.</p>
"""
FOLDER = FolderKind(HOME, LIST, OURS, UNFINISHED)


def write_board(tables: Sequence[Standings], folder: Path, season: Season, others: Said | None = None) -> list[Path]:
    """Write the files of the board to a folder, the same bytes for the same cells; returns their paths, the page first.

    `season` is that of the tables, and `others` is what papers find of the same encodings. UsageError if the page would
    replace a file that poscli did not write.
    """
    contents: dict[str, bytes] = {
        name: text.encode()
        for name, text in (
            (HOME, board_html(tables, encoding_files(tables), others)),
            (MARKDOWN, markdown_of(tables)),
            (CSV, csv_of(tables)),
            (JSON, json.dumps([record_of_table(table) for table in tables], indent=1, allow_nan=False) + "\n"),
            *encoding_pages(tables, season).items(),
        )
    }
    contents[PICTURE] = ranks_png(tables[0], families_of(tables[0]))
    write_folder(Path(folder), contents, FOLDER)
    return [Path(folder) / name for name in contents]


def markdown_of(tables: Sequence[Standings]) -> str:
    """The board as a document."""
    lines = [f"# The board, season {tables[0].season}", ""]
    for table in tables:
        lines += [f"## {table.title}", "", *(f"{escape(said)}\n" for said in answers_of(table))]
        lines += [str(markdown_table(board_columns(table))), ""]
        lines += [f"- {escape(line)}" for line in legend_of(table)]
        lines += [f"- {escape(line)}" for line in reasons_of(table.rows)]
        lines.append("")
    return "\n".join(lines)
