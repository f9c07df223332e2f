"""`poscli report --board`: the board in place of a report of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from poscli.board.commands.board import IN_RESULTS, write_and_show
from poscli.cli.commands import COMMANDS
from poscli.cli.commands.report import OtherReport
from poscli.system.errors import UsageError

FOLDER = "board"  # in the folder of runs and reports

Board = Annotated[
    bool, typer.Option("--board", help="Write the board of all encodings instead; --to is then by default OUT/board.")
]
OtherCells = Annotated[
    Path | None, typer.Option("--cells", help="With --board: folder of the cells.", show_default=f"OUT/{IN_RESULTS}")
]
OtherSeason = Annotated[
    Path | None,
    typer.Option("--season", help="With --board: a season of your own, a TOML file; by default that of this version."),
]


@dataclass(frozen=True)
class BoardReport(OtherReport):
    """Whether the board is asked for, and what it is made of; None for the cells that `poscli board run` writes."""

    board: Board = False
    cells: OtherCells = None
    season: OtherSeason = None

    def wanted(self) -> str:
        for option, value in (("--cells", self.cells), ("--season", self.season)):
            if value is not None and not self.board:
                raise UsageError(f"{option} is for the board; add --board")
        return "--board" if self.board else ""

    def write(self, to: Path | None, out: Path, json_: bool) -> None:
        from poscli.system.files import check_folder

        folder = to or out / FOLDER
        check_folder(folder, "--out" if to is None else "--to")
        write_and_show(self.season, self.cells or out / IN_RESULTS, folder, json_)


COMMANDS.add("report.board", BoardReport)
