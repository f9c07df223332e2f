"""Drawing on the axes of a figure: lines, curves by distance, heat maps, scales with round ticks, and remarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from poscli.drawing.style import INK, PALETTE, QUIET, Style
from poscli.drawing.text import amount, drawable

AXIS_NAME_POINTS = 8.5  # font size
POSITIVE_TINT = "#edf4f0"  # background above zero on a signed axis
LENGTH_AXIS = "length of the window that the model reads, and as a multiple of its training length"
MAX_LENGTH_TICKS = 9
MIN_TICK_DISTANCE = 0.07  # of the height of the axes
# Digits of ticks within one decade, the densest series first.
TICK_SERIES = (
    np.arange(1, 10, 0.1), np.arange(1, 10, 0.2), np.arange(1, 10, 0.5), (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,),
)  # fmt: skip
Array = NDArray[np.float64]
BINS = 260  # along a logarithmic axis, each drawn as one point
NAME_SIZE = 6.8  # points
MOST_NAMES = 12  # of curves, that are listed
SIGNED, RISING = "RdBu_r", "cividis"  # colours of heat maps around zero, and from zero on


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Write the names of the x and the y axis."""
    axes.set_xlabel(x, fontsize=AXIS_NAME_POINTS)
    axes.set_ylabel(y, fontsize=AXIS_NAME_POINTS)


def draw_line(axes: Axes, x: pd.Series, y: pd.Series, style: Style, every: int = 1) -> None:
    """Draw one encoding's line, with a marker at its last point and at every `every`-th point before."""
    axes.plot(
        x,
        y,
        color=style.color,
        linestyle=style.dash,
        linewidth=1.7 if style.strong else 0.9,
        marker=style.marker,
        markevery=((len(x) - 1) % every, every),
        markersize=5,
        markerfacecolor=style.color if style.filled else "white",
        zorder=4 if style.strong else 2,
    )


def fixed_ticks(axis: Axis, ticks: Sequence[float], texts: Sequence[str]) -> None:
    """Give an axis these ticks, with these texts, and no others."""
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter(texts))
    axis.set_minor_locator(NullLocator())


def length_axis(axes: Axes, lengths: Sequence[int], train_length: int) -> None:
    """Make x a log2 axis of lengths in tokens; each tick also shows the multiple of the training length."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(lengths) / 1.12, max(lengths) * 1.1)
    shown = list(lengths)[:: -(-len(lengths) // MAX_LENGTH_TICKS)]
    fixed_ticks(axes.xaxis, shown, [f"{length}\n{_times(length, train_length)}" for length in shown])


def signed_axis(axes: Axes, low: float, high: float) -> str:
    """Make y an axis around zero for values in low..high (low < 0 < high), the positive side tinted.

    The axis is linear unless `low` is more than five times as far from zero as `high`; then it is logarithmic below
    the largest value, so that a small gain stays visible beside a collapse. Returns what the axis name must add.
    """
    top, squeezed = 1.6 * high, low < -5 * high
    if squeezed:
        axes.set_yscale("symlog", linthresh=top, linscale=1.2)
    axes.set_ylim(low * 2 if squeezed else low - 0.6 * high, top)
    low, high = axes.get_ylim()
    even = MaxNLocator(nbins=8, steps=[1, 2, 5, 10]).tick_values(low, high)
    ticks = _spread_ticks(axes) if squeezed else [round(float(tick), 12) for tick in even if low <= tick <= high]
    fixed_ticks(axes.yaxis, ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
    axes.axhspan(0, top, color=POSITIVE_TINT, zorder=0, linewidth=0)
    axes.axhline(0, color=INK, linewidth=1.1, zorder=3)
    return f", logarithmic below {-top:.2g}" if squeezed else ""


def mark_training(axes: Axes, train_length: int, at: float = 1.0) -> None:
    """Draw a vertical line at the training length, its name at the fraction `at` of the height (1 is the top)."""
    axes.axvline(train_length, color=QUIET, linewidth=1.0, zorder=1)
    first, last = axes.get_xlim()
    if first <= train_length <= last:
        share, _ = (axes.get_xaxis_transform() - axes.transAxes).transform((train_length, 0))
        shift, ha = (-4, "right") if share > 0.6 else (4, "left")  # it is long, and to the right stand the labels
        remark(axes, (train_length, at), (shift, 5 - 16 * at), f"training length {train_length}", ha=ha)


def remark(
    axes: Axes,
    at: tuple[float, float],
    shift: tuple[float, float],
    text: str,
    *,
    halo: str = "white",
    ha: str = "left",
    behind: bool = False,
) -> None:
    """Write small grey text inside the axes at (x in data units, y as a fraction of the height), moved by points.

    It covers lines with its halo unless it is to stand `behind` them.
    """
    axes.annotate(
        text,
        at,
        xycoords=("data", "axes fraction"),
        xytext=shift,
        textcoords="offset points",
        ha=ha,
        fontsize=7.5,
        color=QUIET,
        zorder=0.5 if behind else 7,
        parse_math=False,
        path_effects=[] if behind else [withStroke(linewidth=2.5, foreground=halo)],
    )


def headroom(axes: Axes) -> None:
    """Extend y upwards by 7 %, as room for the name of the training length above the lines."""
    low, high = axes.get_ylim()
    log = axes.get_yscale() == "log"
    axes.set_ylim(low, high * (high / low) ** 0.07 if log else high + 0.07 * (high - low))


def log_ticks(axes: Axes) -> None:
    """Make y logarithmic with plain numbers as ticks, of the densest round series with fewer than ten ticks."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = np.array([low, high])
    for series in TICK_SERIES:
        inside = np.outer(decades, series).ravel()
        inside = inside[(inside >= low) & (inside <= high)]
        if len(inside) < 10:
            ticks = inside
            break
    fixed_ticks(axes.yaxis, list(ticks), tick_texts(ticks))


def tick_texts(ticks: Iterable[float]) -> list[str]:
    """The ticks as plain numbers, from 100,000 on with an exponent, with the digits that they need.

    >>> tick_texts([1, 1.5, 20]), tick_texts([1e5, 1.5e5, 1e6]), tick_texts([1234567, 1234568])
    (['1', '1.5', '20'], ['1.0e+05', '1.5e+05', '1.0e+06'], ['1.234567e+06', '1.234568e+06'])
    """
    values = list(ticks)
    texts: list[str] = []
    for more in range(12):
        texts = [f"{tick:.{6 + more}g}" if abs(tick) < 1e5 else f"{tick:.{more}e}" for tick in values]
        if len(set(texts)) == len(values) and np.allclose(list(map(float, texts)), values, rtol=1e-3, atol=0):
            break
    return texts


def _spread_ticks(axes: Axes) -> list[float]:
    """Round ticks on the y axis around zero: large and simple numbers first, unless another tick is too near."""
    low, high = axes.get_ylim()
    sizes = [digit * 10.0**power for power in (1, 0, -1, -2, -3) for digit in (1, 3, 5, 2)]
    kept: dict[float, float] = {}  # tick -> its height, as a fraction of the axes
    for tick in [0.0, *sizes, *(-size for size in sizes)]:
        at = float(axes.transAxes.inverted().transform(axes.transData.transform((1, tick)))[1])
        if low <= tick <= high and all(abs(at - other) > MIN_TICK_DISTANCE for other in kept.values()):
            kept[tick] = at
    return sorted(kept)


def _times(length: int, train_length: int) -> str:
    """Write a length as a multiple of the training length, or as a fraction where it divides the training length.

    >>> _times(1024, 256), _times(64, 256)
    ('4x', '1/4x')
    """
    if length < train_length and train_length % length == 0:
        return f"1/{train_length // length}x"
    return f"{length / train_length:g}x"


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


def distance_axis(axes: Axes, count: int, length: int) -> None:
    """Make x a log axis of distance + 1 for `count` distances, its ticks the distances; mark the training length."""
    axes.set_xscale("log")
    axes.set_xlim(0.93, count * 1.04)
    decades = [0, *(10**n for n in range(7) if 10**n < count)]
    fixed_ticks(axes.xaxis, [d + 1 for d in decades], [amount(d) for d in decades])
    axes.set_xlabel("tokens back from the query", fontsize=8)
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


def heat_map(axes: Axes, values: Array, limit: float) -> None:
    """Draw a matrix, its colours from -limit to limit, with a bar that explains them at the right."""
    axes.grid(visible=False)
    image = axes.imshow(values, aspect="auto", cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest")
    color_bar(axes, image, (-limit, 0.0, limit))


def color_bar(axes: Axes, image: object, ticks: Sequence[float]) -> None:
    """A thin bar of colours at the right of the axes, with these ticks."""
    inner = axes.inset_axes((1.02, 0.0, 0.022, 1.0))
    bar = axes.figure.colorbar(image, cax=inner, ticks=list(ticks))  # type: ignore[arg-type]
    bar.ax.set_yticklabels([f"{tick:.3g}" for tick in ticks])
    bar.ax.tick_params(labelsize=6.8, length=2, color=QUIET)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)
