"""The figures of a report, drawn from what charts.py says they show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import pandas as pd
from matplotlib.axes import Axes

from poscli.drawing.axes import (
    LENGTH_AXIS,
    POSITIVE_TINT,
    draw_line,
    fixed_ticks,
    headroom,
    length_axis,
    log_ticks,
    mark_training,
    name_axes,
    remark,
    signed_axis,
)
from poscli.drawing.page import End, Page, clip_name, failure_rows
from poscli.drawing.style import QUIET, Styles
from poscli.report.data import Figure, Line

MIN_RATIO_FOR_LOG_AXIS = 2.5  # largest over smallest value
MIN_GAIN_AXIS_BPB = 0.01  # upper end of the gain axis where all gains are smaller
BASELINE_DASHES = {":": "dotted", "-.": "dash-dotted", "--": "dashed"}


def page_of(figure: Figure, styles: Styles) -> Page:
    """Draw a figure; `styles` are the looks of its encodings, the same in all figures of a section."""
    missing = failure_rows({(each.cause, each.lengths): each.names for each in figure.missing}, styles)
    known = [line for line in figure.lines if any(map(math.isfinite, line.y))]
    page, note = Page(len(known), len(missing)), figure.note
    axes, train_length, right = page.axes, figure.train_length, list(figure.ticks)
    if figure.name in ("perplexity", "position"):
        _draw(axes, figure.lines, styles, every=3 if figure.name == "position" else 1)
        _bands(axes, [line for line in figure.lines if styles[line.name].strong], styles)
        values = [value for line in known for value in line.y if math.isfinite(value)]
        if figure.name == "perplexity":
            length_axis(axes, right, train_length)
        scale = ""
        if max(values) > MIN_RATIO_FOR_LOG_AXIS * min(values):
            log_ticks(axes)
            scale = ", log scale"
        if figure.name == "position":
            length_axis(axes, right, train_length)
        name_axes(axes, figure.x or LENGTH_AXIS, f"{figure.y}{scale} (lower is better)")
        headroom(axes)
        mark_training(axes, train_length)
    elif figure.name == "gain":
        note += _gains(axes, figure, styles)
    elif figure.name == "recall":
        _draw(axes, figure.lines, styles)
        _bands(axes, figure.lines, styles)
        length_axis(axes, right, train_length)
        high = max(*_values(figure.lines, "high"), MIN_GAIN_AXIS_BPB)
        scale = signed_axis(axes, min(*_values(figure.lines, "low"), -high / 2), high)
        name_axes(axes, figure.x, f"{figure.y}{scale}")
        mark_training(axes, train_length, at=0)
        remark(axes, (axes.get_xlim()[0], 1), (4, -11), "above zero: the token is recalled from beyond the cut")
    else:
        _draw(axes, figure.lines, styles)
        _bands(axes, figure.lines, styles)
        if figure.tick_names:  # depths
            axes.set_xlim(figure.ticks[0] - 4, figure.ticks[-1] + 2)
            fixed_ticks(axes.xaxis, right, figure.tick_names)
        else:
            length_axis(axes, right, train_length)
        _shares(axes, figure)
        name_axes(axes, figure.x or LENGTH_AXIS, f"{figure.y} (higher is better)")
        if figure.name == "accuracy":
            mark_training(axes, train_length)
    page.label_ends(list(_ends(known, styles)), missing)
    page.write(figure.title, figure.finding, figure.heading, note)
    return page


def _draw(axes: Axes, lines: Iterable[Line], styles: Styles, every: int = 1) -> None:
    for line in lines:
        draw_line(axes, pd.Series(line.x), pd.Series(line.y), styles[line.name], every=every)


def _bands(axes: Axes, lines: Iterable[Line], styles: Styles) -> None:
    """Draw the intervals of lines that have them."""
    for line in lines:
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=styles[line.name].color, alpha=0.09, linewidth=0)


def _ends(lines: Iterable[Line], styles: Styles) -> Iterator[End]:
    """The labels at the ends of lines."""
    for line in lines:
        x, y = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)][-1]
        if line.label:
            text = line.label if line.label == line.name else clip_name(line.label, line.name)
            yield End(x, y, text, styles[line.name])


def _values(lines: Iterable[Line], *ends: str) -> list[float]:
    """All numbers of lines, and those of the ends of their intervals that are asked for."""
    columns = (getattr(line, name) for line in lines for name in ("y", *ends))
    return [value for column in columns for value in column if not math.isnan(value)]


def _gains(axes: Axes, figure: Figure, styles: Styles) -> str:
    """Draw gains on an axis that explains both of its sides; return what to add to the footnote."""
    strong, note = [line.name for line in figure.lines if styles[line.name].strong], ""
    # Points of each encoding are moved a little sideways, so that error bars do not overlap.
    middle, step = (len(strong) - 1) / 2, min(0.04, 0.2 / max(1, len(strong)))
    shift = {name: 2 ** (step * (index - middle)) for index, name in enumerate(strong)}
    for line in figure.lines:
        look = styles[line.name]
        moved = shift.get(line.name, 1.0)
        x = pd.Series([each if each <= figure.train_length else each * moved for each in line.x], dtype=float)
        draw_line(axes, x, pd.Series(line.y), look)
        if look.strong:
            axes.vlines(x, line.low, line.high, color=look.color, linewidth=1.3, zorder=5)
    for (variant, lines), (dash, name) in zip(figure.baselines, BASELINE_DASHES.items(), strict=False):
        for line in lines:
            axes.plot(line.x, line.y, dash, color=styles[line.name].color, linewidth=0.8, zorder=3)
        note += f" Thin {name} lines: the same models under the baseline {variant}."
    length_axis(axes, list(figure.ticks), figure.train_length)
    every = [*figure.lines, *(line for _, lines in figure.baselines for line in lines)]
    high = max(*_values(every, "high"), MIN_GAIN_AXIS_BPB)
    low = min(*_values(every, "low"), -high / 2)
    scale = signed_axis(axes, low, high)
    above = "above zero: gains from context longer than in training; at zero: as if cut to L"
    remark(axes, (figure.train_length, 1), (4, -11), above, halo=POSITIVE_TINT)
    below = f"below zero: worse than cut to L = {figure.train_length}"
    remark(axes, (axes.get_xlim()[1], 0), (-3, 5), below, ha="right")
    name_axes(axes, LENGTH_AXIS, f"{figure.y}{scale}")
    mark_training(axes, figure.train_length, at=0)
    return note


def _shares(axes: Axes, figure: Figure) -> None:
    """Make y an axis from 0 to 1, with lines at the levels of the figure."""
    ticks = [0, 0.25, 0.5, 0.75, 1]
    axes.set_ylim(-0.02, 1.1)
    fixed_ticks(axes.yaxis, ticks, [f"{tick:g}" for tick in ticks])
    for value, text in figure.levels:
        axes.axhline(value, color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        low, high = axes.get_ylim()
        remark(axes, (axes.get_xlim()[0], (value - low) / (high - low)), (4, -9), text, behind=True)
