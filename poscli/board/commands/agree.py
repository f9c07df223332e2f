"""`poscli agree`: what others measured, beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poscli.board.commands.board import IN_RESULTS, OwnCells, SeasonFile
from poscli.cli.commands import command
from poscli.cli.options import Json, Out
from poscli.system.console import emit, out
from poscli.system.errors import UsageError, near

if TYPE_CHECKING:
    from poscli.board.agree import Agreement
    from poscli.board.agree_words import Said
    from poscli.board.literature import Literature
    from poscli.board.ours import OurLosses

Summary = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SUMMARY]",
        help="The summary.csv of a report; by default the board, or all runs where there is none.",
    ),
]
TrainLength = Annotated[
    int | None,
    typer.Option("--train-length", "-L", help="Results of this length; by default the one with most encodings.", min=1),
]
Named = Annotated[
    list[str] | None,
    typer.Option("--name", help="PUBLISHED=OURS: the encoding here that stands for one in the papers; repeatable."),
]


@command("agree", after="compare")
def show_agreement(
    summary: Summary = None,
    train_length: TrainLength = None,
    name: Named = None,
    season_: SeasonFile = None,
    cells: OwnCells = None,
    out_: Out = Path("results"),
    json_: Json = False,
) -> None:
    """What do papers find of the same encodings, do they agree with each other, and does this agree with them?

    Pairs of encodings at 1, 2, 4, 8 and 16 times the training length. Three numbers stand side by side: these results
    against papers, papers against papers, and a naive order by family.
    """
    from poscli.board.agree import agreements_of
    from poscli.board.agree_words import said_of
    from poscli.board.arrays import tables_of_cells
    from poscli.board.literature import read_literature
    from poscli.board.ours import losses_of_board, losses_of_runs, losses_of_summary
    from poscli.board.season import season_of
    from poscli.board.standings import standings_among

    literature, folder = read_literature(), cells or out_ / IN_RESULTS
    options = {"--cells": cells, "--season": season_, "--train-length": train_length}
    if summary is not None:
        _refuse(options, ("--cells", "--season"), f"is for the board, and {summary} is not one")
        ours = losses_of_summary(summary, train_length)
    elif cells is not None or folder.is_dir():
        _refuse(options, ("--train-length",), "is for runs and summaries; a table of the board has one length")
        table = tables_of_cells(folder, season_of(season_))[0]
        ours = losses_of_board(table, standings_among(table, tuned=False))
    else:
        _refuse(options, ("--season",), f"is for the board, and {folder} is not there")
        from poscli.report import collect
        from poscli.tasks import task_columns

        ours = losses_of_runs(collect(out_ / "runs", task_columns()).rows, train_length)
    found = agreements_of(ours, literature, _own_names(name or [], ours, literature))
    emit(json_, _document(found, literature), lambda: _show(said_of(found, literature)))


def _refuse(options: Mapping[str, object], unfit: Sequence[str], why: str) -> None:
    """UsageError if one of the `unfit` options was given: it would change nothing, and `why` says the reason."""
    for option in unfit:
        if options[option] is not None:
            raise UsageError(f"{option} {options[option]}: it {why}; leave it out")


def _own_names(pairs: Sequence[str], ours: OurLosses, literature: Literature) -> dict[str, str]:
    """The names of a person's `PUBLISHED=OURS`."""
    from poscli.report.claims import meant

    names = {}
    for pair in pairs:
        published, _, label = pair.partition("=")
        if published not in literature.names:
            raise UsageError(f"--name {pair!r}: papers have no {published!r}: {near(published, literature.names)}")
        if (known := meant(label, ours.encodings)) not in ours.encodings:
            raise UsageError(f"--name {pair!r}: there are no results of {label!r}: {near(label, ours.encodings)}")
        names[published] = known
    return names


def _document(found: dict[str, Agreement], literature: Literature) -> dict[str, Any]:
    """Everything as JSON: for each reading the numbers, every pair, and growth; the sources and the limits."""
    from poscli.board.agree import PROTOCOLS, three_numbers
    from poscli.board.ours import MULTIPLES
    from poscli.report.summary import as_json

    def numbers(each: Agreement) -> list[dict[str, Any]]:
        return [
            {"multiples": list(at), "like": like, "hard": hard, "skill": three.skill, **as_json(three)}
            for like in PROTOCOLS
            if like not in each.unmeasured
            for at in (*((multiple,) for multiple in MULTIPLES), MULTIPLES[1:])
            for hard in (False, True)
            for three in [three_numbers(each.chosen(at, like, hard=hard))]
        ]

    readings = {
        reading: {
            "names": dict(each.names),
            "numbers": numbers(each),
            "pairs": [as_json(pair) | {"consensus": pair.consensus} for pair in each.findings],
            "growth": as_json(each.growths),
            "unmeasured": list(each.unmeasured),
        }
        for reading, each in found.items()
    }
    sources = {key: as_json(each.source) for key, each in literature.sources.items()}
    return readings | {"sources": sources, "limits": as_json(literature.scope.limit)}


def _show(said: Said) -> None:
    """Print the answer, then every table and list."""
    from rich.text import Text

    from poscli.board.show import grid_of

    console = out()
    for n, sentence in enumerate(said.sentences):
        console.print(Text(sentence, style="bold" * (n == 0)))
    for title, columns in said.tables:
        console.print(grid_of(columns, title=f"\n{title}"))
    for title, lines in said.lists:
        console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(Text(f"- {line}"))
