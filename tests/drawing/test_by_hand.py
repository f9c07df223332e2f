"""Bins, ticks, labels and tables of pictures, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from poscli.drawing.axes import binned, log_ticks, signed_axis, tick_texts
from poscli.drawing.page import Page, clip, failure_rows, place_labels

LOOKS_AT_PICTURES = True


@pytest.fixture
def axes() -> Axes:
    return Figure(figsize=(8, 5)).add_subplot()


def ticks(axes: Axes) -> list[float]:
    return [float(tick) for tick in axes.yaxis.get_major_locator()()]


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
    middle, mean, low, high = binned(rows[:, :3], 260)
    assert middle.tolist() == [1, 2, 3]
    assert mean.tolist() == low.tolist() == high.tolist() == rows[:, :3].tolist()


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (2, 3, [2, 2.2, 2.4, 2.6, 2.8, 3]),
        (2, 6, [2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6]),
        (1, 10, [1, 1.5, 2, 3, 4, 5, 6, 8, 10]),
        (1, 20, [1, 1.5, 2, 3, 5, 7, 10, 15, 20]),
        (1, 100, [1, 2, 5, 10, 20, 50, 100]),
        (1, 1e4, [1, 3, 10, 30, 100, 300, 1000, 3000, 10000]),
        (1, 1e6, [1, 10, 100, 1000, 1e4, 1e5, 1e6]),
    ],
)
def test_ticks_of_a_log_axis_are_the_densest_series_of_fewer_than_ten(axes, low, high, expected) -> None:
    axes.set_ylim(low * 0.9999, high * 1.0001)
    log_ticks(axes)
    assert ticks(axes) == pytest.approx(expected)


def test_ticks_of_every_range_differ() -> None:
    draw = np.random.default_rng(0)
    for _ in range(30):
        low = 10 ** draw.uniform(-3, 7)
        axes = Page(1).axes
        axes.set_ylim(low, low * (2.5 + 10 ** draw.uniform(-1, 3)))
        log_ticks(axes)
        texts = axes.yaxis.get_major_formatter().seq
        assert len(set(texts)) == len(texts) >= 2
        assert [float(text) for text in texts] == pytest.approx(ticks(axes), rel=1e-3)
    assert tick_texts([100_000, 150_000, 200_000]) == ["1.0e+05", "1.5e+05", "2.0e+05"]


@pytest.mark.parametrize(
    ("low", "high", "limits", "note"),
    [
        (-1.0, 0.5, (-1.3, 0.8), ""),
        (-2.5, 0.5, (-2.8, 0.8), ""),
        (-2.6, 0.5, (-5.2, 0.8), ", logarithmic below -0.8"),
    ],
)
def test_an_axis_around_zero_is_squeezed_below_where_losses_are_over_five_times_the_gains(
    axes, low, high, limits, note
) -> None:
    assert signed_axis(axes, low, high) == note
    assert axes.get_ylim() == pytest.approx(limits)
    assert axes.get_yscale() == ("symlog" if note else "linear")
    assert list(axes.lines[-1].get_ydata()) == [0, 0]
    assert axes.yaxis.get_major_formatter().seq[ticks(axes).index(0.0)] == "0"


@pytest.mark.parametrize(
    ("heights", "gap", "top", "moved"),
    [
        ([1.0, 5.0], 1.0, 10.0, [1.0, 5.0]),
        ([5.0, 5.0, 5.0], 1.0, 10.0, [4.0, 5.0, 6.0]),
        ([9.9, 9.8], 1.0, 10.0, [10.0, 9.0]),
        ([2.0, 0.0, 1.9], 0.5, 3.0, [2.2, 0.0, 1.7]),
        ([], 0.5, 3.0, []),
    ],
)
def test_labels_move_apart_as_little_as_possible(heights, gap, top, moved) -> None:
    assert place_labels(heights, gap, 0.0, top) == pytest.approx(moved)


@pytest.mark.parametrize(
    ("who", "cause", "text"),
    [
        (["a" * 29], "cause", "a" * 29 + ": cause"),  # 36 characters
        (["a" * 30], "cause", "a" * 14 + "…" + "a" * 14 + ": cause"),
        (["a" * 12], "c" * 30, "a" * 12 + ": " + "c" * 30),
        (["a" * 25], "c" * 30, "a" * 11 + "…" + "a" * 12 + ": " + "c" * 30),
        (["a" * 12, "b" * 12], "12345", f"{'a' * 12} and {'b' * 12}: 12345"),  # 36 characters
        (["a" * 12, "b" * 12], "123456", "2 encodings: 123456"),
    ],
)
def test_a_failure_is_told_in_36_characters_but_no_name_of_24_is_cut(who: list[str], cause: str, text: str) -> None:
    (row,) = failure_rows({(cause, (64,)): who}, {})
    assert row.text == text
    assert clip("abcdefg", 6) == "ab…efg"
