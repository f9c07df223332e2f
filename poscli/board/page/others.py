"""What others measured, as a part of the board's page."""

from __future__ import annotations

from dataclasses import dataclass

from poscli.board import agree_words as say
from poscli.board.agree import agreement_of, counterparts
from poscli.board.literature import read_literature
from poscli.board.ours import OurLosses
from poscli.drawing.text import listed
from poscli.report.table import Column

DEFAULTS = "With encodings at their default options, instead"


@dataclass(frozen=True)
class Others:
    """Sentences, tables with a title and rows of cells, and lists with a title, for the template."""

    sentences: tuple[str, ...]
    tables: tuple[tuple[str, tuple[Column, ...], tuple[tuple[str, ...], ...]], ...]
    lists: tuple[tuple[str, tuple[str, ...]], ...]


def others_of(ours: OurLosses) -> Others:
    """Published tables beside these losses, encodings with their lengths in the papers' proportion to L first."""
    literature = read_literature()
    names = [counterparts(literature.names, ours.encodings, in_proportion=each) for each in (True, False)]
    main = agreement_of(ours, literature, names[0])
    sentences = say.agreement_sentences(main, literature)
    renamed = [f"{ours_} for {published}" for published, ours_ in names[0].items() if published != ours_]
    if renamed:
        sentences.append(f"Here {listed(renamed, 9)}.")
    if names[1] != names[0]:
        sentences.append(f"{DEFAULTS}: {say.beyond_share(agreement_of(ours, literature, names[1]))}.")
    tables = [("All tables", say.numbers_columns(main))]
    for like in ("sliding", "nonoverlapping"):
        if like not in main.unmeasured:
            tables.append((f"Tables of {like} windows beside the same here", say.numbers_columns(main, like)))
    tables.append(("Which one papers find better, and whether the board agrees", say.pairs_columns(main)))
    growth = "Perplexity over that at 1x, here (published: lowest to highest; number of sources)"
    tables.append((growth, say.growth_columns(main)))
    lists = (
        ("What these numbers mean", [line.format(hard=listed(literature.scope.hard, 9)) for line in say.LEGEND]),
        ("Opposite to papers that do not dispute it", say.opposite_lines(main, literature)),
        ("Disputed by papers", say.disputed_lines(main, literature)),
        ("What this size cannot test", say.limit_lines(main)),
        ("Sources", say.source_lines(literature)),
    )
    return Others(
        sentences=tuple(sentences),
        tables=tuple((title, tuple(each), tuple(zip(*(c.cells for c in each), strict=True))) for title, each in tables),
        lists=tuple((title, tuple(lines)) for title, lines in lists if lines),
    )
