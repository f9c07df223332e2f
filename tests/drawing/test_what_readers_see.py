"""What a reader of figures sees: labels apart, names cut in their middle, round ticks, numbers in few digits."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from poscli.drawing.axes import log_ticks, signed_axis
from poscli.drawing.page import clip, failure_rows, place_labels
from poscli.drawing.text import amount, listed, number, signed


@pytest.fixture
def axes() -> Axes:
    return Figure(figsize=(8, 5)).add_subplot()


def ticks(axes: Axes) -> list[float]:
    return [float(tick) for tick in axes.yaxis.get_major_locator()()]


def labels(axes: Axes) -> list[str]:
    return axes.yaxis.get_major_formatter().seq


def test_labels_move_apart_as_little_as_possible() -> None:
    assert place_labels([1.0, 1.0, 1.0], 0.5, 0.0, 3.0) == pytest.approx([0.5, 1.0, 1.5])
    assert place_labels([2.0, 0.0, 1.9], 0.5, 0.0, 3.0) == pytest.approx([2.2, 0.0, 1.7])
    assert place_labels([2.9, 3.0], 0.5, 0.0, 3.0) == pytest.approx([2.5, 3.0])
    assert place_labels([], 0.5, 0.0, 3.0) == []


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


@pytest.mark.parametrize(
    ("text", "longest", "clipped"),
    [("abcdef", 6, "abcdef"), ("abcdefg", 6, "ab…efg"), ("abcdefgh", 7, "abc…fgh"), ("\U0010fffd", 10, "\\U0010fffd")],
)
def test_a_long_label_is_shortened_in_its_middle(text: str, longest: int, clipped: str) -> None:
    assert clip(text, longest) == clipped


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (2, 3, [2, 2.2, 2.4, 2.6, 2.8, 3]),
        (2, 6, [2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6]),
        (1, 5, [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5]),
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
    assert 0.0 in ticks(axes)
    assert labels(axes)[ticks(axes).index(0.0)] == "0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(9999, "9999"), (10_000, "10k"), (999_499, "999k"), (999_500, "1M"), (999_600_000, "1B"), (2.5e9, "2.5B")],
)
def test_a_count_has_three_digits_and_never_a_power_of_ten(value: float, text: str) -> None:
    assert amount(value) == text


def test_numbers_in_sentences() -> None:
    assert [number(x) for x in (99_999.0, 100_000.0, 0.0123, 0.0)] == ["99999", "1e+05", "0.01", "0.00"]
    assert [signed(x) for x in (-4.9e-4, 5.1e-4, 0.9994, 1.0, 12.25)] == [
        "0.000",
        "+0.001",
        "+0.999",
        "+1.00",
        "+12.25",
    ]
    assert [listed(list("abc")[:n], 2) for n in range(4)] == ["", "a", "a and b", "a, b and 1 more"]
