"""The contact sheet: a small picture of every encoding, all on the same axes, grouped by family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from poscli.drawing.curves import RISING, binned, head_colors
from poscli.drawing.page import clip, drawable
from poscli.drawing.sheet import Contents, Sheet
from poscli.drawing.style import FAINT, INK, QUIET
from poscli.drawing.text import amount
from poscli.inspect.grid import CellMaps
from poscli.inspect.probe import Weights
from poscli.inspect.subject import RANDOM
from poscli.inspect.views import Inspected

COLUMNS = 3  # of slots of the sheet, which decide its width
PER_ROW = 9  # tiles
TILE_HEIGHT, TILE_GAP, NAME, FAMILY = (
    1.0,
    0.16,
    0.2,
    0.36,
)  # inches: picture, between, name above it, family above those
MARGIN = 0.25
LEAST = 1e-2  # of equal weights: the bottom of every tile
BINS = 90
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
    found = None if tile.inspected is None else list(tile.inspected.found.values())[-1]
    if isinstance(found, Weights):
        _draw_curves(axes, found)
    elif isinstance(found, CellMaps):
        top = float(np.nanmax(found.values[0]))
        values = np.maximum(found.values[0], top * 1e-5)
        axes.imshow(values, cmap=RISING, norm=LogNorm(top * 1e-5, top), aspect="auto", interpolation="nearest")
    else:
        _say(axes, tile.reason or (found.finding if found else ""))
    if tile.inspected:
        subject = tile.inspected.subject
        remark = subject.weights if subject.weights == RANDOM else JOINED if subject.encoding.wraps else ""
        axes.text(0.97, 0.05, remark, transform=axes.transAxes, fontsize=5.5, color=QUIET, ha="right")


def _draw_curves(axes: Axes, found: Weights) -> None:
    """The weights of every head times the number of keys, so that equal weights are 1 everywhere."""
    curves = found.shown.merged()
    count = curves.values.shape[1]
    middle, mean, _, _ = binned(np.abs(curves.values) * count, BINS)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot([1, 2**20], [1, 1], ":", color=QUIET, linewidth=0.8)
    for row, color in zip(mean, head_colors(len(curves.lines)), strict=True):
        axes.plot(middle, np.maximum(row, LEAST / 10), color=color, linewidth=0.9)
    if count > found.length:
        axes.axvline(found.length, color=QUIET, linewidth=0.6, linestyle=(0, (4, 2)))
    axes.set_xlim(0.9, max(found.longest, count) * 1.1)
    axes.set_ylim(LEAST, max(found.longest, count) * 1.5)
    decades = [10**n for n in range(6) if 10**n <= found.longest]
    axes.xaxis.set_major_locator(FixedLocator(decades))
    axes.xaxis.set_major_formatter(FixedFormatter([amount(tick) for tick in decades]))
    axes.yaxis.set_major_locator(FixedLocator([1]))
    axes.yaxis.set_major_formatter(FixedFormatter([""]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=5, length=1.5, pad=1, colors=QUIET)


def _say(axes: Axes, text: str) -> None:
    axes.text(
        0.5, 0.5, drawable(text[:60]), transform=axes.transAxes, ha="center", va="center", fontsize=5.5, color=INK,
        wrap=True, parse_math=False,
    )  # fmt: skip


def _contents(tiles: Sequence[Tile]) -> Contents:
    title = f"{len(tiles)} encodings: attention by distance where all tokens look alike"
    explained = (
        "x: tokens back from the query, log scale; dashed: the training length. y: attention weight, log scale; "
        "dotted: equal weights. One line per head, dark to light. Grids: the weight of every cell for a query in the "
        "middle of the last row, head 1. An encoding that changes nothing at its initial weights has random ones here."
    )
    return Contents(title, [""], [explained], [], "")
