"""Whole figures of poscli's drawing tools, and tables of what their functions return, compared with what was read."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from looks import figures, looks, pictured, pictures_as_text
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from poscli.drawing import axes as on_axes
from poscli.drawing import text
from poscli.drawing.page import End, Page, clip, clip_name, failure_rows, written
from poscli.drawing.sheet import Contents, Sheet
from poscli.drawing.style import FAINT, styles_for
from poscli.drawing.text import drawable
from poscli.grids.continuation import side_by_side

LOOKS_AT_PICTURES = True
NAN = math.nan
STYLES = styles_for(["rope", "alibi", "none", "t5"], ["learned"])
LONG = "a specification whose name is far too long for the margin: rope(base=10000.0)+window(width=128)+sink(2)"


def whole(figure: Figure) -> str:
    """What a figure shows, and how it is laid out."""
    return pictured(figure) + "\n".join(looks(figure)) + "\n"


def test_a_page_with_labels_and_failures(snapshot: Callable[..., None]) -> None:
    """Lines of four styles, labels that would overlap, ends inside the axes, a strip of failures, texts too long."""
    page = Page(24, failures=3)  # as many labels as are not yet written smaller
    x = pd.Series([128.0, 256, 512, 1024, 2048])
    ends = []
    for n, (name, style) in enumerate(STYLES.items()):
        y = 4.0 + pd.Series(range(5)) * (0.01 * n)
        last = 4 if n != 2 else 2
        on_axes.draw_line(page.axes, x[: last + 1], y[: last + 1], style, every=n + 1)
        ends.append(End(x[last], y[last], f"{name} {text.number(y[last])}", style))
    on_axes.length_axis(page.axes, [128, 256, 512, 1024, 2048], 512)
    on_axes.log_ticks(page.axes)
    on_axes.headroom(page.axes)
    on_axes.mark_training(page.axes, 512)
    on_axes.name_axes(page.axes, on_axes.LENGTH_AXIS, "perplexity")
    failed = {("oom", (1024, 2048)): ["learned"], ("no row", (2048,)): ["learned", "none"], (LONG, (256,)): ["a", "b"]}
    page.label_ends([*ends, End(2048.0, 4.2, LONG, STYLES["rope"])], failure_rows(failed, STYLES))
    page.write("A title", f"A finding. {LONG} " * 3, "heading", f"A footnote that says more. {LONG} " * 5)
    snapshot(whole(page.figure), rounded=True)


def test_pages_around_zero(snapshot: Callable[..., None]) -> None:
    """An even axis and a squeezed one; the training length at the foot and outside; many labels; lines in grey."""
    parts = []
    for low, high, at, train in ((-0.31, 0.2, 0.0, 512), (-1.5, 0.12, 0.5, 64)):
        page = Page(25)
        style = styles_for([f"e{n}" for n in range(12)], always="e6")
        for n, name in enumerate(style):
            y = pd.Series(np.linspace(0, low + (high - low) * n / 11, 4))
            on_axes.draw_line(page.axes, pd.Series([256.0, 512, 1024, 3072]), y, style[name])
        on_axes.length_axis(page.axes, [256, 512, 1024, 3072], 512)
        added = on_axes.signed_axis(page.axes, low, high)
        on_axes.mark_training(page.axes, train, at)
        on_axes.remark(page.axes, (256, 1), (2, -9), f"y{added}", halo=FAINT, ha="right", behind=low < -1)
        page.label_ends([End(3072.0, low + 0.002 * n, name, style[name]) for n, name in enumerate(style) if n % 3 == 0])
        parts.append(whole(page.figure))
    snapshot("\n".join(parts), rounded=True)


def test_files_of_pages_and_sheets(snapshot: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written with each kind of file: no dates, one salt, and PNG again after SVG and PDF."""
    pictures_as_text(monkeypatch)
    page = Page(1)
    sheet = Sheet(1, 1, Contents("t", [], [], [], "f"))
    kinds_of = {page.figure: ("svg", "pdf", "png"), sheet.figure: ("svg", "png")}
    files = [written(figure, suffix) for figure, suffixes in kinds_of.items() for suffix in suffixes]
    kinds = "".join(f"{file.decode().splitlines()[0]}\n" for file in files)
    snapshot(f"{kinds}{type(page.figure.canvas).__name__} {type(sheet.figure.canvas).__name__}\n")


def test_a_sheet_of_panels(snapshot: Callable[..., None]) -> None:
    """Panels with curves, maps and words, a box, texts at the edge, and a table of two columns."""
    table = [("first property", ["yes", "no"]), ("a much longer name", [LONG * 4, ""]), ("third", ["one", LONG])]
    sheet = Sheet(2, 2, Contents("Title", ["left", ""], [LONG * 5, "short"], table, LONG * 8))
    axes = sheet.panel(0, 0, "caption", "A title that does not fit on one line, nor on the two that it may have. " * 3)
    on_axes.distance_axis(axes, 300, 64)
    on_axes.name_curves(axes, [f"head {n}" for n in range(14)], on_axes.head_colors(14))
    on_axes.heat_map(sheet.panel(0, 1, "signed", "Short"), np.arange(12.0).reshape(3, 4) - 5, 7.0)
    other = sheet.panel(1, 0, "another", "Short")
    on_axes.heat_map(other, np.arange(6.0).reshape(2, 3), 5.5)
    sheet.say(sheet.panel(1, 1, "", ""), LONG)
    sheet.write(1, 2, "somewhere", size=9, weight="bold")
    wide = Sheet(0, 3, Contents("Body", ["", "b"], ["short", LONG * 5], [], ""), 2.5)
    on_axes.log_axis(wide.box(0.5, 0.25, 3, 2))
    bare = Sheet(1, 1, Contents("One", ["only"], ["words " * 200], [("p", ["v"])], ""))
    snapshot("\n".join(whole(each.figure) for each in (sheet, wide, bare)), rounded=True)


def test_panels_that_share_their_axes() -> None:
    left, right = Figure().subplots(1, 2)
    left.set(xlim=(0, 10), ylim=(3, -1))
    right.set(xlim=(5, 20), ylim=(5, 0))
    on_axes.share_axes([left, right])
    assert [(*axes.get_xlim(), *axes.get_ylim()) for axes in (left, right)] == [(0, 20, 5, -1)] * 2


def test_grey_images_side_by_side(monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., None]) -> None:
    pictures_as_text(monkeypatch, look=True)
    images = [
        np.arange(12, dtype=np.uint8).reshape(3, 4) + 20,
        np.arange(12, dtype=np.uint8).reshape(3, 4)[::-1] * 2 + 3,
    ]
    tall = [np.eye(30, 7, dtype=np.uint8)]
    parts = [
        side_by_side(images, ["given", LONG], "below \U0001f600", line=2),
        side_by_side(tall, ["one"], "", line=29),
    ]
    snapshot("\n".join(part.decode() for part in parts), rounded=True)


def ticks_of_x(axes: Axes) -> str:
    """The scale, limits and ticks of x, and what is written into the axes."""
    texts = [label.get_text() for label in axes.xaxis.get_ticklabels()]
    limits = " ".join(map(figures, axes.xaxis.get_view_interval().tolist()))
    marks = [annotation.get_text() for annotation in axes.texts]
    return f"{axes.xaxis.get_scale()} {limits} {texts} {marks} {len(axes.xaxis.get_minorticklocs())}"


def test_axes_of_lengths_and_distances(snapshot: Callable[..., None]) -> None:
    lines = []
    for case in (([64, 128, 256], 128), ([100, 250, 1000], 200), ([2**n for n in range(5, 17)], 256), ([512], 512)):
        axes = Figure(figsize=(8, 5)).add_subplot()
        on_axes.length_axis(axes, *case)
        lines.append(f"{case}: {ticks_of_x(axes)}")
    for limits in ((2, 1), (10, 10), (11, 3), (101, 64), (70000, 512)):
        axes = Figure(figsize=(8, 5)).add_subplot()
        on_axes.distance_axis(axes, *limits)
        lines.append(f"{limits}: {ticks_of_x(axes)}")
    snapshot("\n".join(lines), rounded=True)


def test_looks_of_lines(snapshot: Callable[..., None]) -> None:
    """Which of many lines are in colour, and in which."""
    lines = []
    for count, failed, always in ((3, 1, ""), (10, 0, "n1"), (10, 1, ""), (14, 2, "n7"), (13, 0, "n12"), (4, 8, "f6")):
        ranked, others = [f"n{n}" for n in range(count)][::-1], [f"f{n}" for n in range(failed)]
        for name, style in styles_for(ranked, others, always).items():
            look = f"{style.color} {style.text} {style.dash} {style.marker}{'' if style.filled else ' hollow'}"
            lines.append(f"{count} and {failed}, {always}: {name} {look if style.strong else 'background'}")
    background = styles_for([f"n{n}" for n in range(11)])["n6"]
    heads = [f"{count} heads: {' '.join(on_axes.head_colors(count))}" for count in (1, 2, 5)]
    snapshot("\n".join([*dict.fromkeys(lines), str(background), *heads]))


def test_texts(snapshot: Callable[..., None]) -> None:
    """Numbers, counts, lists and names in words."""
    values = (
        0, 1e-5, 0.0012, 0.0996, 0.5, 0.99951, 1, 9.996, 10, 99.96, 123.4, 999.4, 9999.4, 12345, 99999, 1e5, 3e7, NAN,
        math.inf,
    )  # fmt: skip
    tables = {
        "number": [f"{value:g} {text.number(value)}" for value in values],
        "signed": [
            f"{s * v:g} {text.signed(s * v)}" for v in (4.9e-4, 5e-4, 0.0234, 0.9994, 0.9996, 2.5) for s in (1, -1)
        ],
        "amount": [
            f"{v:g} {text.amount(v)}" for v in (0, 0.4, 9999, 9999.6, 1e4, 12345, 999499, 999500, 1e6, 999.5e6, 2e9)
        ],
        "listed": [text.listed(list("abcdefgh"[:n]), most) for n in (0, 1, 2, 3, 8) for most in (2, 5)],
        "named": [text.listed(["none", "rope"]), text.named("none"), text.named("nones")],
        "low to high": [text.low_to_high(values) for values in ([5], [3, 1, 2], [12340, 12344])],
        "distinct": [str(text.distinct(pd.Series(["b", "", None, "a", "b"])))],
        "ticks": [
            " ".join(on_axes.tick_texts(t))
            for t in ([0.1, 1], [1e5], [123456.0, 123457], [0.12345678, 0.12345679], [-2e5, 1])
        ],
        "clip": [clip(name, most) for name in (LONG, "short", "e\U0001f600") for most in (8, 9, 36)],
        "clip_name": [clip_name(f"{name} {rest}", name) for name in ("rope", LONG[:40]) for rest in ("1.0", "x" * 30)],
        "drawable": [drawable("é ß \U0001f600\n\t\x07ǁ")],
    }
    who = (["rope"], ["a", "b"], [LONG])
    failed = {(cause, (n,)): each for cause in ("oom", "x" * 40) for n, each in enumerate(who)}
    rows = [f"{row.text} {row.lengths} {row.style.color} {row.style.marker}" for row in failure_rows(failed, STYLES)]
    snapshot("\n".join(f"{name}: {' | '.join(each)}" for name, each in (tables | {"failures": rows}).items()))
