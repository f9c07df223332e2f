"""Curves by distance, one per head, and heat maps: the parts that pictures of encodings are made of."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from poscli.drawing.axes import remark
from poscli.drawing.page import drawable
from poscli.drawing.style import PALETTE, QUIET
from poscli.drawing.text import amount

Array = NDArray[np.float64]
BINS = 260  # along a logarithmic axis, each drawn as one point
NAME_SIZE = 6.8  # points
MOST_NAMES = 12  # of curves, that are listed
SIGNED, RISING = "RdBu_r", "cividis"  # colours of heat maps around zero, and from zero on


def head_colors(count: int) -> list[str]:
    """Colours of ordered curves, from dark to light; all can be read on white and told apart without red and green."""
    if count == 1:
        return [PALETTE[0]]
    colors = matplotlib.colormaps["viridis"]
    return [to_hex(colors(0.88 * n / (count - 1))) for n in range(count)]


def binned(values: Array, bins: int = BINS) -> tuple[Array, Array, Array, Array]:
    """Values at distances 0, 1, ..., n - 1 in bins of equal width on a log axis of distance + 1.

    Returns the middle of each bin on that axis `[b]`, and the mean, the smallest and the largest value in it
    `[lines, b]`.
    """
    n = values.shape[1]
    edges = np.unique(np.geomspace(1, n + 1, bins + 1).round().astype(int))
    starts = edges[:-1] - 1
    counts = np.diff(edges)
    middle = np.sqrt(edges[:-1] * (edges[1:] - 1.0))
    mean = np.add.reduceat(values, starts, axis=1) / counts
    return middle, mean, np.minimum.reduceat(values, starts, axis=1), np.maximum.reduceat(values, starts, axis=1)


def distance_axis(axes: Axes, count: int, length: int, name: str = "tokens back from the query") -> None:
    """Make x a log axis of distance + 1 for `count` distances, its ticks the distances; mark the training length."""
    axes.set_xscale("log")
    axes.set_xlim(0.93, count * 1.04)
    decades = [0, *(10**n for n in range(7) if 10**n < count)]
    axes.xaxis.set_major_locator(FixedLocator([d + 1 for d in decades]))
    axes.xaxis.set_major_formatter(FixedFormatter([amount(d) for d in decades]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(name, fontsize=8)
    if length < count:
        mark_length(axes, length + 1, length)


def mark_length(axes: Axes, x: float, length: int) -> None:
    """Draw a thin vertical line at the training length, named at its foot."""
    axes.axvline(x, color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    remark(axes, (x, 0), (3, 4), f"L = {length}")


def name_curves(axes: Axes, names: Sequence[str], colors: Sequence[str]) -> None:
    """List the names of curves in their colours at the right of the axes; of many curves some, first and last too."""
    step = -(-len(names) // MOST_NAMES)
    shown = sorted({*range(0, len(names), step), len(names) - 1})
    for line, n in enumerate(shown):
        axes.annotate(
            drawable(names[n]),
            (1, 1),
            xycoords="axes fraction",
            xytext=(6, -2 - 1.35 * NAME_SIZE * line),
            textcoords="offset points",
            fontsize=NAME_SIZE,
            color=colors[n],
            va="top",
            annotation_clip=False,
            parse_math=False,
        )


def log_axis(axes: Axes) -> None:
    """Make y logarithmic, with ticks at powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, numticks=7))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def share_axes(panels: Sequence[Axes]) -> None:
    """Give all panels the same limits, the widest of each, so that curves can be compared by eye."""
    for of, give in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
        limits = [getattr(axes, of)() for axes in panels]
        falling = limits[0][0] > limits[0][1]
        low, high = min(min(each) for each in limits), max(max(each) for each in limits)
        for axes in panels:
            getattr(axes, give)((high, low) if falling else (low, high))


def heat_map(
    axes: Axes, values: Array, limit: float, *, signed: bool = True, extent: tuple[float, ...] | None = None
) -> None:
    """Draw a matrix, its colours from -limit or 0 to limit, with a bar that explains them at the right."""
    axes.grid(visible=False)
    low = -limit if signed else 0.0
    image = axes.imshow(
        values, aspect="auto", cmap=SIGNED if signed else RISING, vmin=low, vmax=limit, interpolation="nearest",
        extent=extent,  # type: ignore[arg-type]
    )  # fmt: skip
    color_bar(axes, image, (low, 0.0, limit) if signed else (0.0, limit))


def color_bar(axes: Axes, image: object, ticks: Sequence[float]) -> None:
    """A thin bar of colours at the right of the axes, with these ticks."""
    inner = axes.inset_axes((1.02, 0.0, 0.022, 1.0))
    bar = axes.figure.colorbar(image, cax=inner, ticks=list(ticks))  # type: ignore[arg-type]
    bar.ax.set_yticklabels([f"{tick:.3g}" for tick in ticks])
    bar.ax.tick_params(labelsize=6.8, length=2, color=QUIET)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)
