"""Pages, axes and numbers in text: their geometry in inches, their ticks, and how a number is written."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from poscli.drawing.axes import (
    _round_ticks,
    _times,
    draw_line,
    headroom,
    length_axis,
    log_ticks,
    mark_training,
    signed_axis,
)
from poscli.drawing.bars import Bar, BarPage
from poscli.drawing.page import (
    BOTTOM,
    MIN_HEIGHT,
    STRIP_ROW,
    TOP,
    End,
    Failure,
    Page,
    _failure_text,
    clip,
    failure_rows,
    place_labels,
)
from poscli.drawing.style import BACKGROUND, FAINT, INK, QUIET, Style
from poscli.drawing.text import amount, distinct, listed, low_to_high, number, signed

LOOKS_AT_PICTURES = True


@pytest.fixture
def axes() -> Axes:
    return Figure(figsize=(8, 5)).add_subplot()


def ticks(axes: Axes) -> list[float]:
    return [float(tick) for tick in axes.yaxis.get_major_locator()()]


def labels(axes: Axes) -> list[str]:
    return axes.yaxis.get_major_formatter().seq


# ---- the page


def test_the_strip_of_failures_lies_between_the_axes_and_the_title() -> None:
    page = Page(labels=3, failures=2)
    assert page.strip is not None
    body, strip = page.axes.get_position(), page.strip.get_position()
    assert page.height == pytest.approx(MIN_HEIGHT + 2 * STRIP_ROW + 0.08 - STRIP_ROW)
    assert body.y0 * page.height == pytest.approx(BOTTOM)
    assert (strip.y0 - body.y1) * page.height == pytest.approx(0.08)
    assert strip.height * page.height == pytest.approx(2 * STRIP_ROW)
    assert (1 - strip.y1) * page.height == pytest.approx(TOP)


def test_the_page_grows_with_its_labels_and_writes_many_of_them_smaller() -> None:
    assert (Page(24).size, Page(25).size) == (8.0, 6.8)
    assert Page(20).height == MIN_HEIGHT
    assert Page(60).height == pytest.approx(TOP + BOTTOM + 60 * 1.28 * 6.8 / 72 + 0.1)
    assert Page(1).strip is None


def test_text_is_folded_to_the_page_and_cut_after_its_lines() -> None:
    page = Page(1)
    assert page._fold("a short line", 9, 2) == "a short line"
    words = " ".join(f"word{n}" for n in range(200))
    folded = page._fold(words, 9, 2).split("\n")
    assert len(folded) == 2
    assert folded[1].endswith(" …")
    assert 5.5 < page._width(folded, 9) < 8.0  # inches: as wide as the page between its margins, nearly
    assert page._fold(words, 9, 20).replace("\n", " ") == words


def test_texts_of_the_page_begin_at_the_left_margin_and_the_heading_ends_at_the_right_one() -> None:
    page = Page(1)
    page.write("title", "finding", "heading", "footnote")
    inches = {text.get_text(): text.get_position() * np.array([8.0, page.height]) for text in page.figure.texts}
    assert inches["title"] == pytest.approx([0.18, page.height - 0.14])
    assert inches["finding"] == pytest.approx([0.18, page.height - 0.14 - 0.27])
    assert inches["footnote"] == pytest.approx([0.18, 0.08])
    assert inches["heading"] == pytest.approx([8.0 - 0.14, page.height - TOP + 0.06])


def test_the_finding_has_two_lines_at_most_and_the_footnote_three_as_wide_as_the_page() -> None:
    page = Page(1)
    words = "words " * 300
    page.write("title", words, "heading", words)
    _, finding, _, footnote = page.figure.texts
    for text, count in ((finding, 2), (footnote, 3)):
        lines = text.get_text().split("\n")
        assert len(lines) == count
        assert lines[-1].endswith(" …")
        box = text.get_window_extent(page.canvas.get_renderer())
        assert box.x0 / 160 == pytest.approx(0.18, abs=0.02)  # inches
        assert 6.5 < box.x1 / 160 < 8 - 0.18


def test_labels_move_apart_as_little_as_possible() -> None:
    assert place_labels([1.0, 1.0, 1.0], 0.5, 0.0, 3.0) == pytest.approx([0.5, 1.0, 1.5])
    assert place_labels([2.0, 0.0, 1.9], 0.5, 0.0, 3.0) == pytest.approx([2.2, 0.0, 1.7])
    assert place_labels([2.9, 3.0], 0.5, 0.0, 3.0) == pytest.approx([2.5, 3.0])
    assert place_labels([], 0.5, 0.0, 3.0) == []


def labelled(ends: list[tuple[float, float, str]]) -> tuple[Page, dict[str, Annotation]]:
    """A page on which a unit of y is an inch, and its labels by their text."""
    page = Page(len(ends))
    page.axes.set(xlim=(0, 2), ylim=(0, page.height - TOP - BOTTOM))
    page.label_ends([End(x, y, text, Style("k", "-", "o")) for x, y, text in ends])
    return page, {text.get_text(): text for text in page.axes.texts if isinstance(text, Annotation)}


def test_labels_stand_at_the_ends_of_their_lines_where_there_is_room() -> None:
    _, labels = labelled([(2, 1.0, "low"), (2, 2.5, "high"), (1, 2.0, "early")])
    assert labels["low"].xy == (2, 1.0)
    assert labels["low"].xyann == pytest.approx((26, 0))  # points
    assert labels["high"].xyann == pytest.approx((26, 0))
    assert labels["early"].xyann == pytest.approx((7, 0))
    assert labels["early"].arrow_patch is None


def test_labels_of_one_point_stand_half_a_line_above_and_below_it() -> None:
    _, labels = labelled([(2, 1.5, "a"), (2, 1.5, "b")])
    half = 1.28 * 8 / 2  # points: of lines of 8 points, 1.28 apart
    assert [label.xyann[1] for label in labels.values()] == pytest.approx([-half, half])


def test_a_leader_goes_from_the_end_of_a_line_to_the_left_side_of_its_label() -> None:
    page, labels = labelled([(2, 1.0, "low"), (2, 2.5, "high")])
    for label in labels.values():
        label.update_positions(page.canvas.get_renderer())
        box = Text.get_window_extent(label, page.canvas.get_renderer())  # without the leader
        assert label.arrow_patch is not None
        ends = label.arrow_patch.get_path().vertices[[0, -1]]
        (left, _), (right, _) = sorted(ends.tolist())
        assert page.axes.get_window_extent().x1 < left < right
        assert right == pytest.approx(box.x0, abs=8)  # dots; a dot is 1/160 inch
        assert ends[:, 1] == pytest.approx([(box.y0 + box.y1) / 2] * 2, abs=4)


def test_labels_take_their_room_from_the_axes_and_the_strip() -> None:
    page = Page(2, failures=1)
    page.label_ends(
        [End(2, 0.5, "a" * 30, Style("k", "-", "o")), End(1, 0.2, "b" * 36, Style("k", "-", "o"))],
        [Failure((1, 2), "oom", Style("k", "-", "o"))],
    )
    assert page.strip is not None
    for axes in (page.axes, page.strip):
        box = axes.get_position()
        assert box.x0 * 8 == pytest.approx(0.78)
        assert (1 - box.x1) * 8 == pytest.approx(0.5 + page._width(["a" * 30], 8.0))  # b lies inside the axes


def test_the_strip_has_a_row_of_crosses_for_every_failure_the_first_above() -> None:
    page = Page(1, failures=2)
    styles = Style("#112233", "-", "o"), BACKGROUND
    page.label_ends([], [Failure((8, 16), "a: oom", styles[0]), Failure((16,), "b: oom", styles[1])])
    assert page.strip is not None
    assert page.strip.get_ylim() == (1.5, -0.5)
    crosses = [(line.get_marker(), list(line.get_xdata()), list(line.get_ydata())) for line in page.strip.lines]
    assert crosses == [("x", [8, 16], [0, 0]), ("x", [16], [1])]
    assert [(text.get_text(), text.xy, text.xyann) for text in page.strip.texts] == [
        ("a: oom", (1, 0), (12, 0)),
        ("b: oom", (1, 1), (12, 0)),
    ]
    assert [text.get_color() for text in page.strip.texts] == ["#112233", QUIET]
    assert page.strip.get_ylabel() == "no result"


def test_rows_of_failures_have_the_style_of_the_only_encoding_in_them() -> None:
    styles = {"a": Style("#112233", "-", "o")}
    rows = failure_rows({("oom", (8,)): ["a"], ("bad", (8, 16)): ["a", "b"], ("old", (1,)): ["b"]}, styles)
    plain = Style(INK, "-", "x")
    assert rows == [
        Failure((8,), "a: oom", styles["a"]),
        Failure((8, 16), "a and b: bad", plain),
        Failure((1,), "b: old", plain),
    ]


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
    assert _failure_text(who, cause) == text


@pytest.mark.parametrize(
    ("text", "longest", "clipped"),
    [("abcdef", 6, "abcdef"), ("abcdefg", 6, "ab…efg"), ("abcdefgh", 7, "abc…fgh"), ("\U0010fffd", 10, "\\U0010fffd")],
)
def test_a_long_label_is_shortened_in_its_middle(text: str, longest: int, clipped: str) -> None:
    assert clip(text, longest) == clipped


# ---- axes


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


def test_ticks_are_written_as_plain_numbers_up_to_a_hundred_thousand(axes) -> None:
    axes.set_ylim(0.9, 1.1e6)
    log_ticks(axes)
    assert labels(axes) == ["1", "10", "100", "1000", "10000", "1e+05", "1e+06"]


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
    ("high", "expected"),
    [
        (60, [10, 20, 30, 50]),
        (5, [1, 2, 3, 5]),
        (1, [0.3, 0.5, 1]),  # 0.2 is too near to 0.3, which goes before it
        (0.6, [0.1, 0.2, 0.3, 0.5]),
        (0.02, [0.003, 0.01, 0.02]),
        (0.004, [0.001, 0.002, 0.003]),
    ],
)
def test_ticks_around_zero_are_round_and_simple_ones_go_first(axes, high: float, expected: list[float]) -> None:
    axes.set_ylim(-high * 1.0001, high * 1.0001)
    _round_ticks(axes, even=False)
    assert ticks(axes) == pytest.approx([*(-tick for tick in expected[::-1]), 0, *expected])
    assert labels(axes)[len(expected) :] == ["0", *(f"+{tick}" for tick in expected)]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((-0.41, 0.59), ["-0.4", "-0.2", "0", "+0.2", "+0.4"]),
        ((-0.35, 0.42), ["-0.3", "-0.2", "-0.1", "0", "+0.1", "+0.2", "+0.3", "+0.4"]),
        ((-0.011, 0.016), ["-0.01", "-0.005", "0", "+0.005", "+0.01", "+0.015"]),
        ((-7, 11), ["-5", "0", "+5", "+10"]),
    ],
)
def test_ticks_of_a_linear_axis_around_zero_are_even(axes, limits: tuple[float, float], expected: list[str]) -> None:
    axes.set_ylim(*limits)
    _round_ticks(axes, even=True)
    assert labels(axes) == expected


def test_headroom_is_seven_percent_of_the_height(axes) -> None:
    axes.set_ylim(2, 4)
    headroom(axes)
    assert axes.get_ylim() == pytest.approx((2, 4.14))
    axes.set_yscale("log")
    axes.set_ylim(1, 100)
    headroom(axes)
    assert axes.get_ylim() == pytest.approx((1, 100**1.07))


def test_the_training_length_is_named_inside_the_axes(axes) -> None:
    for at, shift in ((1.0, -11), (0.0, 5)):
        mark_training(axes, 256, at)
        (name,) = (child for child in axes.texts[-1:] if isinstance(child, Annotation))
        assert (name.xy, name.xyann) == ((256, at), (4, shift))
        assert name.get_text() == "training length 256"


def test_at_most_nine_lengths_are_ticks(axes) -> None:
    length_axis(axes, [64 << n for n in range(9)], 256)
    assert len(axes.xaxis.get_major_locator()()) == 9
    length_axis(axes, [64 << n for n in range(10)], 256)
    assert list(axes.xaxis.get_major_locator()()) == [64, 256, 1024, 4096, 16384]
    assert axes.xaxis.get_major_formatter().seq[:2] == ["64\n1/4x", "256\n1x"]


def test_the_axis_of_lengths_reaches_a_little_beyond_them(axes) -> None:
    length_axis(axes, [128, 256, 4096], 256)
    assert axes.get_xlim() == pytest.approx((128 / 1.12, 4096 * 1.1))
    assert list(axes.xaxis.get_minor_locator()()) == []
    assert axes.xaxis.get_major_formatter().seq == ["128\n1/2x", "256\n1x", "4096\n16x"]
    at = axes.transData.transform([(128, 1), (256, 1), (512, 1)])[:, 0]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1])


@pytest.mark.parametrize(("count", "every", "marked"), [(5, 1, [0, 1, 2, 3, 4]), (6, 3, [2, 5]), (7, 3, [0, 3, 6])])
def test_the_last_point_of_a_line_and_every_so_many_before_have_a_marker(axes, count, every, marked) -> None:
    values = pd.Series(range(1, count + 1))
    draw_line(axes, values, 2 * values, Style("k", "-", "o"), every)
    (line,) = axes.lines
    assert list(line.get_xdata()) == list(values)
    assert list(line.get_ydata()) == list(2 * values)
    assert list(range(count))[slice(line.get_markevery()[0], None, line.get_markevery()[1])] == marked


def test_lines_look_as_their_styles_say_and_strong_ones_lie_above(axes) -> None:
    values = pd.Series([1.0, 2.0])
    for style in (Style("#112233", "--", "s"), Style("#112233", ":", "v", filled=False), BACKGROUND):
        draw_line(axes, values, values, style)
    first, second, third = axes.lines
    assert (first.get_color(), first.get_linestyle(), first.get_marker()) == ("#112233", "--", "s")
    assert (first.get_markerfacecolor(), second.get_markerfacecolor()) == ("#112233", "white")
    assert second.get_linestyle() == ":"
    assert (third.get_color(), third.get_marker()) == (FAINT, "")
    assert first.get_zorder() == second.get_zorder() > third.get_zorder()
    assert first.get_linewidth() > third.get_linewidth()
    assert (Style("#112233", "-", "o").text, BACKGROUND.text) == ("#112233", QUIET)


@pytest.mark.parametrize(
    ("length", "train_length", "text"),
    [(8, 8, "1x"), (2, 8, "1/4x"), (3, 8, "0.375x"), (12, 8, "1.5x"), (800, 8, "100x"), (4, 6, "0.666667x")],
)
def test_a_length_is_a_multiple_of_its_training_length_or_one_part_of_it(length, train_length, text) -> None:
    assert _times(length, train_length) == text


# ---- bars


def test_a_bar_begins_at_one_with_its_spread_its_name_and_its_text() -> None:
    page = BarPage([Bar("a", 2.0, 1.8, 2.5, "first", "#112233"), Bar("b", 0.5, 0.4, 0.6, "second", FAINT)])
    bars = [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in page.axes.patches]
    assert np.array(bars) == pytest.approx(np.array([(1, 1.0, 0), (1, -0.5, 1)]))
    spreads = [segment.tolist() for lines in page.axes.collections for segment in lines.get_segments()]
    assert spreads == [[[1.8, 0], [2.5, 0]], [[0.4, 1], [0.6, 1]]]
    assert page.axes.get_ylim() == pytest.approx((1.6, -0.6))  # the first is above
    texts = [(text.get_text(), text.xy, text.xyann, text.get_ha(), text.get_color()) for text in page.axes.texts]
    assert texts == [
        ("a", (0, 0), (-5, 0), "right", INK),
        ("first", (1, 0), (6, 0), "left", INK),
        ("b", (0, 1), (-5, 0), "right", INK),
        ("second", (1, 1), (6, 0), "left", QUIET),
    ]
    page.name_axis("ratio")
    assert page.axes.get_xlabel() == "ratio"


def test_bars_leave_room_for_their_names_and_texts() -> None:
    page = BarPage([Bar("a longer name", 2.0, 1.8, 2.5, "a text", "k"), Bar("b", 2.0, 1.8, 2.5, "a longer text", "k")])
    box = page.axes.get_position()
    assert box.x0 * 8 == pytest.approx(0.3 + page._width(["a longer name"], 7.2))
    assert (1 - box.x1) * 8 == pytest.approx(0.35 + page._width(["a longer text"], 7.2))


def test_bars_have_round_ticks_first() -> None:
    page = BarPage([Bar("a", 10.0, 9.0, 11.0, "text", "k"), Bar("b", 0.5, 0.45, 0.6, "text", "k")])
    shown = [float(tick) for tick in page.axes.xaxis.get_major_locator()()]
    assert {0.5, 1.0, 2.0, 5.0, 10.0} <= set(shown)
    assert shown == sorted(shown)
    low, high = page.axes.get_xlim()
    assert (low, high) == pytest.approx((0.45 / 1.02, 11 * (11 / 0.45) ** 0.03))
    inches = page.axes.get_position().width * 8.0 / math.log(high / low)
    assert all(math.log(b / a) * inches > 0.4 for a, b in pairwise(shown))


def test_a_narrow_axis_of_bars_keeps_the_tick_at_one() -> None:
    page = BarPage([Bar("a" * 36, 200.0, 0.1, 200.0, "x" * 60, "k")])
    shown = list(page.axes.xaxis.get_major_locator()())
    assert 1.0 in shown
    assert 2.0 not in shown


def test_a_half_is_a_round_tick_and_goes_before_seven_tenths() -> None:
    page = BarPage([Bar("a", 1.0, 0.4, 1.0, "text", "k")])
    inches = page.axes.get_position().width * 8.0
    page.axes.set_xlim(0.4, 0.4 * math.exp(inches / 1.15))  # 1.15 inches per factor e: 0.7 has room beside 1
    assert 0.5 in page._ticks()
    assert 0.7 not in page._ticks()


def test_bars_near_one_leave_room_around_it() -> None:
    page = BarPage([Bar("a", 1.0, 1.0, 1.0, "text", "k")])
    assert page.axes.get_xlim() == pytest.approx((0.97 / 1.02, 1.1 * (1.1 / 0.97) ** 0.03))
    assert BarPage([Bar("a", 1, 1, 1, "text", "k")] * 60).height == pytest.approx(Page(76).height)


# ---- numbers in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9999, "9999"),
        (10_000, "10k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_000_000, "1M"),
        (999_600_000, "1B"),
        (2.5e9, "2.5B"),
    ],
)
def test_a_count_has_three_digits_and_never_a_power_of_ten(value: float, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(99_999.0, "99999"), (100_000.0, "1e+05"), (0.0123, "0.01"), (0.0, "0.00")]
)
def test_a_number_has_three_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.9e-4, "0.000"), (-4.9e-4, "0.000"), (5.1e-4, "+0.001"), (0.9994, "+0.999"), (-0.25, "-0.250"),
        (1.0, "+1.00"), (-1.0, "-1.00"), (12.25, "+12.25"),
    ],
)  # fmt: skip
def test_a_difference_has_three_decimals_below_one_and_two_from_one_on(value: float, text: str) -> None:
    assert signed(value) == text


@pytest.mark.parametrize(
    ("items", "most", "text"),
    [([], 2, ""), (["a"], 2, "a"), (["a", "b"], 2, "a and b"), (["a", "b", "c"], 2, "a, b and 1 more"),
     (["a", "b", "c"], 3, "a, b and c")],
)  # fmt: skip
def test_a_list_counts_what_is_past_its_most(items: list[str], most: int, text: str) -> None:
    assert listed(items, most) == text


def test_counts_are_one_or_a_range_and_texts_are_distinct() -> None:
    assert low_to_high([3]) == low_to_high([3, 3]) == "3"
    assert low_to_high([20_000, 5, 100]) == "5 to 20k"
    assert distinct(pd.Series(["b", None, "", "a", "b"])) == ["a", "b"]
