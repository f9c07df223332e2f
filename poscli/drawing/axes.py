"""Drawing on the axes of a figure: lines, scales with round ticks, and remarks inside the axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from poscli.drawing.style import INK, QUIET, Style

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


def length_axis(axes: Axes, lengths: Sequence[int], train_length: int) -> None:
    """Make x a log2 axis of lengths in tokens; each tick also shows the multiple of the training length."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(lengths) / 1.12, max(lengths) * 1.1)
    shown = list(lengths)[:: -(-len(lengths) // MAX_LENGTH_TICKS)]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{length}\n{_times(length, train_length)}" for length in shown]))
    axes.xaxis.set_minor_locator(NullLocator())


def signed_axis(axes: Axes, low: float, high: float) -> str:
    """Make y an axis around zero for values in low..high (low < 0 < high), the positive side tinted.

    The axis is linear unless `low` is more than five times as far from zero as `high`; then it is logarithmic below
    the largest value, so that a small gain stays visible beside a collapse. Returns what the axis name must add.
    """
    top, squeezed = 1.6 * high, low < -5 * high
    if squeezed:
        axes.set_yscale("symlog", linthresh=top, linscale=1.2)
    axes.set_ylim(low * 2 if squeezed else low - 0.6 * high, top)
    _round_ticks(axes, even=not squeezed)
    axes.axhspan(0, top, color=POSITIVE_TINT, zorder=0, linewidth=0)
    axes.axhline(0, color=INK, linewidth=1.1, zorder=3)
    return f", logarithmic below {-top:.2g}" if squeezed else ""


def mark_training(axes: Axes, train_length: int, at: float = 1.0) -> None:
    """Draw a vertical line at the training length, its name at the fraction `at` of the height (1 is the top)."""
    axes.axvline(train_length, color=QUIET, linewidth=1.0, zorder=1)
    first, last = axes.get_xlim()
    if first <= train_length <= last:
        remark(axes, (train_length, at), (4, 5 - 16 * at), f"training length {train_length}")


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
    axes.yaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.yaxis.set_major_formatter(FixedFormatter(tick_texts(ticks)))
    axes.yaxis.set_minor_locator(NullLocator())


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


def _round_ticks(axes: Axes, *, even: bool) -> None:
    """Set round ticks on an axis around zero, at even steps or as many as are not too near to each other."""
    low, high = axes.get_ylim()
    ticks = _even_ticks(low, high) if even else _spread_ticks(axes, low, high)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{tick:+g}" if tick else "0" for tick in ticks]))
    axes.yaxis.set_minor_locator(NullLocator())


def _even_ticks(low: float, high: float) -> list[float]:
    ticks = MaxNLocator(nbins=8, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [round(float(tick), 12) for tick in ticks if low <= tick <= high]


def _spread_ticks(axes: Axes, low: float, high: float) -> list[float]:
    """Large and simple numbers first, unless another tick is too near."""
    sizes = [digit * 10.0**power for power in (1, 0, -1, -2, -3) for digit in (1, 3, 5, 2)]
    kept: dict[float, float] = {}
    for tick in [0.0, *sizes, *(-size for size in sizes)]:
        at = _height(axes, tick)
        if low <= tick <= high and all(abs(at - other) > MIN_TICK_DISTANCE for other in kept.values()):
            kept[tick] = at
    return sorted(kept)


def _height(axes: Axes, y: float) -> float:
    """The height of y as a fraction of the axes: 0 at the bottom, 1 at the top."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform((1, y)))[1])


def _times(length: int, train_length: int) -> str:
    """Write a length as a multiple of the training length, or as a fraction where it divides the training length.

    >>> _times(1024, 256), _times(64, 256)
    ('4x', '1/4x')
    """
    if length < train_length and train_length % length == 0:
        return f"1/{train_length // length}x"
    return f"{length / train_length:g}x"
