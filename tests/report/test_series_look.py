"""The look of series and their names, for all registered encodings in one picture, on light and on dark paper."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pandas as pd
import pytest
from fake_pages import fake_tables
from fake_results import many
from matplotlib.text import Text

from poscli.drawing.axes import log_ticks, tick_texts
from poscli.drawing.page import Page
from poscli.drawing.style import FAINT, PALETTE, styles_for
from poscli.encodings import get, names
from poscli.report import build_report
from poscli.report.catalogue import looks
from poscli.report.figures import page_of
from poscli.report.page import DARK, LIGHT, contrast, render, rgb
from poscli.report.summary import standings

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


def everyone() -> dict[str, str]:
    """The family of every registered encoding."""
    return {name: get(name).family for name in names()}


@pytest.mark.parametrize("strong", [0, 7, 10])
def test_no_two_encodings_of_a_page_look_alike(strong: int) -> None:
    families = everyone()
    ranked = list(families)[::3][:strong] or list(families)
    styles = styles_for(ranked, [name for name in families if name not in ranked])
    look = looks(families, styles)
    assert set(look) == set(families)
    colors = shown_colors()
    for one, other in itertools.combinations(families, 2):
        if look[one].dash != look[other].dash:  # then marks differ, too
            continue
        for paper, shown in colors.items():
            far = np.linalg.norm(lab(shown[look[one].color]) - lab(shown[look[other].color]))
            assert far >= APART, (one, other, paper)


def test_ten_lines_of_a_picture_differ_in_colour_and_marker() -> None:
    styles = list(styles_for(names()[:10]).values())
    for one, other in itertools.combinations(styles, 2):
        assert np.linalg.norm(lab(one.color) - lab(other.color)) >= APART
        assert (one.marker, one.filled) != (other.marker, other.filled)


def test_grey_is_the_rest_and_never_a_series() -> None:
    ends = {"#000000", "#f2f2f2"}  # ink on light and on dark paper
    for color in {*PALETTE, *itertools.chain(*shown_colors().values())} - ends:
        assert np.hypot(*lab(color)[1:]) >= VIVID, color
    styles = styles_for(names()[:40], names()[40:])
    assert {style.color for style in styles.values() if not style.strong} == {FAINT}


def test_series_can_be_read_as_small_text_on_both_papers() -> None:
    for paper, shown in shown_colors().items():
        assert all(contrast(rgb(color), rgb(paper)) >= 4.4 for color in shown)


# ---- pictures


@pytest.fixture(scope="module")
def results() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Results of all registered encodings; some fail at once, some with one seed only, and one only guesses."""
    shapes = dict(zip(names(), many(len(names())).values(), strict=True))
    rows, positions, _ = fake_tables(shapes, (256, 1024, 4096))
    failed = (rows["encoding"] == "hierarchical") & (rows["seed"] == 1) & (rows["ratio"] > 1)
    failed |= (rows["encoding"] == "transformer-xl") & (rows["ratio"] > 4)
    lost = ["nll", "bpb", "ppl", "gain", "gain_low", "gain_high"]
    rows = rows.assign(
        status=rows["status"].mask(failed, "unsupported"), **{name: rows[name].mask(failed) for name in lost}
    )
    guesses = rows["encoding"] == "stick-breaking"
    return rows.assign(guess_gain_low=rows["guess_gain_low"].mask(guesses, -1.0)), positions


def words(page: Page) -> list[str]:
    return [text.get_text() for text in page.figure.findobj(Text) if text.get_text().strip()]


@pytest.fixture(scope="module")
def pages(results: tuple[pd.DataFrame, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """Every picture, by its name."""
    (section,) = build_report(*results, tmp_path_factory.mktemp("all")).sections
    styles = styles_for(*standings(section.summary))
    return {figure.name: page_of(figure, styles) for figure in section.figures}


@pytest.mark.parametrize("name", ["perplexity", "gain"])
def test_names_in_pictures_are_whole_inside_the_page_and_do_not_overlap(
    results: tuple[pd.DataFrame, pd.DataFrame], pages: dict[str, Page], name: str
) -> None:
    page = pages[name]
    assert not any("\u2026" in text for text in words(page)[: -len(page.figure.texts)])
    labels = [text for axes in filter(None, (page.axes, page.strip)) for text in axes.texts if text.get_text()]
    first = {text.get_text().split(" ")[0].rstrip(":,") for text in labels}
    rows = results[0]
    measured = rows[(rows["status"] == "ok") & (rows["length"] == 4096) & (rows["variant"] == "full")][
        "encoding"
    ].unique()
    assert set(measured) <= first
    assert {"hierarchical", "transformer-xl"} <= first
    renderer = page.canvas.get_renderer()
    for text in labels:
        text.update_positions(renderer)
    boxes = [(text.get_text(), Text.get_window_extent(text, renderer)) for text in labels]
    outside = [(text, box.x0, box.x1) for text, box in boxes if not 0 <= box.x0 <= box.x1 <= page.figure.bbox.x1]
    assert outside == []
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert wide < 1 or high < 0.35 * min(a.height, b.height), (one, other)


def test_an_axis_around_zero_says_where_it_is_logarithmic(pages: dict[str, Page]) -> None:
    axes = pages["gain"].axes
    assert axes.get_yscale() == "symlog"
    below = float(re.fullmatch(r"context gain, bits per byte, logarithmic below (-[\d.]+)", axes.get_ylabel()).group(1))

    def height(value: float) -> float:
        return float(axes.transData.transform((256, value))[1])

    assert height(0) - height(below / 2) == pytest.approx(height(below / 2) - height(below), rel=0.02)
    assert height(4 * below) - height(8 * below) == pytest.approx(height(8 * below) - height(16 * below), rel=0.02)


def test_ticks_of_every_range_differ() -> None:
    draw = np.random.default_rng(0)
    for _ in range(60):
        low = 10 ** draw.uniform(-3, 7)
        axes = Page(1).axes
        axes.set_ylim(low, low * (2.5 + 10 ** draw.uniform(-1, 3)))
        log_ticks(axes)
        texts, places = axes.yaxis.get_major_formatter().seq, axes.yaxis.get_major_locator()()
        assert len(set(texts)) == len(texts) >= 2
        assert [float(text) for text in texts] == pytest.approx(list(places), rel=1e-3)
    assert tick_texts([100_000, 150_000, 200_000]) == ["1.0e+05", "1.5e+05", "2.0e+05"]
