"""How a picture is laid out and looks, as text: what drawn.py leaves out, and long lists of points made short."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from drawn import drawn
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import Collection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from matplotlib.ticker import LogFormatter, NullFormatter, ScalarFormatter

FEW = 4  # points or values that are written one by one
POINTS = re.compile(rf"(?:\([^()]*\) ){{{FEW},}}\([^()]*\)")
EMPTY = re.compile(r" ?\|(?: +·)* *$", re.MULTILINE)  # ticks without a text
NAMES = re.compile(r"\n  text (#\w+): ")
NOISE = re.compile(r"-?\d(?:\.\d+)?e-(?:09|[1-9]\d|\d{3})\b")  # what rounding leaves of a zero


@cache
def pictured(figure: Figure) -> str:
    """All that a figure shows, its insets too; of many points some, and their means."""
    insets = [inset for axes in figure.axes for inset in axes.child_axes]
    for axes in (*figure.axes, *insets):
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), (ScalarFormatter, LogFormatter)):  # matplotlib's own choice
                axis.set_major_formatter(NullFormatter())
    text = drawn(figure)
    bars = [inset for inset in insets if any(isinstance(part, QuadMesh) for part in inset.collections)]
    if pictures := [inset for inset in insets if inset not in bars]:
        text += "insets:\n" + drawn(cast(Figure, SimpleNamespace(texts=[], axes=pictures)))
    for bar in bars:
        low, high = bar.get_ylim()
        text += f"bar ({low:.4g}, {high:.4g}): {' · '.join(label.get_text() for label in bar.get_yticklabels())}\n"
    for pattern, words in ((NOISE, "0"), (EMPTY, ""), (POINTS, _some_points), (NAMES, r" | \1 ")):
        text = pattern.sub(words, text)  # type: ignore[arg-type]
    return text


def looks(figure: Figure) -> Iterator[str]:
    """The places of texts and axes in inches from the upper left corner, sizes in points, lines' widths and orders."""
    width, height = figure.get_size_inches()
    scale = np.array([width, height])
    yield f"figure: {width:.2f} x {height:.2f} inches, {figure.dpi:g} dots each, {to_hex(figure.get_facecolor())}"
    for text in figure.texts:
        x, y = np.asarray(text.get_position()) * scale
        yield f"at ({x:.2f}, {height - y:.2f}) {_font(text)}: {text.get_text()[:20]!r}"
    for n, axes in enumerate(figure.axes):
        x, y, wide, high = (axes.get_position().bounds * np.tile(scale, 2)).tolist()
        yield f"axes {n} at ({x:.2f}, {height - y - high:.2f}), {wide:.2f} x {high:.2f}; {_frame(axes)}"
        yield from (f"  {line}" for line in _counted(_artists(axes)))
        for inset in axes.child_axes:
            place = ", ".join(f"{value:.3g}" for value in inset.get_axes_locator()(inset, None).bounds)  # type: ignore[misc]
            yield f"  inset at ({place}); {_frame(inset)}"
            yield from (f"    {line}" for line in _counted(_artists(inset)))


def pictures_as_text(monkeypatch: pytest.MonkeyPatch, look: bool = False) -> None:
    """Have every PNG, SVG and PDF be the text of its figure, with what else decides the bytes of the file.

    With `look` the text says as well how the figure is laid out.
    """

    def written(kind: str) -> Callable[..., None]:
        def write(canvas: Any, file: Any, **options: Any) -> None:
            salt = rcParams["svg.hashsalt"] if kind == "SVG" else ""
            lines = "".join(f"{line}\n" for line in looks(canvas.figure)) if look else ""
            file.write(f"{kind} {options} {salt}\n{pictured(canvas.figure)}{lines}".encode())

        return write

    for kind, canvas in (("PNG", FigureCanvasAgg), ("SVG", FigureCanvasSVG), ("PDF", FigureCanvasPdf)):
        monkeypatch.setattr(canvas, f"print_{kind.lower()}", written(kind))


def short(values: Sequence[float | None]) -> str:
    """Numbers on one line: a few as they are; of many three, how many there are, and the mean of their sizes."""
    if len(values) <= FEW:
        return " ".join(map(figures, values))
    some = " ".join(figures(values[n]) for n in (0, len(values) // 2, -1))
    known = [abs(value) for value in values if value is not None and math.isfinite(value)]
    count = f"{len(known)} of {len(values)}" if len(known) < len(values) else f"{len(values)}"
    return f"{some} ({count}, mean {figures(sum(known) / max(1, len(known)))})"


def figures(value: float | None, digits: int = 4) -> str:
    """A number with so many digits; what rounding leaves of a zero is zero."""
    if value is None or isinstance(value, (bool, int)) or not math.isfinite(value):
        return str(value)
    return "0" if abs(value) < 1e-8 else f"{value:#.{digits}g}"


def _some_points(found: re.Match[str]) -> str:
    points = [tuple(float(value) for value in point.split(",")) for point in re.findall(r"\(([^()]*)\)", found[0])]
    return " / ".join(short(values) for values in zip(*points, strict=True))


def _font(text: Text) -> str:
    parts = [f"{text.get_fontsize():g} points", text.get_color(), text.get_ha(), text.get_va()]
    parts += [str(text.get_fontweight())] * (text.get_fontweight() not in ("normal", 400))
    parts += [f"lines {text._linespacing}"] * (text._linespacing != "normal")  # type: ignore[attr-defined]
    parts += ["halo"] * bool(text.get_path_effects()) + ["math"] * text.get_parse_math()
    return " ".join(map(str, parts))


def _frame(axes: Axes) -> str:
    sides = {name: to_hex(spine.get_edgecolor()) for name, spine in axes.spines.items() if spine.get_visible()}
    lines = [axis.axis_name for axis in (axes.xaxis, axes.yaxis) if axis._major_tick_kw.get("gridOn")]  # type: ignore[attr-defined]
    names = " ".join(f"{axis.label.get_fontsize():g}" for axis in (axes.xaxis, axes.yaxis))
    ticks = "/".join(
        f"{len(axis.get_majorticklocs())}+{len(axis.get_minorticklocs())}" for axis in (axes.xaxis, axes.yaxis)
    )
    return f"{to_hex(axes.get_facecolor())} frame {sides}, grid {lines}, names of {names} points, ticks {ticks}"


def _counted(lines: Iterator[str]) -> Iterator[str]:
    """Equal lines, one after another, as one with their number."""
    for line, same in groupby(lines):
        count = len(list(same))
        yield f"{count} times {line}" if count > 1 else line


def _artists(axes: Axes) -> Iterator[str]:
    for line in axes.lines:
        yield f"line {_stroke(line)}"
    for patch in axes.patches:
        yield f"patch {_paint(patch)} z{patch.get_zorder():g}"
    for collection in axes.collections:
        widths = " ".join(f"{width:g}" for width in np.unique(np.asarray(collection.get_linewidth(), float)))
        yield f"{type(collection).__name__} {widths} alpha {collection.get_alpha()} z{collection.get_zorder():g}"
    for image in axes.images:
        low, high = image.get_clim()
        extent = " ".join(f"{value:g}" for value in image.get_extent())
        yield f"image {image.get_cmap().name} {figures(low)} to {figures(high)} {type(image.norm).__name__}, {extent}"
    for text in axes.texts:
        yield f"text {_font(text)} z{text.get_zorder():g} {_place(text)}: {text.get_text()[:20]!r}"


def _stroke(line: Line2D) -> str:
    dashes = line._unscaled_dash_pattern[1]  # type: ignore[attr-defined]
    look = f"{line.get_linewidth():g} wide, dashes {dashes and ' '.join(f'{dash:g}' for dash in dashes)}"
    marker = (
        f"{line.get_marker()} {line.get_markersize():g} {to_hex(line.get_markerfacecolor())} {line.get_markevery()}"  # type: ignore[arg-type]
    )
    marked = f", marker {marker}" if line.get_marker() not in ("", "None", None) else ""
    return f"{look}{marked}, {line.get_drawstyle()} z{line.get_zorder():g}"


def _paint(patch: Patch | Collection) -> str:
    edge = to_hex(patch.get_edgecolor(), keep_alpha=True)  # type: ignore[arg-type]
    return f"{edge} {patch.get_linewidth()} {patch.get_linestyle()} {'filled' if patch.get_fill() else 'empty'}"  # type: ignore[union-attr]


def _place(text: Text) -> str:
    if not isinstance(text, Annotation):
        return "at ({:.4g}, {:.4g})".format(*text.get_position())
    units = text.xycoords if isinstance(text.xycoords, (str, tuple)) else "mixed"
    leader = f", leader {text.arrowprops}" if text.arrowprops else ""
    return "at ({:.4g}, {:.4g}) of {} moved ({:.4g}, {:.4g}){}".format(*text.xy, units, *text.xyann, leader)
