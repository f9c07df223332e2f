"""The contact sheet: a small picture of every encoding, all on the same axes, grouped by family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes

from poscli.drawing.page import clip, drawable
from poscli.drawing.sheet import Contents, Sheet
from poscli.drawing.style import FAINT, INK, QUIET
from poscli.inspect.numbers import Missing
from poscli.inspect.subject import RANDOM
from poscli.inspect.views import Inspected, all_views

COLUMNS = 3  # of slots of the sheet, which decide its width
PER_ROW = 9  # tiles
TILE_HEIGHT, TILE_GAP, NAME, FAMILY = (
    1.0,
    0.16,
    0.2,
    0.36,
)  # inches: picture, between, name above it, family above those
MARGIN = 0.25
JOINED = "meant to be joined with another"  # wrappers, most of which change nothing by themselves


@dataclass(frozen=True, eq=False)
class Tile:
    """One encoding of the contact sheet: its family's heading, its name, and its numbers or why there are none."""

    heading: str
    name: str
    inspected: Inspected | None
    reason: str = ""


def draw_contact_sheet(tiles: Sequence[Tile]) -> Sheet:
    """A tile per encoding: attention by distance where all tokens look alike, one line per head, on shared axes."""
    groups = [(heading, list(group)) for heading, group in groupby(tiles, key=lambda tile: tile.heading)]
    rows = sum(-(-len(group) // PER_ROW) for _, group in groups)
    height = rows * (TILE_HEIGHT + NAME + TILE_GAP) + len(groups) * FAMILY
    sheet = Sheet(0, COLUMNS, _contents(tiles), height)
    top, width = 0.0, (sheet.width - 2 * MARGIN - (PER_ROW - 1) * TILE_GAP) / PER_ROW
    for heading, group in groups:
        sheet.write(MARGIN, top + 0.1, heading, size=9, weight="bold")
        top += FAMILY
        for n, tile in enumerate(group):
            x = MARGIN + n % PER_ROW * (width + TILE_GAP)
            if n and n % PER_ROW == 0:
                top += TILE_HEIGHT + NAME + TILE_GAP
            sheet.write(x, top, clip(tile.name, 22), size=7.6)
            _draw(sheet.box(x, top + NAME, width, TILE_HEIGHT), tile)
        top += TILE_HEIGHT + NAME + TILE_GAP
    return sheet


def _draw(axes: Axes, tile: Tile) -> None:
    """The picture of a tile, without names of axes; they are the same everywhere."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(FAINT)
    name, record = list(tile.inspected.found.items())[-1] if tile.inspected else ("", None)
    view = all_views().get(name)
    if view and view.thumbnail and not isinstance(record, Missing):
        view.thumbnail.draw(axes, record)
    else:
        _say(axes, tile.reason or (record.finding if record else ""))
    if tile.inspected:
        subject = tile.inspected.subject
        remark = subject.weights if subject.weights == RANDOM else JOINED if subject.encoding.wraps else ""
        axes.text(0.97, 0.05, remark, transform=axes.transAxes, fontsize=5.5, color=QUIET, ha="right")


def _say(axes: Axes, text: str) -> None:
    axes.text(
        0.5, 0.5, drawable(text[:60]), transform=axes.transAxes, ha="center", va="center", fontsize=5.5, color=INK,
        wrap=True, parse_math=False,
    )  # fmt: skip


def _contents(tiles: Sequence[Tile]) -> Contents:
    title = f"{len(tiles)} encodings: attention by distance where all tokens look alike"
    of_views = " ".join(view.thumbnail.explained for view in all_views().values() if view.thumbnail)
    explained = (
        "x: tokens back from the query, log scale; dashed: the training length. y: attention weight, log scale; "
        f"dotted: equal weights. {of_views} "
        "An encoding that changes nothing at its initial weights has random ones here."
    )
    return Contents(title, [""], [explained], [], "")
