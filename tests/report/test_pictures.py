"""How pictures of a report look: series that can be told apart on light and dark paper, and names that can be read."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_runner import assert_refused
from fake_pages import fake_tables
from fake_results import many, results
from matplotlib.text import Text
from torture.reports import undrawn

from poscli.drawing.style import DASHES, FAINT, PALETTE, styles_for
from poscli.encodings import get, names
from poscli.report import build_report
from poscli.report.catalogue import looks
from poscli.report.data import Figure, Line
from poscli.report.figures import page_of
from poscli.report.page import DARK, LIGHT, READABLE, contrast, readable_color, render, rgb

LOOKS_AT_PICTURES = True
APART = 25  # in CIELAB; a step of 2 or 3 can just be seen side by side, and lines are thin
VIVID = 20  # chroma in CIELAB from which a colour is not grey


def lab(color: str) -> np.ndarray:
    """CIELAB of an sRGB colour under the white of day (D65), by the standard's formulas."""
    linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(color)])
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in to_xyz @ linear / to_xyz.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def shown_colors() -> dict[str, list[str]]:
    """The colours of the series on each paper, as the style of the page gives them."""
    page = render("index.html.jinja", title="", sections=[], files={}, encodings=[])
    style = page[page.index("<style>") : page.index("</style>")]
    light, dark = style[: style.index("@media")], style[style.index('[data-theme="dark"]') :]
    return {
        paper: [re.search(rf"--c{n}:(#\w+);", part).group(1) for n in range(len(PALETTE))]
        for paper, part in ((LIGHT, light), (DARK, dark))
    }


@pytest.mark.parametrize("strong", [0, 7, 10])
def test_no_two_encodings_of_a_page_look_alike(strong: int) -> None:
    families = {name: get(name).family for name in names()}
    ranked = list(families)[::3][:strong] or list(families)
    look = looks(families, styles_for(ranked, [name for name in families if name not in ranked]))
    assert set(look) == set(families)
    colors = shown_colors()
    for one, other in itertools.combinations(families, 2):
        if look[one].dash != look[other].dash:  # then marks differ, too
            continue
        for paper, shown in colors.items():
            far = np.linalg.norm(lab(shown[look[one].color]) - lab(shown[look[other].color]))
            assert far >= APART, (one, other, paper)


def test_ten_lines_of_a_picture_differ_in_colour_and_marker_and_others_are_grey() -> None:
    styles = list(styles_for(names()[:10]).values())
    for one, other in itertools.combinations(styles, 2):
        assert np.linalg.norm(lab(one.color) - lab(other.color)) >= APART
        assert (one.marker, one.filled) != (other.marker, other.filled)
    assert {style.color for style in styles_for(names()[:40], names()[40:]).values() if not style.strong} == {FAINT}
    assert styles_for(["a", "b", "c"]) == styles_for(["c", "a"], ["b"])  # whatever the ranking


@pytest.mark.parametrize("count", [2, 12])
def test_one_model_under_many_encodings_looks_alike_on_the_page_and_in_pictures(tmp_path: Path, count: int) -> None:
    """Pictures call `rope as none` none; the model itself is never in the background."""
    shapes = many(count + 1)
    rows, positions = results(shapes, lengths=(256, 512))
    names = {name: f"rope as {name}" if n else "rope" for n, name in enumerate(reversed(shapes))}
    rows, positions = (table.assign(encoding=table["encoding"].map(names)) for table in (rows, positions))
    with undrawn():
        (section,) = build_report(rows, positions, tmp_path).sections
    for each in section.encodings:
        drawn = section.styles[each.name.removeprefix("rope as ")]
        assert each.strong == drawn.strong
        if drawn.strong:
            assert (PALETTE[each.color], DASHES[each.dash]) == (drawn.color, drawn.dash)
    assert section.styles["rope"].strong
    assert all(line.name in section.styles for figure in section.figures for line in figure.lines)


def test_series_are_no_grey_and_can_be_read_as_small_text_on_both_papers() -> None:
    ends = {"#000000", "#f2f2f2"}  # ink on light and on dark paper
    for color in {*PALETTE, *itertools.chain(*shown_colors().values())} - ends:
        assert np.hypot(*lab(color)[1:]) >= VIVID, color
    for paper, shown in shown_colors().items():
        assert all(contrast(rgb(color), rgb(paper)) >= 4.4 for color in shown)
        for color in ("#000000", "#3592C4", "#B07800"):
            assert contrast(rgb(readable_color(color, paper)), rgb(paper)) >= READABLE - 0.1  # rounded to 256 steps


def fates() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Results of all registered encodings; some fail at once, some with one seed only, and one only guesses."""
    shapes = dict(zip(names(), many(len(names())).values(), strict=True))
    rows, positions, _ = fake_tables(shapes, (256, 1024, 4096))
    rows = rows[rows["protocol"] == "sliding"]
    failed = (rows["encoding"] == "hierarchical") & (rows["seed"] == 1) & (rows["ratio"] > 1)
    failed |= (rows["encoding"] == "transformer-xl") & (rows["ratio"] > 4)
    lost = {name: rows[name].mask(failed) for name in ("nll", "bpb", "ppl", "gain", "gain_low", "gain_high")}
    rows = rows.assign(status=rows["status"].mask(failed, "unsupported"), **lost)
    guesses = rows["encoding"] == "stick-breaking"
    return rows.assign(guess_gain_low=rows["guess_gain_low"].mask(guesses, -1.0)), positions


def test_names_in_pictures_are_whole_inside_the_page_and_do_not_overlap(tmp_path: Path) -> None:
    rows, positions = fates()
    with undrawn():
        (section,) = build_report(rows, positions, tmp_path).sections
    at_end = rows[(rows["status"] == "ok") & (rows["length"] == 4096) & (rows["variant"] == "full")]
    for figure in section.figures[:2]:
        page = page_of(figure, section.styles)
        labels = [text for axes in filter(None, (page.axes, page.strip)) for text in axes.texts if text.get_text()]
        assert not any("\u2026" in text.get_text() for text in labels)
        first = {text.get_text().split(" ")[0].rstrip(":,") for text in labels}
        assert {*at_end["encoding"], "hierarchical", "transformer-xl"} <= first
        renderer = page.figure.canvas.get_renderer()
        for text in labels:
            text.update_positions(renderer)
        boxes = [(text.get_text(), Text.get_window_extent(text, renderer)) for text in labels]
        assert [text for text, box in boxes if not 0 <= box.x0 <= box.x1 <= page.figure.bbox.x1] == []
        for (one, a), (other, b) in itertools.combinations(boxes, 2):
            wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
            assert wide < 1 or high < 0.35 * min(a.height, b.height), (one, other)
    axes = page.axes  # of the gain, which is logarithmic far below zero, and says from where on
    below = float(re.fullmatch(r"context gain, bits per byte, logarithmic below (-[\d.]+)", axes.get_ylabel()).group(1))
    zero, *depths = (axes.transData.transform((256, n * below))[1] for n in (0, 0.5, 1, 4, 8, 16))
    assert zero - depths[0] == pytest.approx(depths[0] - depths[1], rel=0.02)
    assert depths[2] - depths[3] == pytest.approx(depths[3] - depths[4], rel=0.02)


@pytest.mark.parametrize(("high", "scale"), [(2.0, "linear"), (2.5, "linear"), (2.51, "log")])
def test_an_axis_of_losses_is_logarithmic_where_they_differ_by_a_factor_above_two_and_a_half(
    high: float, scale: str
) -> None:
    line = Line("a", (256, 512), (1.0, high))
    texts = dict.fromkeys(("title", "finding", "heading", "note", "y"), "")
    page = page_of(
        Figure(name="perplexity", **texts, train_length=256, ticks=(256, 512), lines=(line,)), styles_for(["a"])
    )
    assert page.axes.get_yscale() == scale


def test_formats_of_pictures(here: Path) -> None:
    rows, positions, _ = fake_tables(many(2), (256, 512))
    build_report(rows, positions, here, formats=("svg", "pdf"))
    for name, start in (("gain.svg", b"<?xml"), ("perplexity.pdf", b"%PDF"), ("position.png", b"\x89PNG")):
        assert (here / name).read_bytes().startswith(start)
    with undrawn():
        build_report(rows, positions, here)
    assert not (here / "gain.svg").exists()  # an earlier report's files are removed
    assert_refused(("report", "--formats", "svg,gif"), 2, ("gif", "png, svg, pdf"))
