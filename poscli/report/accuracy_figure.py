"""The pictures of a synthetic task: accuracy by length, and by where in the window lay what was asked for."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator

from poscli.drawing.axes import LENGTH_AXIS, draw_line, length_axis, mark_training, name_axes, remark
from poscli.drawing.page import End, Page, clip_name
from poscli.drawing.style import QUIET, Styles
from poscli.report.accuracy import by_length, by_place, chance_is, is_depth, place_name, placed, question, resampled
from poscli.report.bands import MOST_BANDS
from poscli.report.figures import Drawing
from poscli.report.findings import solved_up_to
from poscli.report.verdicts import SOLVED_SHARE, SOLVED_TEXT


def accuracy_by_length(answers: pd.DataFrame, summary: pd.DataFrame, *, styles: Styles, origin: str = "") -> Drawing:
    """Accuracy by the length of the window, one line per encoding, with its interval if there are few."""
    points, length = by_length(answers), int(answers["train_length"].iloc[0])
    page, lines = Page(points["encoding"].nunique()), list(points.groupby("encoding"))
    for name, line in lines:
        draw_line(page.axes, line["length"], line["accuracy"], styles[str(name)])
        if len(lines) <= MOST_BANDS:
            color = styles[str(name)].color
            page.axes.fill_between(line["length"], line["low"], line["high"], color=color, alpha=0.09, linewidth=0)
    length_axis(page.axes, sorted(set(points["length"])), length)
    _share_axis(page.axes, answers)
    name_axes(page.axes, LENGTH_AXIS, "accuracy of the answers (higher is better)")
    mark_training(page.axes, length)
    page.label_ends(_ends(points, "length", styles))
    title = "How long may a text be, so that what was asked for is still found?"
    told = f"{solved_up_to(summary)} {chance_is(answers)}"
    bands = f" Bands: 95 % intervals over {resampled(points)}." if len(lines) <= MOST_BANDS else ""
    page.write(title, told, f"accuracy at {points['length'].max()}", f"{origin}{bands}".strip())
    return Drawing(page, f"{title} {told}")


def accuracy_by_place(answers: pd.DataFrame, summary: pd.DataFrame, *, styles: Styles, origin: str = "") -> Drawing:
    """Accuracy in the longest window by depth or gap, where `placed` has something to say about it."""
    told = placed(answers, summary)
    assert told is not None
    points = by_place(answers)
    points = points.assign(x=(points["from"] + points["to"] + 1) / 2 if is_depth(answers) else points["to"] + 1)
    page = Page(points["encoding"].nunique())
    for name, line in points.groupby("encoding"):
        draw_line(page.axes, line["x"], line["accuracy"], styles[str(name)])
    if is_depth(answers):
        _depth_axis(page.axes, points)
    else:
        length_axis(page.axes, sorted(set(points["x"])), int(answers["train_length"].iloc[0]))
    _share_axis(page.axes, answers)
    name_axes(page.axes, place_name(answers), "accuracy of the answers (higher is better)")
    page.label_ends(_ends(points, "x", styles))
    title = f"Does it matter {question(answers)}?"
    note = f"{origin} Windows of {answers['length'].max()} tokens."
    page.write(title, told.answer, "accuracy at the right end", note.strip())
    return Drawing(page, f"{title} {told.answer}")


def _depth_axis(axes: Axes, points: pd.DataFrame) -> None:
    """Make x an axis of depths, one tick per bin."""
    bins = sorted(set(zip(points["x"], points["from"], points["to"], strict=True)))
    axes.set_xlim(bins[0][0] - 4, bins[-1][0] + 2)
    axes.xaxis.set_major_locator(FixedLocator([x for x, _, _ in bins]))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{first} to {last + 1} %" for _, first, last in bins]))


def _share_axis(axes: Axes, answers: pd.DataFrame) -> None:
    """Make y an axis from 0 to 1, with lines at chance and where a task counts as solved."""
    chance, ticks = float(answers["chance"].iloc[0]), [0, 0.25, 0.5, 0.75, 1]
    axes.set_ylim(-0.02, 1.1)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    for value, text, up in ((chance, f"chance, {chance:.3f}", -9), (SOLVED_SHARE, f"solved, {SOLVED_TEXT}", -9)):
        axes.axhline(value, color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        low, high = axes.get_ylim()
        remark(axes, (axes.get_xlim()[0], (value - low) / (high - low)), (4, up), text, behind=True)


def _ends(points: pd.DataFrame, x: str, styles: Styles) -> list[End]:
    """A label with the accuracy for the end of every line."""
    ends = []
    for name, line in points.groupby("encoding"):
        last = line.iloc[-1]
        ends.append(
            End(last[x], last["accuracy"], clip_name(f"{name} {last['accuracy']:.3f}", str(name)), styles[str(name)])
        )
    return ends
