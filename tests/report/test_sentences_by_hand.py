"""Sentences of a report against numbers worked out by hand from tables of a few rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_pages import summarized
from fake_results import LN2, results
from lines import printed
from scipy import stats

from poscli.data.corpora import bayes, periods_of
from poscli.report import verdicts
from poscli.report.accuracy import answered, by_length, by_place, placed
from poscli.report.analyses import audit, by_period, compared, known_limit, seed_spread
from poscli.report.charts import position_finding
from poscli.report.comparison import AllPairs
from poscli.report.data import Analysis
from poscli.report.groups import split
from poscli.report.pooling import headline, intervals_of, points_of, pool
from poscli.report.recall import recall_points, recalled
from poscli.report.terminal import show_verdicts
from poscli.report.why import broken_by, saturates_at
from poscli.runs.results import Tables
from poscli.runs.schema import DETAILS, POSITION_COLUMNS, frame
from poscli.statistics.comparison import Comparison, LossTable


def columns(analysis: Any) -> dict[str, tuple[str, ...]]:
    assert analysis is not None
    return {column.name: column.cells for column in analysis.columns}


def named(*names: str) -> pd.DataFrame:
    return pd.DataFrame({"encoding": list(names)})


# ---- losses of documents: spreads, intervals over seeds, comparisons

SEED, DOCUMENT = (-0.03, 0.0, 0.06), (-0.2, 0.1, 0.3, -0.2)  # bits per byte: what a seed, and what a document, adds


def of_parts(losses: dict[str, float], seeds: dict[str, Sequence[float]], per_byte: int = 1) -> tuple:
    """Rows and units of losses in bits per byte that are a sum of an encoding's, a seed's and a document's part.

    A token is `per_byte` bytes, so that nats per token are `per_byte` times those per byte.
    """
    rows, _ = results({name: (1.0, lambda _: 0.0) for name in losses}, seeds=(0, 1, 2), lengths=(256, 1024))
    rows = rows[rows["protocol"] != "nonoverlapping"]
    rows = rows.assign(bytes=rows["tokens"] * per_byte)
    made = []
    for row in rows.to_dict("records"):
        for n, part in enumerate(DOCUMENT):
            bits = losses[row["encoding"]] + seeds[row["encoding"]][row["seed"]] + part
            bits += 0.5 if row["variant"] == "crop" and row["length"] == 1024 else 0.0
            own = {name: row[name] for name in DETAILS["units"] if name in row}
            made.append(own | {"unit": str(n), "tokens": 100, "bytes": 100 * per_byte, "nll": bits * LN2 * per_byte})
    units = frame(made, DETAILS["units"])
    keys = ["run_id", "length", "protocol", "variant"]
    means = rows.merge(units.groupby(keys)["nll"].mean().rename("mean").reset_index(), how="left", on=keys)["mean"]
    return rows.assign(nll=means.to_numpy(), bpb=means.to_numpy() / LN2 / per_byte, gain=0.5 * LN2), units


@pytest.mark.parametrize("per_byte", [1, 4])
def test_the_spread_over_seeds_and_over_documents(per_byte: int) -> None:
    twice = tuple(2 * part for part in SEED)
    rows, units = of_parts({"a": 2.0, "b": 2.0}, {"a": SEED, "b": twice}, per_byte)
    analysis = seed_spread(rows, LossTable(units))
    of_seeds, of_documents = np.std(SEED, ddof=1), np.std(DOCUMENT, ddof=1)
    cells = columns(analysis)
    assert cells["over seeds 4x"] == (f"{of_seeds:.3f}", f"{2 * of_seeds:.3f}")
    assert cells["over documents 4x"] == (f"{of_documents:.3f}", f"{of_documents:.3f}")
    assert [cell.split()[0] for cell in cells["bits per byte 1x [95 %]"]] == ["2.010", "2.020"]
    assert analysis
    assert analysis.answer == (
        f"3 seeds per encoding. At 4x, seeds of b differ most (standard deviation {2 * of_seeds:.3f} bits per byte), "
        f"those of a least ({of_seeds:.3f})."
    )


def test_an_interval_over_seeds_is_students_where_documents_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DOCUMENT", (0.0, 0.0, 0.0, 0.0))
    rows, units = of_parts({"a": 2.0}, {"a": SEED}, per_byte=4)
    ends = intervals_of(rows, LossTable(units))
    point = pool(rows, "sliding", ends=ends).set_index("length").loc[1024]
    reach = stats.t.ppf(0.975, 2) * np.std(SEED, ddof=1) / math.sqrt(3)
    assert np.log2([point["ppl_low"], point["ppl_high"]]) / 4 == pytest.approx([2.01 - reach, 2.01 + reach])
    gain = pool(rows, "fixed", ends=ends).set_index("length").loc[1024]
    assert gain[["gain_low", "gain_high"]].to_list() == pytest.approx([0.5, 0.5])  # every seed gains as much
    assert {protocol for _, protocol, _, _ in ends} == set(rows["protocol"])
    assert intervals_of(rows[rows["seed"] < 2], LossTable(units)) == {}


def test_seeds_that_disagree_about_the_gain_prove_nothing_under_any_protocol() -> None:
    rows, units = of_parts({"a": 2.0}, {"a": SEED})
    apart = units["seed"].map({0: -0.6, 1: 0.0, 2: 0.8}) * LN2  # a gain of -0.1, 0.5 and 1.3 bits
    units = units.assign(nll=units["nll"] + apart * (units["variant"].eq("crop") & units["length"].eq(1024)))
    tables = Tables(rows.assign(gain_low=0.4 * LN2, gain_high=0.6 * LN2), frame([], POSITION_COLUMNS), {"units": units})
    (group,) = split(tables.rows, tables.positions, tables.details)
    gains = [
        pool(group.rows, protocol, ends=group.ends).set_index("length").loc[1024] for protocol in ("sliding", "fixed")
    ]
    assert gains[0]["gain_low"] == gains[1]["gain_low"] < 0 < gains[1]["gain_high"] == gains[0]["gain_high"]
    assert verdicts.UNCLEAR in printed(lambda console: show_verdicts(tables, console), 160)


# ---- right answers


def episodes(*bins: tuple[str, int, int, int], seed: int = 0) -> pd.DataFrame:
    """Rows of answers.csv in windows of twice L: (encoding, start of the bin, tokens, of which right)."""
    table = pd.DataFrame(bins, columns=["encoding", "from", "tokens", "right"])
    same = {"seed": seed, "train_length": 64, "length": 128, "unit": "0", "by": "depth", "chance": 0.1}
    return table.assign(run_id=table["encoding"] + f"-{seed}", to=table["from"] + 19, **same)


@pytest.mark.parametrize(
    ("right", "places", "seeds"),
    [
        (5, "Most for a, whose accuracy lies between 0.000 and 0.050.", "seeds of a differ most (0.000 to 0.050)."),
        (
            4,
            "No: the accuracies of each encoding differ by less than 0.05.",
            "the seeds of each encoding differ by less than 0.05.",
        ),
    ],
)
def test_differences_of_accuracy_are_told_from_0_05_on_and_bins_shown_from_fifty_tokens_on(
    right: int, places: str, seeds: str
) -> None:
    summary = named("b", "a").assign(effective=[0.0, 2.0], effective_low=[0.0, 1.0], effective_high=2.0)
    table = episodes(("a", 0, 100, 0), ("a", 20, 100, right), ("a", 40, 49, 49), ("b", 0, 50, 25))
    analysis = placed(table, by_place(table), summary)
    assert columns(analysis) == {
        "encoding": ("b", "a"), "0 to 20 %": ("0.500", "0.000"), "20 to 40 %": ("-", f"0.0{right}0"),
    }  # fmt: skip
    assert analysis
    assert analysis.answer == places
    assert placed(table[:1], by_place(table[:1]), summary) is None
    one = table[:1]
    both = pd.concat([one, episodes(("a", 0, 100, right), seed=1)])
    analysis = answered(both, by_length(both), summary)
    assert analysis.answer == f"Chance is 0.100. At 2x, {seeds}"
    assert columns(analysis)["seeds at 2x"] == (f"0.000 to 0.0{right}0",)
    analysis = answered(one, by_length(one), summary)
    assert list(columns(analysis)) == ["encoding", "2x [95 %]", "effective"]
    assert columns(analysis)["effective"] == ("2x (128) [1x, 2x]",)
    assert "interval over episodes;" in analysis.legend[0]


# ---- compared with one


def test_what_is_better_and_worse_is_named_with_the_best_and_the_worst() -> None:
    """Ten encodings gain from 0.01 to 0.1 bits, two lose, one has no result, and one is not in the section."""
    found = {f"e{n}": -0.01 * (n + 1) for n in range(10)} | {"w0": 0.2, "w1": 0.3, "lost": math.nan}
    names = ("base", *found)
    each = [Comparison(d, d - 0.005, d + 0.005, 1e-6, seeds=3, documents=12) for d in found.values()]
    each[-1] = Comparison()
    pairs = [each[one - 1] if other == 0 else Comparison() for one in range(len(names)) for other in range(one)]
    points: Any = [SimpleNamespace(length=128, ratio=2.0)]
    of_losses, of_answers = (
        compared(AllPairs(names, (128,), tuple(pairs), more), points, "base", "bits per byte", of_answers=more)
        for more in (False, True)
    )
    assert of_losses
    assert of_answers
    assert of_losses.answer == (
        "At 2x, e9, e8, e7, e6, e5, e4, e3, e2 and 2 more are better than base (e9 by 0.100 bits per byte); w0 and w1 "
        "are worse than base (w1 by 0.300 bits per byte)."
    )
    assert of_answers.answer.startswith("At 2x, w1 and w0 are better than base (w1 by 0.300 of the answers); e0, e1, ")
    assert of_answers.answer.endswith(" and 2 more are worse than base (e9 by 0.100 of the answers).")
    assert columns(of_losses)["2x"][-2:] == ("+0.300 [+0.295, +0.305] worse", "-")
    assert "correction for 12 comparisons" in of_losses.legend[1]
    assert len(of_losses.legend) == 3
    two = AllPairs(("base", "a"), (128,), (Comparison(-0.1, -0.2, 0.1, 0.5, seeds=2, documents=12),))
    analysis = compared(two, points, "base", "bits per byte", of_answers=False)
    assert analysis
    assert analysis.answer == "At 2x, a is within noise of base."
    assert analysis.legend[-1] == "fewer than 3 seeds: intervals and tests are over documents only"
    assert compared(two, points, "b", "bits per byte", of_answers=False) is None
    assert compared(AllPairs(("base",), (128,), ()), points, "base", "bits per byte", of_answers=False) is None


# ---- recall


def hits(*rows: tuple[str, int, int, float, float]) -> pd.DataFrame:
    """Rows of recall.csv about tokens that could be copied: (encoding, from, tokens, gain in bits, its lower end)."""
    table = pd.DataFrame(rows, columns=["encoding", "from", "tokens", "gain", "gain_low"])
    nats = {"gain": table["gain"] * LN2, "gain_low": table["gain_low"] * LN2}
    nats["gain_high"] = 2 * nats["gain"] - nats["gain_low"]
    return table.assign(to=2 * table["from"] - 1, kind="hit", train_length=64, ngram=6, **nats)


def test_text_is_recalled_as_far_as_the_last_bin_that_is_sure() -> None:
    """Of `a`, the farthest bin may be chance, and of `b`, it is too small; the largest gains are not sure either."""
    table = hits(
        ("a", 64, 90, 0.3, 0.2), ("a", 128, 50, 0.4, 0.1), ("a", 256, 90, 0.9, -0.1),
        ("b", 64, 90, 0.6, 0.5), ("b", 128, 90, 0.09, 0.05), ("b", 32, 90, 2.0, 1.9),
        ("c", 64, 90, 0.8, -0.2), ("d", 64, 49, 0.8, 0.7),
    )  # fmt: skip
    analysis = recalled(table, recall_points(table), named("a", "b", "c", "d"))
    assert analysis
    assert analysis.answer == (
        "Beyond 64 tokens, text is recalled by b (up to 127 tokens back, at best +0.600 bits) and a (up to 255 tokens "
        "back, at best +0.400 bits)."
    )
    assert columns(analysis)["64 to 127 (90)"][:2] == ("+0.300 [+0.200, +0.400]", "+0.600 [+0.500, +0.700]")


def test_intervals_of_recall_are_over_seeds_too_from_three_on() -> None:
    """Three seeds that are as sure of themselves as one, and differ by 0.1: Student's reach is added in squares."""
    gains = (0.2, 0.3, 0.4)
    points = recall_points(pd.concat([hits(("a", 64, 90, gain, gain - 0.1)) for gain in gains]))
    reach = math.hypot(0.1, stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3))
    assert points.iloc[0][["gain", "low", "high"]].to_list() == pytest.approx([0.3, 0.3 - reach, 0.3 + reach])
    two = recall_points(pd.concat([hits(("a", 64, 90, gain, gain - 0.1)) for gain in gains[:2]]))
    assert two.iloc[0][["gain", "low", "high"]].to_list() == pytest.approx([0.25, 0.15, 0.35])


# ---- saturation


def excesses(*seeds: Mapping[int, tuple[float, float]]) -> pd.DataFrame:
    """Rows of saturation.csv: for each seed, by window, bits above the best window and half of the interval."""
    lines = [(seed, window, *numbers) for seed, each in enumerate(seeds) for window, numbers in each.items()]
    table = pd.DataFrame(lines, columns=["seed", "window", "excess", "half"])
    bits = {"nll": 1 + table["excess"], "excess": table["excess"]}
    bits |= {"excess_low": table["excess"] - table["half"], "excess_high": table["excess"] + table["half"]}
    return table.assign(**{name: LN2 * values for name, values in bits.items()})


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ([{16: (0.3, 0.01), 32: (0.1, 0.01), 64: (0.0, 0.0)}], (64, 64, 64)),
        ([{16: (0.3, 0.01), 32: (0.005, 0.01), 64: (0.0, 0.0)}], (32, 32, 64)),  # perhaps only with 64
        ([{16: (0.02, 0.015), 32: (0.005, 0.001), 64: (0.0, 0.0)}], (32, 16, 32)),  # perhaps already with 16
        ([{16: (0.0, 0.0), 32: (0.2, 0.01), 64: (0.4, 0.01)}], (16, 16, 16)),
        ([{16: (0.005, 0.001), 32: (0.2, 0.01), 64: (0.0, 0.0)}], (16, 16, 64)),  # 16 is near, but not all up to 64 are
        ([{16: (0.02, 0.001), 32: (e, 0.001), 64: (0.0, 0.0)} for e in (0.0, 0.008, 0.016)], (32, 32, 64)),
        ([{16: (0.3, math.nan), 32: (0.1, math.nan), 64: (0.0, 0.0)}], (64, math.nan, math.nan)),
    ],
)
def test_where_saturation_may_begin_and_where_it_is_sure(seeds, expected) -> None:
    assert saturates_at(excesses(*seeds)) == pytest.approx(expected, nan_ok=True)


# ---- tokens that need context, and texts of known limit


def test_the_share_that_is_used_of_what_the_longer_window_tells() -> None:
    """At 4x the optimum falls from 1.2 to 1.0 nats per token of two bytes; `a` wins 0.05 of that, `b` loses 0.1."""
    rows, _ = results({"a": (1.5, lambda _: 0.0), "b": (1.5, lambda _: 0.0)}, lengths=(256, 1024))
    rows = rows[rows["protocol"] == "fixed"].assign(bytes=rows["tokens"] * 2)
    long = (rows["length"] == 1024) & (rows["variant"] != "crop")
    won = rows["encoding"].map({"a": 0.05, "b": -0.1})
    rows = rows.assign(optimum=np.where(long, 1.0, 1.2), gain=won, nll=np.where(long, 1.4, 1.5))
    analysis = known_limit(rows, summarized(rows))
    cells = columns(analysis)
    order = cells["encoding"]
    assert dict(zip(order, cells["used 4x"], strict=True)) == {"a": "25 %", "b": "-50 %"}
    assert set(cells["above the optimum 4x"]) == {f"{0.4 / LN2 / 2:.2f}"}
    assert analysis
    assert analysis.answer == (
        f"In bits per byte, a perfect model would win {0.2 / LN2 / 2:+.3f} at 4x by reading beyond L. "
        "At 4x, a wins the largest share of that, 25 %."
    )
    harmed = rows.assign(gain=-0.1)
    assert (known_limit(harmed, summarized(harmed)) or analysis).answer.endswith("At 4x, no encoding wins any of that.")


def test_the_limit_of_readers_that_ignore_positions_is_shown_where_it_is_not_the_optimum() -> None:
    """Of tokens of two bytes: the limits are 0.5 and 1.0 nats, `a` has 0.8, and `b`, which ignores positions, 1.1."""
    rows, _ = results({"a": (0.8, lambda _: 0.0), "b": (1.1, lambda _: 0.0)}, lengths=(256, 1024))
    rows = rows[rows["protocol"] == "fixed"].assign(bytes=rows["tokens"] * 2, optimum=0.5, blind=1.0)
    rows = rows.assign(nll=rows["encoding"].map({"a": 0.8, "b": 1.1}))
    analysis, cells = known_limit(rows, summarized(rows)), columns(known_limit(rows, summarized(rows)))
    above = dict(zip(cells["encoding"], cells["above blind 4x"], strict=True))
    assert above == {"a": f"{-0.2 / LN2 / 2:+.3f}", "b": f"{0.1 / LN2 / 2:+.3f}"}
    assert analysis
    assert analysis.answer.endswith(
        f" At 4x, no model can be better than {0.5 / LN2 / 2:.2f} bits per byte, and no reader that ignores positions "
        f"better than {1.0 / LN2 / 2:.2f}."
    )
    same = known_limit(rows.assign(blind=rows["optimum"]), summarized(rows))
    assert not [head for head in columns(same) if "blind" in head]
    assert same
    assert "positions" not in same.answer


def test_losses_by_octave_of_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four documents: `a` has one loss everywhere, and `b` is better on the three of short periods."""
    monkeypatch.setattr(bayes, "HELD_OUT_DOCUMENTS", 4)
    corpus = "bayes:period(low=8, high=63, noise=0.1, symbols=8)"
    periods = periods_of(corpus)
    assert periods
    assert len(periods) == 4
    rows, units = of_parts({"a": 1.0, "b": 1.0}, {"a": (0, 0, 0), "b": (0, 0, 0)})
    octave = units["unit"].map(lambda unit: int(math.log2(periods[int(unit)])))
    last = octave.max()
    assert octave.nunique() > 1
    bits = 1.5 - 0.25 * (units["encoding"].eq("b") & octave.lt(last))
    analysis = by_period(rows.assign(corpus=corpus), LossTable(units.assign(nll=bits * LN2)), named("a", "b"))
    cells = columns(analysis)
    starts = {int(math.log2(int(head.split()[0]))): head.rsplit(" ", 1)[0] for head in cells if head != "encoding"}
    assert set(starts) == set(octave)
    for n, octave_name in starts.items():
        for length in ("1x", "4x"):
            assert cells[f"{octave_name} {length}"] == ("1.500", "1.500" if n == last else "1.250")
    assert analysis
    assert analysis.answer == (
        "At 1x, b has the lowest loss where periods are shortest, and a where they are longest. "
        "At 4x, b has the lowest loss where periods are shortest, and a where they are longest."
    )
    everywhere = 1.5 - 0.25 * units["encoding"].eq("b")
    analysis = by_period(rows.assign(corpus=corpus), LossTable(units.assign(nll=everywhere * LN2)), named("a", "b"))
    assert analysis
    assert analysis.answer.startswith(
        "At 1x, b has the lowest loss where periods are shortest and where they are longest. At 4x"
    )
    assert by_period(rows, LossTable(units), named("a", "b")) is None
    assert by_period(rows.assign(corpus="bayes:recall"), LossTable(units), named("a", "b")) is None


# ---- protocols


def audited(rows: pd.DataFrame, summary: pd.DataFrame) -> Analysis:
    points = {name: points_of(rows, name) for name in dict.fromkeys(rows["protocol"])}
    analysis = audit(points, headline(rows), summary, "bits per byte")
    assert analysis is not None
    return analysis


def test_the_audit_names_what_changes_places() -> None:
    rows, _ = results({"a": (1.40, lambda _: 0.0), "b": (1.41, lambda _: 0.0)})
    summary = summarized(rows)
    analysis = audited(rows, summary)
    start = "No: under nonoverlapping, sliding and fixed, no two encodings that differ by 0.01"
    assert analysis.answer.startswith(start)
    early = dict(zip(analysis.columns[0].cells, analysis.columns[3].cells, strict=True))
    assert early["sliding"] == "0.000 (0.000 to 0.000)"
    bits = (0.12 - 0.12 / 16) / LN2  # the fake losses fall by so much under nonoverlapping
    assert early["nonoverlapping"] == f"{bits:+.3f} ({bits:+.3f} to {bits:+.3f})"
    swapped = (rows["encoding"] == "b") & (rows["protocol"] == "nonoverlapping")
    analysis = audited(rows.assign(bpb=rows["bpb"] - 0.1 * swapped), summary)
    assert "under nonoverlapping, other than under sliding, these change places: a with b" in analysis.answer
    agreement = dict(zip(analysis.columns[0].cells, analysis.columns[2].cells, strict=True))
    assert agreement == {"nonoverlapping": "-1.00", "sliding": "1.00", "fixed": "1.00"}
    two = audited(rows[rows["protocol"] != "nonoverlapping"], summary)  # two protocols are enough
    assert two.columns[0].cells == ("sliding", "fixed")


def test_the_end_of_a_window_names_the_worst_encoding_only_beside_another() -> None:
    bins = pd.DataFrame({"encoding": ["alibi", "rope"], "length": 4096, "bits": [2.0, 5.0]})
    said = "At the end of the window alibi needs 2.00 bits per byte"
    assert position_finding(bins, {}, "bits per byte") == f"{said}, rope 5.00."
    assert position_finding(bins[:1], {}, "bits per byte") == f"{said}."


def test_the_share_of_a_harm_lies_within_its_interval_where_seeds_are_harmed_unequally() -> None:
    """Of 0.1 and 2 nats, a change explains 0.1 and 0.2: 0.3 / 2.1, each share known to 2 % of its own whole."""
    rows, reach = [], (("low", -0.02), ("high", 0.02))
    for seed, harms in enumerate([(0.0, 0.1, 0.1), (0.0, 2.0, 0.2)]):
        for change, harm in zip(("base", "full", "offset"), harms, strict=True):
            numbers = {"nll": 1 + harm, "harm": harm, "share": harm / harms[1]}
            ends = {f"{name}_{end}": numbers[name] + by for name in ("harm", "share") for end, by in reach}
            named = {"run_id": str(seed), "encoding": "rope", "seed": seed, "change": change, "status": "ok"}
            rows.append(named | {"reason": "", "train_length": 64, "length": 256} | numbers | ends)
    analysis = broken_by(pd.DataFrame(rows), {"full": ()}, pd.DataFrame({"encoding": ["rope"]}))
    assert "+0.216 (14 % [12, 16])" in columns(analysis)["position (offset)"]
