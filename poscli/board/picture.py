"""ranks.png: the ranks that every encoding may have, as lines from the first to the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from poscli.board.page import colour_of
from poscli.board.standings import Row, Standings
from poscli.board.tables import answers_of, name_on_board
from poscli.drawing.page import DOTS_PER_INCH, clip, written
from poscli.drawing.sheet import Contents, Sheet
from poscli.drawing.style import FAINT, INK, PALETTE, QUIET
from poscli.report.catalogue import TITLES

ROW = 0.175  # inches, height of a row
ABOVE, BELOW = 0.55, 0.1  # inches around the rows: the families and the ticks, and the footnote
NAMES, MARGIN, GAP = 2.12, 0.2, 0.12  # inches: width of the names, and what is left of them, and between columns
ONE_COLUMN = 24  # rows that are not divided
NAME_SIZE, SMALL = 8.4, 7.2  # points
LONGEST = 27  # characters of a name
TICKS = 9  # at most, in a column


def ranks_png(table: Standings, families: Mapping[str, str]) -> bytes:
    """The picture of the ranks of a table, as PNG. `families` has the family of every encoding, by its label."""
    rows = table.ranked
    columns = 1 if len(rows) <= ONE_COLUMN else 2
    tall = max(1, -(-len(rows) // columns))
    last, seeds = table.ratios[-1], sorted({row.seeds for row in rows})
    footnote = (
        f"Season {table.season}, {table.title[:1].lower()}{table.title[1:]}; {len(table.texts)} texts, seeds: "
        f"{' to '.join(map(str, dict.fromkeys((*seeds[:1], *seeds[-1:]))))}. A line goes from the first to the last "
        "rank that an encoding may have: with a probability of 95 %, all lines hold at the same time. The order, and "
        f"the dots, are those of the regret at {last}. Strong: nobody is shown to be better."
    )
    title = f"Position encodings, trained on {table.length} tokens and ranked at {table.lengths[-1]:,}"
    explained = " ".join(answers_of(table)[:1])
    sheet = Sheet(1, 2, Contents(title, [""], [explained], [], footnote), body=ABOVE + tall * ROW + BELOW)
    width = (sheet.width - 2 * MARGIN - (columns - 1) * GAP) / columns
    for column in range(columns):
        part = rows[column * tall : (column + 1) * tall]
        left = MARGIN + column * (width + GAP) + NAMES
        axes = sheet.box(left, ABOVE, width - NAMES, tall * ROW)
        _rank_axis(axes, tall, len(rows))
        for y, row in enumerate(part):
            _draw(axes, y, row, column * tall + y + 1, families[row.label])
    _name_families(sheet, [family for family in TITLES if family in {families[row.label] for row in rows}])
    return written(sheet.figure, "png")


def _rank_axis(axes: Axes, tall: int, count: int) -> None:
    """Make x the ranks from 1 to `count`, with ticks above, and y the rows from the top."""
    axes.set(xlim=(0.3, max(count, 2) + 0.7), ylim=(tall - 0.4, -0.6), yticks=[])
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.grid(visible=True, axis="x", color="#ededed", linewidth=0.7)
    axes.set_axisbelow(True)
    step = next((each for each in (1, 2, 5, 10, 20, 50, 100) if count / each < TICKS), 200)
    axes.xaxis.tick_top()
    axes.xaxis.set_major_locator(FixedLocator([1, *range(step if step > 1 else 2, count + 1, step)]))
    axes.tick_params(labelsize=SMALL, color=FAINT, labelcolor=QUIET, length=2, pad=1)


def _draw(axes: Axes, y: int, row: Row, place: int, family: str) -> None:
    """Draw one encoding: its name, the line of its ranks, and a dot at its place in the order of the regret."""
    color, top = PALETTE[colour_of(family)], row.first == 1
    ends = (row.first - 0.35, row.last + 0.35)
    axes.hlines(y, *ends, color=color, linewidth=7 if top else 3.2, alpha=1.0 if top else 0.5, zorder=2)
    dot = "white" if top else color
    axes.plot([place], [y], "o", color=dot, markersize=4.6, markeredgecolor="white", markeredgewidth=0.8, zorder=3)
    axes.annotate(
        clip(name_on_board(row), LONGEST),
        (0, y),
        xycoords=axes.get_yaxis_transform(),
        xytext=(-5, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=NAME_SIZE,
        color=color if top else INK,
        weight="bold" if top else "normal",
        annotation_clip=False,
        parse_math=False,
    )


def _name_families(sheet: Sheet, families: Sequence[str]) -> None:
    """Write the names of the families in their colours, in one line above the rows."""
    x = MARGIN
    for family in families:
        color = PALETTE[colour_of(family)]
        text = sheet.write(x, 0.08, TITLES[family].partition(":")[0], size=NAME_SIZE, color=color, weight="bold")
        x += text.get_window_extent().width / DOTS_PER_INCH + 0.2
