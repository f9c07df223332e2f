"""The standings on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.board.standings import RANKED, Standings
from poscli.board.tables import answers_of, board_columns, legend_of
from poscli.system.text import printable_line


def show_standings(tables: Sequence[Standings], console: Console, *, around: str = "", rows: int = 0) -> None:
    """Print every table: what it says, its rows, and what the columns mean.

    Of tables with the encoding `around`, only so many `rows` above and below it are shown.
    """
    for standing in tables:
        console.print(Text(f"{standing.title}, season {standing.season}", style="bold"))
        for line in answers_of(standing):
            console.print(Text(printable_line(line)))
        columns = board_columns(standing)
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for column in columns:
            grid.add_column(column.name, justify="right" if column.right else "left", no_wrap=True)
        place = next((number for number, row in enumerate(standing.rows) if row.encoding == around), None)
        for number, row in enumerate(standing.rows):
            if place is not None and abs(number - place) > rows:
                continue
            style = "bold" if row.first == 1 else "" if row.status == RANKED else "dim"
            grid.add_row(*(Text(printable_line(column.cells[number]), style=style) for column in columns))
        console.print(grid)
        for line in legend_of(standing):
            console.print(Text(line, style="dim"))
        for number, row in enumerate(standing.rows):
            if row.status != RANKED and place in (None, number):
                console.print(Text(printable_line(f"{row.label}: {row.status}: {row.why}"), style="yellow"))
        console.print()


def show_simulations(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print what was shown on made-up boards, a line for each number of seeds and each planted difference."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("seeds", "groups apart, bits", "boards with a false order", "neighbours told apart", "top group"):
        grid.add_column(name, justify="right")
    for each in found:
        power = f"{each['power']:.0%}" if each["apart"] else "-"
        numbers = (str(each["seeds"]), f"{each['apart']:g}", f"{each['false']:.1%}", power, f"{each['top']:.1f}")
        grid.add_row(*numbers)
    console.print(grid)
