"""A page: one figure with a title, a finding, labelled lines, a strip of failures and a footnote.

Lengths are in inches. Labels at the ends of the lines replace a legend box; they never overlap, and their number and
width decide the height of the figure and its right margin.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import blended_transform_factory
from scipy.optimize import isotonic_regression

from poscli.drawing.style import FAINT, INK, QUIET, Style, Styles
from poscli.drawing.text import drawable, listed

WIDTH, MIN_HEIGHT = 8.0, 5.0  # inches
LEFT, TOP, BOTTOM = 0.78, 0.96, 1.02  # inches, margins around the axes
STRIP_ROW = 0.2  # inches, height of one row in the strip of failures
DOTS_PER_INCH = 160
POINTS_PER_INCH = 72
MAX_LABEL_CHARACTERS = 36
NAME_CHARACTERS = 24  # of a name, that no label cuts: all registered encodings have shorter ones
LONGEST_LABEL = 72  # characters; the axes make room for them
# Suffix of a file -> the canvas that prints it, and options without which equal figures were not equal bytes.
PRINTED: dict[str, tuple[type[FigureCanvasBase], dict[str, Any]]] = {
    "png": (FigureCanvasAgg, {}),
    "svg": (FigureCanvasSVG, {"metadata": {"Date": None, "Creator": None}}),
    "pdf": (FigureCanvasPdf, {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}}),
}


@dataclass(frozen=True)
class End:
    """The label of a line, and the end of the line in data units."""

    x: float
    y: float
    text: str
    style: Style


@dataclass(frozen=True)
class Failure:
    """One row of the strip of failures: the lengths without a result, and a text with encodings and cause."""

    lengths: tuple[int, ...]
    text: str
    style: Style


class Page:
    """One figure. Its height follows from the number of labels at the right and the number of rows in the strip."""

    def __init__(self, labels: int, failures: int = 0) -> None:
        self.size = 8.0 if labels <= 24 else 6.8  # points
        self.gap = 1.28 * self.size / POINTS_PER_INCH
        strip = failures * STRIP_ROW + 0.08 if failures else 0.0
        around = TOP + BOTTOM + strip
        self.height = max(MIN_HEIGHT + max(0.0, strip - STRIP_ROW), around + labels * self.gap + 0.1)
        self.figure = Figure(figsize=(WIDTH, self.height), dpi=DOTS_PER_INCH, facecolor="white")
        FigureCanvasAgg(self.figure)  # measures texts
        body = self.height - around
        self.axes = self.figure.add_axes(self._box(BOTTOM, body))
        self.strip: Axes | None = None
        if failures:
            self.strip = self.figure.add_axes(self._box(BOTTOM + body + 0.08, strip - 0.08), sharex=self.axes)
        plain_frame(self.axes)

    def _box(self, bottom: float, height: float) -> tuple[float, float, float, float]:
        return LEFT / WIDTH, bottom / self.height, 0.7, height / self.height

    def write(self, title: str, finding: str, heading: str, footnote: str) -> None:
        """Write the title and the finding above the axes, a heading over the labels, and a footnote below."""
        top = self.height - 0.14
        self._text(top, title, size=12.5, color=INK, weight="bold", va="top")
        self._text(top - 0.27, self._fold(finding, 9, 2), size=9, color=INK, va="top", linespacing=1.25)
        head = self.height - TOP + 0.06
        look: dict[str, Any] = {"ha": "right", "fontsize": 7.2, "color": QUIET}
        self.figure.text(1 - 0.14 / WIDTH, head / self.height, drawable(heading), parse_math=False, **look)
        self._text(0.08, self._fold(footnote, 6.8, 3), size=6.8, color=QUIET, va="bottom", linespacing=1.3)

    def _text(self, y: float, text: str, **look: object) -> None:
        self.figure.text(0.18 / WIDTH, y / self.height, drawable(text), ha="left", parse_math=False, **look)  # type: ignore[arg-type]

    def label_ends(self, ends: Sequence[End], failures: Sequence[Failure] = ()) -> None:
        """Label every line at its end and every row of the strip; call this after the scales are set."""
        right = max((end.x for end in ends), default=1.0)
        texts = [end.text for end in ends if end.x == right] + [failure.text for failure in failures]
        widest = self._width([clip(text, LONGEST_LABEL) for text in texts], self.size)
        for axes in filter(None, (self.axes, self.strip)):  # narrow them until the longest label fits on the page
            box = axes.get_position()
            axes.set_position((box.x0, box.y0, (WIDTH - LEFT - widest - 0.5) / WIDTH, box.height))
        for x in sorted({end.x for end in ends}):
            self._label_column([end for end in ends if end.x == x], outside=x == right)
        self._fill_strip(failures)

    def _fold(self, text: str, size: float, most: int) -> str:
        """Wrap text to the width of the page and cut it after `most` lines; `size` is the font size in points."""
        text = drawable(text)
        inches = self._width([text], size)
        line = int(len(text) * min(1.0, 0.95 * (WIDTH - 0.36) / max(inches, 0.1))) + 1
        return "\n".join(textwrap.wrap(text, line, max_lines=most, placeholder=" …"))

    def _width(self, texts: Sequence[str], size: float) -> float:
        """The width of the widest text, in inches."""
        probe = self.figure.text(0, 0, "", fontsize=size, parse_math=False)
        widest = 0.0
        for text in texts:
            probe.set_text(text)
            widest = max(widest, probe.get_window_extent().width / DOTS_PER_INCH)
        probe.remove()
        return widest

    def _label_column(self, ends: Sequence[End], *, outside: bool) -> None:
        """Label lines that end at one x; labels that would overlap move apart and are tied to their lines."""
        low, high = (value / DOTS_PER_INCH for value in self.axes.get_window_extent().intervaly)
        wanted = [self.axes.transData.transform((end.x, end.y))[1] / DOTS_PER_INCH for end in ends]
        slack = self.gap / 2 if outside else 0.0  # only below, because the heading stands above
        for end, at, y in zip(ends, wanted, place_labels(wanted, self.gap, low - slack, high - slack / 2), strict=True):
            strong = end.style.strong
            leader: dict[str, object] = {
                "arrowstyle": "-",
                "color": end.style.color if strong else FAINT,
                "linewidth": 0.6,
                "alpha": 0.7,
                "shrinkA": 1,
                "shrinkB": 4 if strong else 1,  # points, up to the edge of the marker
                "relpos": (0, 0.5),
            }
            label = self.axes.annotate(
                clip(end.text, LONGEST_LABEL),
                (end.x, end.y),
                xytext=(26 if outside else 7, (y - at) * POINTS_PER_INCH),
                textcoords="offset points",
                color=end.style.text,
                fontsize=self.size,
                va="center",
                annotation_clip=False,
                parse_math=False,
                arrowprops=leader if outside else None,
                zorder=6,
            )
            # Lines may end before the axes do, whose grid would strike a label through.
            label.set_path_effects([withStroke(linewidth=2.5, foreground="white")])

    def _fill_strip(self, failures: Sequence[Failure]) -> None:
        if self.strip is None:
            return
        self.strip.set(ylim=(len(failures) - 0.5, -0.5), yticks=[], facecolor="#f2f2f2")
        self.strip.tick_params(bottom=False, labelbottom=False, which="both")
        self.strip.spines[:].set_visible(False)
        self.strip.set_ylabel("no result", rotation=0, ha="right", va="center", fontsize=7.5, color=QUIET, labelpad=5)
        for row, failure in enumerate(failures):
            color = failure.style.text
            self.strip.plot(
                failure.lengths, [row] * len(failure.lengths), "x", color=color, markersize=6, clip_on=False
            )
            beside = blended_transform_factory(self.strip.transAxes, self.strip.transData)
            self.strip.annotate(
                clip(failure.text, LONGEST_LABEL),
                (1, row),
                xycoords=beside,
                xytext=(12, 0),
                textcoords="offset points",
                va="center",
                fontsize=self.size,
                color=color,
                annotation_clip=False,
                parse_math=False,
            )


def written(figure: Figure, suffix: str) -> bytes:
    """A figure as the content of a `png`, `svg` or `pdf` file, the same bytes for the same figure."""
    canvas, options = PRINTED[suffix]
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "poscli"}):
        getattr(canvas(figure), f"print_{suffix}")(buffer, **options)
    FigureCanvasAgg(figure)  # as before: another canvas measures texts otherwise
    return buffer.getvalue()


def failure_rows(failed: Mapping[tuple[str, tuple[int, ...]], Sequence[str]], styles: Styles) -> list[Failure]:
    """The rows of the strip, from a cause and lengths to the encodings that failed so; these share a row.

    A text has the encodings and the cause, and is short enough for the margin.
    """
    plain, rows = Style(INK, "-", "x"), []
    for (cause, lengths), who in failed.items():
        text, style = f"{listed(who)}: {cause}", plain
        if len(who) == 1:
            text = f"{clip(who[0], max(NAME_CHARACTERS, MAX_LABEL_CHARACTERS - len(cause) - 2))}: {cause}"
            style = styles.get(who[0], plain)
        elif len(text) > MAX_LABEL_CHARACTERS:
            text = f"{len(who)} encodings: {cause}"
        rows.append(Failure(lengths, text, style))
    return rows


def place_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels as little as possible (least squares) so that neighbours are `gap` apart within low..high."""
    if not len(wanted):
        return []
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    # After subtracting the gaps, "at least `gap` apart" means "not decreasing", which isotonic regression solves.
    moved = isotonic_regression(np.asarray(wanted)[order] - steps).x
    result = np.empty(len(wanted))
    result[order] = np.clip(moved, low, max(low, high - steps[-1])) + steps
    return [float(value) for value in result]


def clip(text: str, longest: int = MAX_LABEL_CHARACTERS) -> str:
    """Make a label drawable and shorten it to `longest` characters in its middle, because specs differ at both ends.

    >>> clip("name(option=500000)+wrapper", 15)
    'name(op…wrapper'
    """
    text, half = drawable(text), longest // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - half]}…{text[-half:]}"


def clip_name(label: str, name: str) -> str:
    """Shorten the name that a label begins with until the label fits; the numbers behind the name stay whole.

    >>> clip_name("sink(2)+window(5)+kerple-log 29.1 (7.29x), not trained", "sink(2)+window(5)+kerple-log")
    'sink(2)+win…)+kerple-log 29.1 (7.29x), not trained'
    """
    rest = label.removeprefix(name)
    return clip(name, max(NAME_CHARACTERS, MAX_LABEL_CHARACTERS - len(rest))) + rest


def plain_frame(axes: Axes) -> None:
    """Give axes the look of all figures: faint horizontal lines, and no frame at the top and the right."""
    axes.set_facecolor("white")
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=8, length=3, color=FAINT)
