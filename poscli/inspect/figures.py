"""The drawings of all views of encodings along a line: each draws the numbers of several subjects, on the same axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from poscli.drawing.axes import (
    binned,
    distance_axis,
    fixed_ticks,
    head_colors,
    heat_map,
    log_axis,
    mark_length,
    name_axes,
    name_curves,
    remark,
    share_axes,
)
from poscli.drawing.style import PALETTE, QUIET
from poscli.drawing.text import amount
from poscli.inspect.absolute import PURE, Gram, PositionTable, Products, ShiftMap, Wavelengths
from poscli.inspect.numbers import Array
from poscli.inspect.probe import Curves, ScoreCurves, WeightCurves
from poscli.inspect.rotary import TURN, Decay, SpeedRatio, Turning
from poscli.inspect.terms import SHORT, Bias, BiasAlone, ByOrder, Terms

MOST_CHANNELS = 32  # of M_k that are drawn: more would be too small to be seen


def draw_position_table(panels: Sequence[Axes], results: Sequence[PositionTable]) -> None:
    """The first rows of the table as heat maps with one scale."""
    limit = max(float(np.quantile(np.abs(each.rows), 0.995)) for each in results)
    for axes, each in zip(panels, results, strict=True):
        heat_map(axes, each.rows, limit)
        name_axes(axes, "channel", "position")


def draw_products(panels: Sequence[Axes], results: Sequence[Products]) -> None:
    """The mean product by distance, and the range over places."""
    for axes, each in zip(panels, results, strict=True):
        axes.fill_between(each.distances + 1, each.low, each.high, color=PALETTE[0], alpha=0.15, linewidth=0)
        axes.plot(each.distances + 1, each.mean, color=PALETTE[0], linewidth=1.5)
        distance_axis(axes, int(each.distances[-1]) + 1, each.length)
        name_axes(axes, "distance d, in tokens", "P[i] . P[i+d], relative")
        if float((each.high - each.low).max()) > 1e-6:
            remark(axes, (1, 1), (2, -4), "band: over all places i")
    share_axes(panels)


def draw_wavelengths(panels: Sequence[Axes], results: Sequence[Wavelengths]) -> None:
    """The wavelength of every channel, hollow where a wave explains only a part of it."""
    for axes, each in zip(panels, results, strict=True):
        omega, share = each.frequencies.omega, each.frequencies.share
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


def draw_gram(panels: Sequence[Axes], results: Sequence[Gram]) -> None:
    """Cosines between columns."""
    for axes, each in zip(panels, results, strict=True):
        heat_map(axes, each.cosines, 1.0)
        name_axes(axes, "channel", "channel")


def draw_map(panels: Sequence[Axes], results: Sequence[ShiftMap]) -> None:
    """The first rows and columns of M_k, with one scale."""
    limit = max(1.0, *(min(2.0, float(np.abs(each.map).max())) for each in results))
    for axes, each in zip(panels, results, strict=True):
        heat_map(axes, each.map[:MOST_CHANNELS, :MOST_CHANNELS], limit)
        name_axes(axes, f"channel of P[i+{each.k}]", "channel of P[i]")


SEEN, NEW = PALETTE[0], PALETTE[1]


def draw_turning(panels: Sequence[Axes], results: Sequence[Turning]) -> None:
    """The angle of every pair by position, in turns: dark up to the training length, orange where it is new."""
    for axes, each in zip(panels, results, strict=True):
        log_axis(axes)
        axes.set_xscale("log")
        new = each.new_angles()
        for n, (inside, omega) in enumerate(zip(each.omega_in_training, each.omega, strict=True)):
            start, end = np.array([1, each.length]), np.array([each.length, each.max_len])
            axes.plot(start, inside * start / TURN, color=SEEN, linewidth=1.3)
            axes.plot(end, omega * end / TURN, color=NEW if new[n] else SEEN, linewidth=2.2 if new[n] else 0.8)
        axes.axhline(1, color=QUIET, linewidth=0.9, linestyle=":")
        axes.set_xlim(1, each.max_len)
        _plain_ticks(axes, each.max_len)
        mark_length(axes, each.length, each.length)
        name_axes(axes, "position, in tokens", "turns of each pair of channels")
        axes.annotate("one turn", (1, 1), xytext=(3, 3), textcoords="offset points", fontsize=7.5, color=QUIET)
        if new.any():
            remark(axes, (each.max_len, 0), (-2, 14), "orange: angles never met in training", ha="right")
    share_axes(panels)


def draw_decay(panels: Sequence[Axes], results: Sequence[Decay]) -> None:
    """The product by distance: for q of ones a line, for random q a band and its mean."""
    for axes, each in zip(panels, results, strict=True):
        middle, rows, lowest, highest = binned(np.stack([each.ones, each.mean, each.low, each.high]))
        axes.fill_between(middle, rows[2], rows[3], color=QUIET, alpha=0.16, linewidth=0)
        axes.plot(middle, rows[1], color=QUIET, linewidth=1.2)
        axes.fill_between(middle, lowest[0], highest[0], color=SEEN, alpha=0.18, linewidth=0)
        axes.plot(middle, rows[0], color=SEEN, linewidth=1.5)
        axes.axhline(0, color=QUIET, linewidth=0.8)
        distance_axis(axes, len(each.ones), each.length)
        name_axes(axes, "distance d, in tokens", "q . R(d) q, relative")
        axes.set_ylim(min(-0.2, float(each.low.min()), float(each.ones.min())) - 0.15, 1.06)
        remark(axes, (1, 0), (2, 4), "blue: q of ones; grey: nine in ten random q")
    share_axes(panels)


def draw_scaling(panels: Sequence[Axes], results: Sequence[SpeedRatio]) -> None:
    """The ratio of angular frequencies by the wavelength in the other encoding; nothing where they have other pairs."""
    shown = [(axes, each) for axes, each in zip(panels, results, strict=True) if len(each.ratio)]
    for axes in set(panels) - {axes for axes, _ in shown}:
        axes.set_axis_off()
    for axes, each in shown:
        axes.axhline(1, color=QUIET, linewidth=0.9, linestyle=":")
        axes.plot(TURN / each.omega, each.ratio, "o-", color=SEEN, linewidth=1.2, markersize=4)
        axes.set_xscale("log")
        log_axis(axes)
        axes.set_ylim(min(0.5, float(each.ratio.min()) / 1.5), max(1.5, float(each.ratio.max()) * 1.5))
        ticks = [tick for tick in (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4) if tick >= axes.get_ylim()[0]]
        ticks = [tick for tick in ticks if tick <= axes.get_ylim()[1]]
        fixed_ticks(axes.yaxis, ticks, [f"{t:g}x" if t >= 1 else f"1/{1 / t:g}x" for t in ticks])
        name_axes(axes, f"wavelength in {each.other}, in tokens", f"angular speed, relative to {each.other}")
        _plain_ticks(axes, int(TURN / each.omega[-1] * 1.2))
        mark_length(axes, each.length, each.length)
    if shown:
        share_axes([axes for axes, _ in shown])


def _plain_ticks(axes: Axes, most: int) -> None:
    """Powers of ten as plain numbers on the x axis."""
    ticks = [10**n for n in range(8) if 10**n <= most]
    fixed_ticks(axes.xaxis, ticks, [amount(tick) for tick in ticks])


FLOOR = 1e-2  # of the weight of equal weights: what is below is drawn at the bottom
SMALL_BINS = 90
FEW = 4  # curves, up to which those of a training window are drawn beside those of the longest


def draw_weight_curves(panels: Sequence[Axes], results: Sequence[WeightCurves]) -> None:
    """Weights by distance on log axes, with a dotted line where all keys have the same weight."""
    for axes, each in zip(panels, results, strict=True):
        shown = each.shown.merged()
        count, top = shown.values.shape[1], float(shown.values.max())
        log_axis(axes)
        axes.plot([1, count], [1 / count] * 2, ":", color=QUIET, linewidth=1.2, zorder=3)
        axes.annotate(
            f"equal weights: 1/{count}", (1, 1 / count), xytext=(2, 3), textcoords="offset points", fontsize=7,
            color=QUIET, path_effects=[withStroke(linewidth=2.5, foreground="white")], zorder=7,
        )  # fmt: skip
        _curves(axes, shown, np.abs(shown.values))
        if each.far is not None and len(shown.lines) <= FEW:
            near = each.near.merged()
            top = max(top, float(near.values.max()))
            _near(axes, near, np.abs(near.values), each.length)
        distance_axis(axes, count, each.length)
        name_axes(axes, "tokens back from the query", "attention weight")
        axes.set_ylim(max(FLOOR / count, 1e-9), max(top * 2, 20 / count))
    share_axes(panels)


def draw_small_weights(axes: Axes, results: WeightCurves) -> None:
    """Weights by distance without names, for the contact sheet; times the number of keys, so that equal ones are 1."""
    curves = results.shown.merged()
    count = curves.values.shape[1]
    middle, mean, _, _ = binned(np.abs(curves.values) * count, SMALL_BINS)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot([1, 2**20], [1, 1], ":", color=QUIET, linewidth=0.8)
    for row, color in zip(mean, head_colors(len(curves.lines)), strict=True):
        axes.plot(middle, np.maximum(row, FLOOR / 10), color=color, linewidth=0.9)
    if count > results.length:
        axes.axvline(results.length, color=QUIET, linewidth=0.6, linestyle=(0, (4, 2)))
    axes.set_xlim(0.9, max(results.longest, count) * 1.1)
    axes.set_ylim(FLOOR, max(results.longest, count) * 1.5)
    decades = [10**n for n in range(6) if 10**n <= results.longest]
    fixed_ticks(axes.xaxis, decades, [amount(tick) for tick in decades])
    fixed_ticks(axes.yaxis, [1], [""])
    axes.tick_params(labelsize=5, length=1.5, pad=1, colors=QUIET)


def draw_scores(panels: Sequence[Axes], results: Sequence[ScoreCurves]) -> None:
    """Scores less that of the query's own key, by distance."""
    for axes, each in zip(panels, results, strict=True):
        shown = (each.near if each.far is None else each.far).merged()
        values = np.where(np.isfinite(shown.values), shown.values, np.nan)
        _curves(axes, shown, values)
        if each.far is not None and len(shown.lines) <= FEW:
            near = each.near.merged()
            _near(axes, near, np.where(np.isfinite(near.values), near.values, np.nan), near.values.shape[1])
        distance_axis(axes, values.shape[1], each.near.values.shape[1])
        name_axes(axes, "tokens back from the query", "score less that of the own key")
    share_axes(panels)


def draw_bias(panels: Sequence[Axes], results: Sequence[Bias]) -> None:
    """The bias of each head; distances are on a linear axis where all curves are lines, else on a log axis."""
    straight = all(each.straight for each in results)
    for axes, each in zip(panels, results, strict=True):
        shown = each.curves.merged()
        if straight:
            for row, color in zip(shown.values, head_colors(len(shown.lines)), strict=True):
                axes.plot([0, len(row) - 1], row[[0, -1]], color=color, linewidth=1.4)
            axes.set_xlim(0, shown.values.shape[1] - 1)
            mark_length(axes, each.length, each.length)
        else:
            _steps(axes, shown)
            distance_axis(axes, shown.values.shape[1], each.length)
        name_curves(axes, shown.lines, head_colors(len(shown.lines)))
        name_axes(axes, "distance from query to key, in tokens", "bias, added to the score")
    share_axes(panels)


def draw_shares(panels: Sequence[Axes], results: Sequence[BiasAlone]) -> None:
    """The share of the weight that the most recent keys hold, by how many they are."""
    for axes, each in zip(panels, results, strict=True):
        shown = each.curves.merged()
        share = shown.values.cumsum(axis=1)
        count = share.shape[1]
        at = np.unique(np.geomspace(1, count, 300).round().astype(int)) - 1
        for row, color in zip(share, head_colors(len(shown.lines)), strict=True):
            axes.plot(at + 1, row[at], color=color, linewidth=1.4)
        axes.axhline(0.5, color=QUIET, linewidth=0.9, linestyle=":")
        axes.set_ylim(0, 1.02)
        distance_axis(axes, count, each.length)
        name_axes(axes, "tokens back from the query", "share of the weight, summed")
        name_curves(axes, shown.lines, head_colors(len(shown.lines)))
    share_axes(panels)


def draw_terms(panels: Sequence[Axes], results: Sequence[Terms]) -> None:
    """The mean of each of the four terms by distance."""
    for axes, each in zip(panels, results, strict=True):
        middle, mean, _, _ = binned(each.by_distance)
        for row, color in zip(mean, PALETTE, strict=False):
            axes.plot(middle, row, color=color, linewidth=1.5)
        distance_axis(axes, each.by_distance.shape[1], each.by_distance.shape[1])
        name_axes(axes, "tokens back from the query", "term of the score, mean")
        name_curves(axes, SHORT, PALETTE)
        remark(axes, (1, 0), (2, 4), "query-key: c content, p position")
    share_axes(panels)


def draw_by_order(panels: Sequence[Axes], results: Sequence[ByOrder], what: str) -> None:
    """What each token has, by its number in the window: one line per length of the window, or per head."""
    for axes, each in zip(panels, results, strict=True):
        for row, color in zip(each.values, head_colors(len(each.names)), strict=True):
            axes.plot(each.at + 1, row, color=color, linewidth=1.4)
        distance_axis(axes, int(each.at[-1]) + 1, each.length)
        name_axes(axes, "number of the token in the window, from 0", what)
        name_curves(axes, each.names, head_colors(len(each.names)))
    share_axes(panels)


def _curves(axes: Axes, curves: Curves, values: Array) -> None:
    """The means of curves in bins of the distance, and their names."""
    middle, mean, _, _ = binned(values)
    colors = head_colors(len(curves.lines))
    for row, color in zip(mean, colors, strict=True):
        axes.plot(middle, row, color=color, linewidth=1.4, zorder=4)
    name_curves(axes, curves.lines, colors)


def _steps(axes: Axes, curves: Curves) -> None:
    """Curves as they are, at all small distances and at some large ones."""
    at = np.unique(np.geomspace(1, curves.values.shape[1], 600).round().astype(int)) - 1
    for row, color in zip(curves.values, head_colors(len(curves.lines)), strict=True):
        axes.plot(at + 1, row[at], color=color, linewidth=1.4, drawstyle="steps-mid")


def _near(axes: Axes, curves: Curves, values: Array, length: int) -> None:
    """The curves of a query at the end of a training window, thin and dashed."""
    middle, mean, _, _ = binned(values)
    for row, color in zip(mean, head_colors(len(curves.lines)), strict=True):
        axes.plot(middle, row, color=color, linewidth=0.9, linestyle=(0, (3, 2)), zorder=3)
    remark(axes, (1, 0), (2, 4), f"dashed: in a window of {length} tokens")
