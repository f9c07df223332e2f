"""What pictures of encodings are drawn from: bins, axes, maps of colours, panels and enlarged cells, by hand."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from poscli.drawing.axes import (
    binned,
    distance_axis,
    head_colors,
    heat_map,
    log_axis,
    name_curves,
    share_axes,
)
from poscli.drawing.sheet import Contents, Sheet
from poscli.grids.continuation import side_by_side

LOOKS_AT_PICTURES = True


@pytest.fixture
def axes() -> Axes:
    return Figure(figsize=(8, 5)).add_subplot()


def marks(axes: Axes) -> dict[float, str]:
    """The ticks of x with their labels."""
    return dict(zip(axes.xaxis.get_major_locator()(), axes.xaxis.get_major_formatter().seq, strict=True))


def test_distances_are_binned_by_their_logarithm() -> None:
    """Four bins of 15 distances: 0, 1 to 2, 3 to 6, 7 to 14; the axis is that of the distance plus 1."""
    rows = np.array([np.arange(15.0), np.arange(15.0) ** 2])
    middle, mean, low, high = binned(rows, 4)
    assert middle == pytest.approx([1, math.sqrt(2 * 3), math.sqrt(4 * 7), math.sqrt(8 * 15)])
    for row, square in enumerate((1, 2)):
        parts = [[d**square for d in part] for part in ((0,), (1, 2), (3, 4, 5, 6), range(7, 15))]
        assert mean[row] == pytest.approx([sum(part) / len(part) for part in parts])
        assert low[row].tolist() == [min(part) for part in parts]
        assert high[row].tolist() == [max(part) for part in parts]


@pytest.mark.parametrize(("count", "bins"), [(1, 5), (3, 260), (100, 7), (5000, 260)])
def test_every_distance_is_in_one_bin(count: int, bins: int) -> None:
    values = np.random.default_rng(0).random((2, count))
    middle, mean, low, high = binned(values, bins)
    assert len(middle) <= min(count, bins)
    assert (np.diff(middle) > 0).all()
    assert 1 <= middle[0] <= middle[-1] <= count
    assert (low <= mean).all()
    assert (mean <= high).all()
    assert low.min(axis=1).tolist() == values.min(axis=1).tolist()
    assert high.max(axis=1).tolist() == values.max(axis=1).tolist()
    if count <= 3:
        assert middle.tolist() == list(range(1, count + 1))
        assert mean == pytest.approx(values)


@pytest.mark.parametrize(
    ("count", "length", "ticks", "marked"),
    [
        (2000, 500, {1: "0", 2: "1", 11: "10", 101: "100", 1001: "1000"}, 501),
        (1000, 1000, {1: "0", 2: "1", 11: "10", 101: "100"}, None),
        (100_001, 16, {1: "0", 2: "1", 11: "10", 101: "100", 1001: "1000", 10_001: "10k", 100_001: "100k"}, 17),
        (8, 7, {1: "0", 2: "1"}, 8),
    ],
)
def test_an_axis_of_distances_has_ticks_at_distances_and_a_line_at_the_training_length(
    axes: Axes, count: int, length: int, ticks: dict[int, str], marked: int | None
) -> None:
    distance_axis(axes, count, length)
    assert axes.get_xscale() == "log"
    assert marks(axes) == ticks
    first, last = axes.get_xlim()
    assert first < 1
    assert count < last < 1.1 * count
    assert [line.get_xdata()[0] for line in axes.lines] == ([] if marked is None else [marked])
    assert [text.get_text() for text in axes.texts] == ([] if marked is None else [f"L = {length}"])


def test_panels_share_the_widest_limits_and_their_direction() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.set(xlim=(0, 10), ylim=(3, -1))
    right.set(xlim=(5, 20), ylim=(5, 0))
    share_axes([left, right])
    for axes in (left, right):
        assert axes.get_xlim() == (0, 20)
        assert axes.get_ylim() == (5, -1)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1, [0]),
        (12, list(range(12))),
        (13, [0, 2, 4, 6, 8, 10, 12]),
        (24, [*range(0, 24, 2), 23]),
        (30, [*range(0, 30, 3), 29]),
    ],
)
def test_of_many_curves_some_are_named_each_in_its_colour_the_last_one_too(
    axes: Axes, count: int, shown: list[int]
) -> None:
    colors = head_colors(count)
    name_curves(axes, [f"head {n}" for n in range(count)], colors)
    assert [(text.get_text(), text.get_color()) for text in axes.texts] == [(f"head {n}", colors[n]) for n in shown]
    heights = [text.xyann[1] for text in axes.texts]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize("count", [2, 5, 16])
def test_colours_of_heads_go_from_dark_to_light_and_can_be_read_on_white(count: int) -> None:
    light = [float(np.dot((0.2126, 0.7152, 0.0722), to_rgb(color))) for color in head_colors(count)]
    assert light == sorted(light)
    assert len(set(head_colors(count))) == count
    assert light[0] < 0.15
    assert 0.6 < light[-1] < 0.8


def test_a_log_axis_has_powers_of_ten(axes: Axes) -> None:
    axes.plot([1, 2], [0.003, 40.0])
    log_axis(axes)
    low, high = axes.get_ylim()
    inside = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert inside == pytest.approx([0.01, 0.1, 1, 10])


@pytest.mark.parametrize(("signed", "ends"), [(True, ["-2.5", "0", "2.5"]), (False, ["0", "2.5"])])
def test_a_map_of_values_goes_from_zero_or_evenly_around_it(axes: Axes, signed: bool, ends: list[str]) -> None:
    values = np.array([[0.0, 1.0, 2.0], [0.5, -0.5, 1.5]])
    heat_map(axes, values, 2.5, signed=signed)
    (image,) = axes.images
    assert image.get_array().tolist() == values.tolist()
    assert (image.norm.vmin, image.norm.vmax) == (-2.5 if signed else 0, 2.5)
    (bar,) = axes.child_axes
    assert [label.get_text() for label in bar.get_yticklabels()] == ends
    assert [float(tick) for tick in bar.get_yticks()] == [float(end) for end in ends]


def test_cells_are_enlarged_side_by_side_in_one_scale_of_grey_with_a_line_where_what_was_given_ends() -> None:
    first, second = np.array([[10, 20], [30, 40]], np.uint8), np.array([[50, 10], [30, 20]], np.uint8)
    drawn = np.asarray(
        Image.open(io.BytesIO(side_by_side([first, second], ["a", "b"], "below", line=1))).convert("RGB")
    )
    cell, left, gap, top, bottom = 256, 60, 60, 60, 110
    assert drawn.shape == (top + 2 * cell + bottom, 2 * left + 4 * cell + gap, 3)
    for n, image in enumerate((first, second)):
        for row in range(2):
            for column in range(2):
                x, y = left + n * (2 * cell + gap) + column * cell, top + row * cell
                grey = (int(image[row, column]) - 10) / 40 * 255  # 10 is drawn black and 50 white
                for corner in drawn[y + 8 : y + cell - 8 : cell - 17, x + 8 : x + cell - 8 : cell - 17].reshape(-1, 3):
                    assert corner.tolist() == pytest.approx([grey] * 3, abs=2)
    coloured = np.ptp(drawn.astype(int), axis=2) > 60
    rows = np.flatnonzero(coloured[:, left + cell // 2])
    assert abs(rows.mean() - (top + cell)) < 3


def test_panels_lie_in_rows_and_columns_between_the_headings_and_the_table() -> None:
    contents = Contents("title", ["one", "two"], ["about one", "about two"], [("name", ["a cell", "another"])], "foot")
    sheet = Sheet(2, 2, contents)
    boxes = {(r, c): sheet.panel(r, c, "caption", "what is seen").get_position() for r in range(2) for c in range(2)}
    for (row, column), box in boxes.items():
        assert box.width == pytest.approx(boxes[0, 0].width)
        assert box.height == pytest.approx(boxes[0, 0].height)
        assert box.y0 == pytest.approx(boxes[row, 0].y0)
        assert box.x0 == pytest.approx(boxes[0, column].x0)
    assert boxes[1, 0].y1 < boxes[0, 0].y0
    assert boxes[0, 0].x1 < boxes[0, 1].x0 < boxes[0, 1].x1 < 1
    at = {text.get_text(): text.get_position() for text in sheet.figure.texts}
    assert at["title"][1] > at["one"][1] > at["about one"][1] > boxes[0, 0].y1
    assert boxes[1, 0].y0 > at["a cell"][1] > at["foot"][1] > 0
    assert at["a cell"][1] == at["another"][1] == at["name"][1]
    assert at["name"][0] < at["a cell"][0] < at["another"][0]
    assert (at["one"][0], at["two"][0]) == pytest.approx((at["about one"][0], at["about two"][0]))
    assert at["two"][0] > boxes[0, 0].x1


def test_rows_of_a_table_do_not_overlap() -> None:
    long = " ".join(["word"] * 40)
    table = [("first", ["short", long]), ("second", [long, "short"]), ("third", ["a", "b"])]
    sheet = Sheet(1, 1, Contents("title", [], [], table, "foot"))
    sheet.png()
    renderer = sheet.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    extents = {text.get_text(): text.get_window_extent(renderer) for text in sheet.figure.texts}
    lines = [text for text in extents if text.startswith("word")]
    assert lines == [lines[0]] * len(lines)
    assert extents[lines[0]].y0 > extents["third"].y1 - 1
    tops = [extents[name].y1 for name in ("first", "second", "third", "foot")]
    assert tops == sorted(tops, reverse=True)
    assert tops[0] - tops[1] > 0.9 * extents[lines[0]].height
