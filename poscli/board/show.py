"""The standings on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from poscli.board.standings import RANKED, Standings
from poscli.board.tables import answers_of, board_columns, legend_of, reasons_of
from poscli.report.table import Column
from poscli.system.text import printable_line

OPTIONAL_COLUMNS = ("bits", "seeds", "used", "gain", "harmful", "safe", "control", "reading", "training")


def show_standings(tables: Sequence[Standings], console: Console, *, around: str = "", rows: int = 0) -> None:
    """Print every table: what it says, its rows, and what the columns mean.

    A table with the encoding `around` is cut to the row of that encoding and the `rows` above and below it.
    """
    for standing in tables:
        console.print(Text(f"{standing.title}, season {standing.season}", style="bold"))
        for line in answers_of(standing):
            console.print(Text(printable_line(line)))
        place = next((number for number, row in enumerate(standing.rows) if row.encoding == around), None)
        near = [n for n in range(len(standing.rows)) if place is None or abs(n - place) <= rows]
        styles = ["bold" if row.first == 1 else "" if row.status == RANKED else "dim" for row in standing.rows]
        columns = fitting_columns(board_columns(standing), console, OPTIONAL_COLUMNS, near)
        console.print(grid_of(columns, near, styles))
        shown = {column.name.split()[0] for column in columns}
        for line in legend_of(standing):
            explained = line.partition(":")[0].split(", ")
            if any(name.split()[0] in shown for name in explained):
                console.print(Text(line, style="dim"))
        for line in reasons_of(standing.rows if place is None else standing.rows[place : place + 1]):
            console.print(Text(printable_line(line), style="yellow"))
        console.print()


def grid_of(
    columns: Sequence[Column], rows: Sequence[int] | None = None, styles: Sequence[str] = (), title: str = ""
) -> Table:
    """Columns of text as a table of the terminal.

    `rows` are the numbers of the rows that are shown, None for all. `styles` has the style of each row of the columns,
    shown or not; without any, all rows are plain.
    """
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title or None)
    grid.title_justify, grid.title_style = "left", "bold"
    for column in columns:
        grid.add_column(Text(column.name), justify="right" if column.right else "left", overflow="fold")
    for number in range(len(columns[0].cells)) if rows is None else rows:
        style = styles[number] if styles else ""
        grid.add_row(*(Text(printable_line(column.cells[number]), style=style) for column in columns))
    return grid


def fitting_columns(
    columns: Sequence[Column], console: Console, optional: Sequence[str], rows: Sequence[int] | None = None
) -> list[Column]:
    """The columns that fit the width of the terminal with these rows (None: all).

    Optional columns are left out one after the other, the last of `optional` first, until the others fit. A column is
    named by the first word of its heading.
    """
    unbounded = console.options.update(max_width=10_000)
    for dropped in range(len(optional) + 1):
        left_out = optional[len(optional) - dropped :]
        kept = [column for column in columns if column.name.split()[0] not in left_out]
        if Measurement.get(console, unbounded, grid_of(kept, rows)).maximum <= console.width:
            break
    return kept


def show_simulations(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what was shown on made-up boards, a line for each number of seeds and each planted difference."""
    columns = {
        "seeds": [str(each["seeds"]) for each in found],
        "groups apart, bits": [f"{each['apart']:g}" for each in found],
        "boards with a false order": [f"{each['false']:.1%}" for each in found],
        "neighbours told apart": [f"{each['power']:.0%}" if each["apart"] else "-" for each in found],
        "top group": [f"{each['top']:.1f}" for each in found],
    }
    console.print(grid_of([Column(name, tuple(cells)) for name, cells in columns.items()]))
