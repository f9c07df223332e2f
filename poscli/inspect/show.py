"""What was found, in words for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.inspect.properties import Properties
from poscli.inspect.views import SPEEDS, Inspected, all_views, table_rows
from poscli.system.text import printable


def show(inspected: Sequence[Inspected], console: Console) -> None:
    """Print the findings of every subject, and below them the property sheet of each spec."""
    captions = {view.name: view.caption for view in (*all_views().values(), SPEEDS)}
    for each in inspected:
        console.print(Text(each.subject.title, style="bold"))
        console.print(_table([(captions[name], found.finding, "") for name, found in each.found.items()]))
    sheets = [sheet for sheet in {id(each.properties): each.properties for each in inspected}.values() if sheet]
    if len(sheets) == 1:
        console.print(Text("measured properties", style="bold"))
        console.print(_table([(row.name, row.value, row.detail) for row in sheets[0].rows]))
    elif sheets:
        console.print(_compared(sheets))


def _compared(sheets: Sequence[Properties]) -> Table:
    """The values of several property sheets side by side, without their details."""
    table = Table(box=None, pad_edge=True, padding=(0, 1), header_style="bold")
    table.add_column("measured properties", no_wrap=True, style="dim")
    for sheet in sheets:
        table.add_column(Text(printable(sheet.spec)))
    for name, *values in table_rows(sheets):
        table.add_row(name, *(Text(printable(value)) for value in values))
    return table


def _table(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Names beside what was found; details below, dimmed."""
    table = Table(box=None, pad_edge=True, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, value, detail in rows:
        table.add_row(name, Text(printable(value)))
        if detail:
            table.add_row("", Text(printable(detail), style="dim"))
    return table
