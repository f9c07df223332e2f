"""Pictures of curves by distance: weights, scores, biases, and the four terms of a score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from poscli.drawing.axes import name_axes, remark
from poscli.drawing.curves import binned, distance_axis, head_colors, log_axis, mark_length, name_curves, share_axes
from poscli.drawing.style import PALETTE, QUIET
from poscli.inspect.biases import Bias, BiasAlone
from poscli.inspect.numbers import Array
from poscli.inspect.order import ByOrder
from poscli.inspect.probe import Curves, Scores, Weights
from poscli.inspect.terms import SHORT, Terms

LEAST = 1e-2  # of the weight of equal weights: what is below is drawn at the bottom
FEW = 4  # curves, up to which those of a training window are drawn beside those of the longest


def draw_weights(panels: Sequence[Axes], found: Sequence[Weights]) -> None:
    """Weights by distance on log axes, with a dotted line where all keys have the same weight."""
    for axes, each in zip(panels, found, strict=True):
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
        axes.set_ylim(max(LEAST / count, 1e-9), max(top * 2, 20 / count))
    share_axes(panels)


def draw_scores(panels: Sequence[Axes], found: Sequence[Scores]) -> None:
    """Scores less that of the query's own key, by distance."""
    for axes, each in zip(panels, found, strict=True):
        shown = (each.near if each.far is None else each.far).merged()
        values = np.where(np.isfinite(shown.values), shown.values, np.nan)
        _curves(axes, shown, values)
        if each.far is not None and len(shown.lines) <= FEW:
            near = each.near.merged()
            _near(axes, near, np.where(np.isfinite(near.values), near.values, np.nan), near.values.shape[1])
        distance_axis(axes, values.shape[1], each.near.values.shape[1])
        name_axes(axes, "tokens back from the query", "score less that of the own key")
    share_axes(panels)


def draw_bias(panels: Sequence[Axes], found: Sequence[Bias]) -> None:
    """The bias of each head; distances are on a linear axis where all curves are lines, else on a log axis."""
    straight = all(each.straight for each in found)
    for axes, each in zip(panels, found, strict=True):
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


def draw_shares(panels: Sequence[Axes], found: Sequence[BiasAlone]) -> None:
    """The share of the weight that the most recent keys hold, by how many they are."""
    for axes, each in zip(panels, found, strict=True):
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


def draw_terms(panels: Sequence[Axes], found: Sequence[Terms]) -> None:
    """The mean of each of the four terms by distance."""
    for axes, each in zip(panels, found, strict=True):
        middle, mean, _, _ = binned(each.by_distance)
        for row, color in zip(mean, PALETTE, strict=False):
            axes.plot(middle, row, color=color, linewidth=1.5)
        distance_axis(axes, each.by_distance.shape[1], each.by_distance.shape[1])
        name_axes(axes, "tokens back from the query", "term of the score, mean")
        name_curves(axes, SHORT, PALETTE)
        remark(axes, (1, 0), (2, 4), "query-key: c content, p position")
    share_axes(panels)


def draw_positions(panels: Sequence[Axes], found: Sequence[ByOrder]) -> None:
    """The position of each token, one line per length of the window."""
    _draw_by_order(panels, found, "position that formulas see")


def draw_temperature(panels: Sequence[Axes], found: Sequence[ByOrder]) -> None:
    """The factor on the scores of each query, one line per head."""
    _draw_by_order(panels, found, "factor on the scores")


def _draw_by_order(panels: Sequence[Axes], found: Sequence[ByOrder], what: str) -> None:
    for axes, each in zip(panels, found, strict=True):
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
