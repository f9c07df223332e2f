"""Pictures of a table of positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from poscli.drawing.axes import name_axes, remark
from poscli.drawing.curves import distance_axis, heat_map, log_axis, share_axes
from poscli.drawing.style import PALETTE, QUIET
from poscli.inspect.absolute import Gram, Products, Table, Wavelengths
from poscli.inspect.fourier import PURE
from poscli.inspect.shift import ShiftMap

MOST_CHANNELS = 32  # of M_k that are drawn: more would be too small to be seen


def draw_table(panels: Sequence[Axes], found: Sequence[Table]) -> None:
    """The first rows of the table as heat maps with one scale."""
    limit = max(float(np.quantile(np.abs(each.rows), 0.995)) for each in found)
    for axes, each in zip(panels, found, strict=True):
        heat_map(axes, each.rows, limit)
        name_axes(axes, "channel", "position")


def draw_products(panels: Sequence[Axes], found: Sequence[Products]) -> None:
    """The mean product by distance, and the range over places."""
    for axes, each in zip(panels, found, strict=True):
        axes.fill_between(each.distances + 1, each.low, each.high, color=PALETTE[0], alpha=0.15, linewidth=0)
        axes.plot(each.distances + 1, each.mean, color=PALETTE[0], linewidth=1.5)
        distance_axis(axes, int(each.distances[-1]) + 1, each.length)
        name_axes(axes, "distance d, in tokens", "P[i] . P[i+d], relative")
        if float((each.high - each.low).max()) > 1e-6:
            remark(axes, (1, 1), (2, -4), "band: over all places i")
    share_axes(panels)


def draw_wavelengths(panels: Sequence[Axes], found: Sequence[Wavelengths]) -> None:
    """The wavelength of every channel, hollow where a wave explains only a part of it."""
    for axes, each in zip(panels, found, strict=True):
        omega, share = each.found.omega, each.found.share
        with np.errstate(divide="ignore"):
            waves = np.where(omega > 0, 2 * np.pi / omega, np.nan)
        order = np.argsort(np.where(np.isfinite(waves), waves, np.inf))
        place = np.arange(1, len(waves) + 1)
        pure = share[order] >= PURE
        axes.plot(place[pure], waves[order][pure], "o", color=PALETTE[0], markersize=3)
        axes.plot(place[~pure], waves[order][~pure], "o", color=QUIET, markersize=3, markerfacecolor="white")
        log_axis(axes)
        axes.axhline(each.length, color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)))
        axes.annotate(f"L = {each.length}", (1, each.length), xytext=(0, 3), textcoords="offset points", fontsize=7.5,
                      color=QUIET)  # fmt: skip
        name_axes(axes, "channel, shortest wavelength first", "wavelength, in tokens")
        if not pure.all():
            remark(axes, (place[-1], 0), (0, 4), "hollow: no single wave explains 99 % of it", ha="right")
    share_axes(panels)


def draw_gram(panels: Sequence[Axes], found: Sequence[Gram]) -> None:
    """Cosines between columns."""
    for axes, each in zip(panels, found, strict=True):
        heat_map(axes, each.cosines, 1.0)
        name_axes(axes, "channel", "channel")


def draw_map(panels: Sequence[Axes], found: Sequence[ShiftMap]) -> None:
    """The first rows and columns of M_k, with one scale."""
    limit = max(1.0, *(min(2.0, float(np.abs(each.map).max())) for each in found))
    for axes, each in zip(panels, found, strict=True):
        heat_map(axes, each.map[:MOST_CHANNELS, :MOST_CHANNELS], limit)
        name_axes(axes, f"channel of P[i+{each.k}]", "channel of P[i]")
