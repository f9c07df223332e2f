"""What the figures of a report draw and write, part by part, from tables of a few rows."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from fake_pages import task_tables
from fake_results import results
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from poscli.drawing.style import BACKGROUND, FAINT, INK, Style, styles_for
from poscli.report.accuracy import by_length
from poscli.report.accuracy_figure import accuracy_by_length
from poscli.report.bands import bands
from poscli.report.figures import (
    _baselines,
    _bins,
    _bits_label,
    _dodge,
    _draw_baselines,
    _ends,
    _failures,
    _gain_axis,
    _gain_label,
    _lines,
    _log_where_wide,
    _marking,
    _octaves,
    _perplexity_label,
    _styles,
    perplexity_by_length,
)
from poscli.report.pooling import LN2, NothingToPlot
from poscli.report.recall_figure import recall_by_distance
from poscli.report.summary import standings, summarize

NAN = math.nan
AB = styles_for(["a", "b"])


@pytest.fixture
def axes() -> Axes:
    return Figure(figsize=(8, 5)).add_subplot()


def points(*rows: tuple[str, int, float]) -> pd.DataFrame:
    """Points of a model trained at length 8: (encoding, length, perplexity); NaN is a failure of one seed."""
    table = pd.DataFrame(rows, columns=["encoding", "length", "ppl"])
    failed = table["ppl"].isna()
    status = failed.map({True: "oom", False: "ok"})
    return table.assign(ratio=table["length"] / 8, status=status, failed=failed.astype(int), seeds=1)


# ---- labels


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ([(1.0, 4.0), (2.0, 6.0)], "x 6.00 (1.50x)"),
        ([(0.5, 5.0), (1.0, 4.0), (1.5, 2.0)], "x 2.00 (0.50x)"),
        ([(1.0, 4.0)], "x 4.00"),  # nothing beyond the training length
        ([(0.5, 4.0), (0.75, 3.0)], "x 3.00"),
        ([(2.0, 4.0), (4.0, 6.0)], "x 6.00"),  # no number of its own
    ],
)
def test_the_label_of_a_perplexity_is_its_last_with_the_growth_beyond_the_training_length(line, label) -> None:
    assert _perplexity_label("x", pd.DataFrame(line, columns=["ratio", "ppl"])) == label


def test_labels_of_gains_and_bits_are_their_last() -> None:
    line = pd.DataFrame({"gain": [1.0, -0.25], "bits": [3.0, 1.234]})
    assert _gain_label("x", line) == "x -0.250"
    assert _bits_label("x", line) == "x 1.23"
    assert _marking(_bits_label, {"x"})("x", line) == "x 1.23, not trained"
    assert _marking(_bits_label, {"x"})("y", line) == "y 1.23"


def test_a_line_that_ends_early_has_its_name_only_and_a_single_point_has_nothing() -> None:
    table = points(("a", 8, 4.0), ("a", 16, 5.0), ("b", 8, 4.0), ("b", 12, 6.0), ("c", 8, 4.0), ("d", 16, 7.0))
    styles = styles_for(["a", "b", "c", "d"])
    ends = _ends(table, "ppl", styles, lambda name, line: f"{name} of {len(line)}")
    assert [(end.x, end.y, end.text) for end in ends] == [
        (16, 5.0, "a of 2"),
        (12, 6.0, "b"),
        (16, 7.0, "d of 1"),
    ]
    assert [end.style for end in ends] == [styles[name] for name in "abd"]


# ---- lines


def test_lines_are_broken_where_an_encoding_has_no_number() -> None:
    table = points(("a", 8, 4.0), ("a", 12, NAN), ("a", 16, math.inf), ("b", 8, NAN), ("c", 12, 3.0))
    lines = {name: line["ppl"].tolist() for name, line in _lines(table, "ppl")}
    assert lines.keys() == {"a", "c"}
    assert lines["a"] == pytest.approx([4.0, NAN, NAN], nan_ok=True)
    assert lines["c"] == pytest.approx([NAN, 3.0, NAN], nan_ok=True)


def test_points_move_sideways_by_at_most_a_twenty_fifth_of_an_octave_each() -> None:
    assert _dodge([]) == {}
    assert _dodge(["a"]) == {"a": 1.0}
    octaves = {name: math.log2(factor) for name, factor in _dodge(["a", "b", "c"]).items()}
    assert octaves == pytest.approx({"a": -0.04, "b": 0, "c": 0.04})
    many = [math.log2(factor) for factor in _dodge(list("abcdefghij")).values()]
    assert many == pytest.approx([0.02 * (n - 4.5) for n in range(10)])  # a fifth of an octave for all


def test_styles_of_a_figure_drawn_alone_are_ranked_at_its_last_length() -> None:
    names = [f"e{n:02d}" for n in range(11)]  # one more than can be coloured: the best five and the worst two are
    last = [(name, 16, 5.0 + n) for n, name in enumerate(names[1:])]
    table = points(*((name, 8, 20.0 - n) for n, name in enumerate(names)), ("e00", 16, NAN), *last)
    coloured = {name for name, style in _styles(table, "ppl").items() if style.strong}
    assert coloured == {"e01", "e02", "e03", "e04", "e05", "e09", "e10"}
    coloured = {name for name, style in _styles(table.rename(columns={"ppl": "gain"}), "gain").items() if style.strong}
    assert coloured == {"e10", "e09", "e08", "e07", "e06", "e02", "e01"}


def test_bins_are_those_of_the_longest_window_after_the_skipped_positions() -> None:
    columns = ["encoding", "length", "from", "to", "nll"]
    rows = [
        ("a", 8, 5, 8, 9.0), ("a", 16, 1, 1, 9.0), ("a", 16, 2, 4, 9.0), ("a", 16, 4, 9, 3 * LN2),
        ("a", 16, 4, 9, 5 * LN2), ("b", 8, 4, 4, 9.0), ("b", 8, 5, 8, math.inf),
    ]  # fmt: skip
    bins = _bins(pd.DataFrame(rows, columns=columns), 4, 2.0)
    assert list(zip(bins["encoding"], bins["from"], bins["to"], strict=True)) == [("a", 4, 9), ("b", 5, 8)]
    assert bins["bits"].tolist() == pytest.approx([2.0, NAN], nan_ok=True)  # 4 bits per token of 2 bytes
    assert bins["length"].tolist() == pytest.approx([6.0, 40**0.5])
    with pytest.raises(NothingToPlot, match="no position has a loss"):
        _bins(pd.DataFrame(rows[-1:], columns=columns), 4, 2.0)


# ---- failures


def test_failures_are_told_from_their_first_length_on_and_alike_ones_share_a_row() -> None:
    table = points(
        ("a", 8, 4.0), ("a", 16, NAN), ("a", 32, NAN), ("b", 16, NAN), ("b", 32, NAN), ("c", 32, math.inf),
        ("d", 8, 1.0),
    )  # fmt: skip
    rows = _failures(table, AB | {"c": AB["a"]})
    assert [(row.lengths, row.text) for row in rows] == [
        ((16, 32), "a and b: oom from 2x"),
        ((32,), "c: infinite from 4x"),
    ]
    assert rows[0].style == Style(INK, "-", "x")
    assert rows[1].style == AB["a"]


@pytest.mark.parametrize(
    ("failed", "seeds", "text"),
    [(1, 3, "a: oom from 2x (1/3 seeds)"), (3, 3, "a: oom from 2x"), (1, 1, "a: oom from 2x")],
)
def test_failures_of_some_seeds_say_of_how_many(failed: int, seeds: int, text: str) -> None:
    (row,) = _failures(points(("a", 16, NAN)).assign(failed=failed, seeds=seeds), AB)
    assert row.text == text


# ---- axes and notes


@pytest.mark.parametrize(("values", "log"), [([2.0, 5.0], False), ([2.0, 5.01], True), ([2.0, NAN], False)])
def test_an_axis_is_logarithmic_from_a_ratio_of_two_and_a_half(axes: Axes, values: list[float], log: bool) -> None:
    axes.set_ylim(1, 6)
    assert _log_where_wide(axes, pd.Series(values)) == (", log scale" if log else "")
    assert axes.get_yscale() == ("log" if log else "linear")


@pytest.mark.parametrize(
    ("gain", "low", "high", "limits"),
    [
        ([0.2, -0.5], [0.1, -1.0], [0.5, -0.4], (-1.3, 0.8)),  # 0.6 and 1.6 of the largest, 0.5
        ([0.5, -1.0], [NAN, NAN], [NAN, NAN], (-1.3, 0.8)),
        ([0.5], [0.25], [0.5], (-0.55, 0.8)),  # half of the largest below zero, and 0.6 of it
        ([-0.001], [-0.002], [0.001], (-0.011, 0.016)),  # at least 0.01 above zero
    ],
)
def test_the_axis_of_gains_holds_their_intervals_and_both_sides_of_zero(axes: Axes, gain, low, high, limits) -> None:
    axes.set_xlim(1, 4096)
    assert _gain_axis(axes, pd.DataFrame({"gain": gain, "gain_low": low, "gain_high": high}), 256) == ""
    assert axes.get_ylim() == pytest.approx(limits)
    above, below = (text for text in axes.texts if isinstance(text, Annotation))
    assert above.get_text() == "above zero: gains from context longer than in training; at zero: as if cut to L"
    assert (above.xy, above.xyann, above.get_ha()) == ((256, 1), (4, -11), "left")
    assert below.get_text() == "below zero: worse than cut to L = 256"
    assert (below.xy, below.xyann, below.get_ha()) == ((4096, 0), (-3, 5), "right")


@pytest.mark.parametrize(
    ("seeds", "resampled", "note"),
    [
        ([0, 1, 2], "spans", "Bands: 95 % intervals over seeds and documents."),
        ([0, 0, 1], "spans", "Bands: 95 % intervals over spans, which are the same for all encodings."),
        ([0, 0, 0], "spans", "Bands: 95 % intervals over spans, which are the same for all encodings."),
        ([0, 1, 1], "", "Bands: 95 % intervals over documents, which are the same for all encodings."),
    ],
)
def test_bands_are_explained_by_the_seeds(axes: Axes, seeds: list[int], resampled: str, note: str) -> None:
    names = ["b", "b", "b"] if len(set(seeds)) == 3 else ["a", "b", "b"]
    rows = pd.DataFrame({"encoding": names, "seed": seeds, "resampled": resampled})
    assert bands(axes, [], AB, rows) == note


@pytest.mark.parametrize(("count", "banded"), [(6, True), (7, False)])
def test_bands_that_would_hide_each_other_are_left_out(count: int, banded: bool) -> None:
    rows, _ = results({f"e{n}": (1.4 + 0.01 * n, lambda _: 0.0) for n in range(count)})
    drawn = perplexity_by_length(rows).page
    assert len(drawn.axes.collections) == (count if banded else 0)
    words = " ".join(text.get_text().replace("\n", " ") for text in drawn.figure.texts)
    assert ("Bands: 95 %" in words, "No bands" in words) == (banded, not banded)


def gains(**variants: float) -> dict[str, pd.DataFrame]:
    """One point of a gain per baseline."""
    return {name: points(("a", 16, 4.0)).assign(gain=gain) for name, gain in variants.items()}


def test_baselines_have_thin_lines_of_three_kinds_and_are_explained(axes: Axes) -> None:
    note = _draw_baselines(axes, gains(w=1.0, x=2.0, y=3.0), AB)
    assert note == " " + " ".join(
        f"Thin {look} lines: the same models under the baseline {name}."
        for look, name in (("dotted", "w"), ("dash-dotted", "x"), ("dashed", "y"))
    )
    assert [line.get_linestyle() for line in axes.lines] == [":", "-.", "--"]
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.0], [2.0], [3.0]]
    assert {line.get_color() for line in axes.lines} == {AB["a"].color}
    assert _draw_baselines(axes, {}, AB) == ""


def test_baselines_are_the_first_three_with_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gains(full=1.0, crop=0.0, none=NAN, w=1.0, x=2.0, y=-3.0, z=4.0)
    monkeypatch.setattr("poscli.report.figures.pool", lambda rows, protocol, variant: found[variant])
    rows = pd.DataFrame({"protocol": "p", "variant": list(found)})
    other = pd.DataFrame({"protocol": ["o", "q"], "variant": ["unknown", "unknown"]})
    assert list(_baselines(pd.concat([other, rows]), "p")) == ["w", "x", "y"]


@pytest.mark.parametrize(
    ("train_length", "first", "last", "expected"),
    [
        (256, 16, 1024, [16, 32, 64, 128, 256, 512, 1024]),
        (256, 17, 1023, [32, 64, 128, 256, 512]),
        (96, 1, 200, [6, 12, 24, 48, 96, 192]),
        (12, 1, 12, [3, 6, 12]),
        (15, 1, 40, [15, 30]),
        (100, 60, 90, [100]),  # none lies between
        (1, 1, 2**25, [2**n for n in range(24)]),
    ],
)
def test_octaves_are_whole_lengths_down_to_a_sixteenth(train_length, first, last, expected) -> None:
    assert _octaves(train_length, first, last) == expected


# ---- styles


@pytest.mark.parametrize(
    ("ranked", "failed", "background"),
    [
        (10, 0, []),
        (6, 4, []),
        (11, 0, [5, 6, 7, 8]),
        (8, 3, [5, 8, 9, 10]),  # the best five, the worst two with a number; no failed one
        (6, 5, [6, 7, 8, 9, 10]),
        (3, 8, list(range(3, 11))),
    ],
)
def test_of_more_than_ten_the_best_five_and_the_worst_two_are_coloured(
    ranked: int, failed: int, background: list[int]
) -> None:
    names = [f"e{n:02d}" for n in range(ranked + failed)]
    styles = styles_for(names[:ranked], names[ranked:])
    assert [n for n, name in enumerate(names) if styles[name] == BACKGROUND] == background
    assert BACKGROUND.color == FAINT
    strong = [style for style in styles.values() if style.strong]
    assert len({(style.color, style.dash, style.marker, style.filled) for style in strong}) == len(strong)


def test_bands_of_the_accuracy_reach_from_the_low_to_the_high_end_of_its_interval() -> None:
    rows, _, details = task_tables()
    answers, summary = details["answers"], summarize(rows)
    axes = accuracy_by_length(answers, summary, styles=styles_for(*standings(summary))).page.axes
    lines = [line for _, line in by_length(answers).groupby("encoding")]
    bands_of = [each for each in axes.collections if isinstance(each, PolyCollection)]
    assert len(bands_of) == len(lines) == 4
    for band, line in zip(bands_of, lines, strict=True):
        (path,) = band.get_paths()
        corners = np.asarray(path.vertices)
        ends = [corners[corners[:, 0] == length, 1] for length in line["length"]]
        assert [min(each) for each in ends] == pytest.approx(list(line["low"]))
        assert [max(each) for each in ends] == pytest.approx(list(line["high"]))


def test_labels_of_recall_show_the_gain_at_the_largest_distance() -> None:
    """Half a bit is gained on what was read 64 tokens ago, and a quarter of one on what was read 128 ago or more."""
    hit = {"run_id": "a-0", "encoding": "a", "seed": 0, "fingerprint": "f", "train_length": 64, "kind": "hit"}
    hit |= {"ngram": 6, "tokens": 400, "documents": 12, "nll": 1.0}
    bins = [
        hit | {"from": first, "to": 2 * first - 1, "nll_crop": 1 + bits * LN2, "gain": bits * LN2, "gain_low": 0.0}
        for first, bits in ((64, 0.5), (128, 0.25))
    ]
    page = recall_by_distance(pd.DataFrame(bins), styles=AB).page
    page.figure.canvas.draw()
    written = [text.get_text() for text in page.figure.findobj(Text)]
    assert any(text.startswith("a +0.25") for text in written), written
    assert not any(text.startswith("a +0.5") for text in written)
