"""`poscli agree`: what others measured, beside ours."""

from __future__ import annotations

from collections.abc import Sequence
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
    from poscli.board.literature import Literature
    from poscli.board.ours import OurLosses
    from poscli.report.table import Column

Summary = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SUMMARY]",
        help="The summary.csv of a report, which has one protocol; by default the board, or without one all runs.",
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
READINGS = {
    "in_proportion": "lengths in the papers' proportion to L",
    "as_published": "encodings at their default options",
}


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
    from poscli.board.agree import agreement_of, counterparts
    from poscli.board.arrays import tables_of_cells
    from poscli.board.literature import read_literature
    from poscli.board.ours import losses_of_board, losses_of_runs, losses_of_summary
    from poscli.board.season import season_of
    from poscli.board.standings import standings_among

    literature = read_literature()
    if summary is not None:
        ours = losses_of_summary(summary, train_length)
    elif (folder := cells or out_ / IN_RESULTS).is_dir():
        table = tables_of_cells(folder, season_of(season_))[0]
        ours = losses_of_board(table, standings_among(table, tuned=False))
    else:
        from poscli.report import collect
        from poscli.tasks import task_columns

        ours = losses_of_runs(collect(out_ / "runs", task_columns()).rows, train_length)
    own = _own_names(name or [], ours, literature)
    found: dict[str, Agreement] = {}
    for reading in READINGS:
        names = counterparts(literature.names, ours.encodings, in_proportion=reading == "in_proportion") | own
        if all(names != other.names for other in found.values()):
            found[reading] = agreement_of(ours, literature, names)
    emit(json_, _document(found, literature), lambda: _show(found, literature))


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


def _show(found: dict[str, Agreement], literature: Literature) -> None:
    """Print the answer, the numbers, every pair, what is opposite and disputed, growth, and what cannot be tested."""
    from rich.text import Text

    from poscli.board import agree_words as say
    from poscli.board.show import grid_of
    from poscli.drawing.text import listed

    console = out()

    def lines(title: str, items: Sequence[str]) -> None:
        if items:
            console.print(Text(f"\n{title}", style="bold"))
            for item in items:
                console.print(Text(f"- {item}"))

    def table(columns: Sequence[Column], title: str) -> None:
        console.print(grid_of(columns, range(len(columns[0].cells)), title=f"\n{title}"))

    main = next(iter(found.values()))
    for n, sentence in enumerate(say.agreement_sentences(main, literature)):
        console.print(Text(sentence, style="bold" * (n == 0)))
    for reading, each in [*found.items()][1:]:
        console.print(Text(f"With {READINGS[reading]}, instead: {say.beyond_share(each)}."))
    renamed = [f"{ours} for {published}" for published, ours in main.names.items() if published != ours]
    if renamed:
        console.print(Text(f"Here {listed(renamed, 9)}.", style="dim"))
    for like in ("", "sliding", "nonoverlapping"):
        if like not in main.unmeasured:
            title = f"Tables of {like} windows beside the same here" if like else "All tables"
            table(say.numbers_columns(main, like), title)
    for line in say.LEGEND:
        console.print(Text(line.format(hard=listed(literature.scope.hard, 9)), style="dim"))
    table(say.pairs_columns(main), "Which one papers find better, and whether these results agree")
    lines("Opposite to papers that do not dispute it", say.opposite_lines(main, literature))
    lines("Disputed by papers", say.disputed_lines(main, literature))
    growth = "Perplexity over that at 1x, here (published: lowest to highest; number of sources)"
    table(say.growth_columns(main), growth)
    lines("What this size cannot test", say.limit_lines(main))
    lines("Sources", say.source_lines(literature))
