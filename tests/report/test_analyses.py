"""The analyses of a report on results whose truth is known: spreads, comparisons, protocols, limits, safe lengths."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_pages import against
from fake_results import BEHAVIOUR, LN2, results, units_of
from pieces_task import Pieces

from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.report import build_report
from poscli.report.audit import audit
from poscli.report.comparison import compare_runs, on_corpus, pick
from poscli.report.key_tokens import on_key_tokens
from poscli.report.known_limit import known_limit
from poscli.report.over_seeds import with_intervals
from poscli.report.pooling import pool
from poscli.report.recalled import recalled
from poscli.report.sections import split
from poscli.report.summary import summarize
from poscli.report.verdicts import BREAKS, HOLDS, MAY_USE_CONTEXT, UNCLEAR, USES_CONTEXT, verdict
from poscli.report.why import broken_by
from poscli.runs.schema import POSITION_COLUMNS, frame
from poscli.statistics.comparison import BETTER, WITHIN_NOISE, WORSE, LossTable
from poscli.statistics.power import detectable_difference
from poscli.system.errors import UsageError

NOTHING = frame([], POSITION_COLUMNS)


def three_seeds(noise: float = 0.002) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and units of three seeds whose losses differ by about `noise` nats."""
    rows, _ = results(seeds=(0, 1, 2))
    rows["nll"] += rows["seed"].map({0: -noise, 1: 0.0, 2: noise})
    rows["bpb"], rows["ppl"] = rows["nll"] / LN2, np.exp(rows["nll"])
    return rows, units_of(rows)


def flat(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in which longer windows change nothing for alibi."""
    same = rows["encoding"] == "alibi"
    base = rows[same & (rows["ratio"] == 1)].groupby("protocol")["nll"].first()
    rows.loc[same, "nll"] = rows.loc[same, "protocol"].map(base)
    rows.loc[same & rows["gain"].notna(), "gain"] = 0.0
    return rows


def test_a_flat_curve_without_gain_holds_and_does_not_use_context() -> None:
    rows, _ = results(seeds=(0, 1, 2))
    rows = flat(rows)
    (group,) = split(rows, NOTHING, {"units": units_of(rows)})
    summary = summarize(group.rows).set_index("encoding")
    assert summary.loc["alibi", "verdict"] == HOLDS
    assert summary.loc["t5(buckets=32)", "gain_bpb"] < 0
    assert summary.loc["rope", "verdict"] == BREAKS


def test_a_gain_needs_three_seeds_to_be_called_use_of_context() -> None:
    for seeds, word in (((0,), MAY_USE_CONTEXT), ((0, 1), MAY_USE_CONTEXT), ((0, 1, 2), USES_CONTEXT)):
        rows, _ = results({"a": (1.4, lambda octaves: 0.02 * octaves), "b": BEHAVIOUR["rope"]}, seeds=seeds)
        (group,) = split(rows, NOTHING, {"units": units_of(rows)})
        assert summarize(group.rows).set_index("encoding").loc["a", "verdict"] == word


@pytest.mark.parametrize(
    ("gain", "low", "high", "word"),
    [(0.1, 0.01, 0.2, USES_CONTEXT), (0.0, -0.009, 0.1, HOLDS), (0.0, -0.02, 0.1, UNCLEAR), (-1.0, -2.0, -0.5, BREAKS)],
)
def test_what_an_interval_says(gain: float, low: float, high: float, word: str) -> None:
    assert verdict(gain, low, high) == word


def test_intervals_over_seeds_hold_the_mean_and_grow_with_the_spread() -> None:
    widths = []
    for noise in (0.002, 0.02):
        rows, units = three_seeds(noise)
        points = pool(with_intervals(rows, LossTable(units)), "sliding").dropna(subset=["nll"])
        assert (points["ppl_low"] < points["ppl"]).all()
        assert (points["ppl"] < points["ppl_high"]).all()
        widths.append(np.log(points["ppl_high"] / points["ppl_low"]).mean())
    assert widths[1] > widths[0]
    # half of it is at least Student's interval over three seeds: 4.303 standard errors of 0.02 / sqrt(3)
    assert widths[1] / 2 > 4.303 * 0.02 / math.sqrt(3)


def test_fewer_than_three_seeds_have_no_interval_over_seeds() -> None:
    rows, _ = results(seeds=(0, 1))
    made = with_intervals(rows, LossTable(units_of(rows)))
    assert made["seeds_nll_low"].isna().all()
    assert made["seeds_gain_high"].isna().all()


def test_the_safe_length_ends_where_harm_cannot_be_excluded() -> None:
    shapes = {
        "early": (1.4, lambda octaves: 0.0 if octaves < 1.5 else -0.2),  # harm from 4x on
        "never": (1.4, lambda octaves: -0.2 if octaves else 0.0),
        "safe": (1.4, lambda octaves: 0.001 * octaves),
        "relapse": (1.4, lambda octaves: -0.2 if octaves == 2 else 0.0),  # harm at 4x, none at 8x
    }
    rows, _ = results(shapes, seeds=(0, 1, 2))
    (group,) = split(rows, NOTHING, {"units": units_of(rows)})
    safe = summarize(group.rows).set_index("encoding")["safe"]
    assert safe.to_dict() == {"early": 2.0, "never": 1.0, "safe": 16.0, "relapse": 2.0}
    one = results(shapes)[0]
    (group,) = split(one, NOTHING, {"units": units_of(one)})
    assert summarize(group.rows)["safe"].isna().all()  # one seed is marked, not guessed


def test_comparisons_say_better_worse_or_within_noise() -> None:
    shapes = {"base": (1.40, lambda _: 0.0), "twin": (1.4005, lambda _: 0.0), "good": (1.30, lambda _: 0.0)}
    shapes |= {"bad": (1.50, lambda _: 0.0)}
    rows, _ = results(shapes, seeds=(0, 1, 2))
    draw = np.random.default_rng(0)
    jitter = {run: draw.normal(0, 0.004) for run in rows["run_id"].unique()}
    rows["nll"] += rows["run_id"].map(jitter)
    table = against(rows, LossTable(units_of(rows)), "base").set_index(["encoding", "length"])
    at = table.xs(4096, level="length")
    assert at["word"].to_dict() == {"good": BETTER, "bad": WORSE, "twin": WITHIN_NOISE}
    assert at.loc["good", "difference"] == pytest.approx(-0.1 / LN2, abs=0.02)
    assert (at["low"] < at["difference"]).all()
    assert (at["difference"] < at["high"]).all()
    assert (table["p_holm"] >= table["p"]).all()
    assert (table["seeds"] == 3).all()


def test_single_runs_are_compared_over_documents() -> None:
    rows, _ = results({"a": (1.40, lambda _: 0.0), "b": (1.45, lambda _: 0.0)})
    table = compare_runs(pick(rows, "a-"), pick(rows, "b-"), LossTable(units_of(rows)), "sliding")
    assert list(table["length"]) == [256, 512, 1024, 2048, 4096]
    assert table["difference"].to_numpy() == pytest.approx(-0.05 / LN2)
    assert (table["word"] == BETTER).all()
    assert (table["seeds"] == 1).all()


def test_an_encoding_may_be_spelled_otherwise(tmp_path: Path) -> None:
    rows, _ = results({"rope(base=500000.0)": (1.40, lambda _: 0.0), "alibi": (1.45, lambda _: 0.0)})
    units = units_of(rows)
    assert set(pick(rows, "rope( base=500000 )")["encoding"]) == {"rope(base=500000.0)"}
    report = build_report(rows, NOTHING, tmp_path, details={"units": units}, baseline="rope(base=5e5)")
    assert report.sections[0].analyses[0].title == "Compared with rope(base=500000.0)"
    with pytest.raises(UsageError, match=r"no evaluated run is called 'rope\(base=4\)'"):
        pick(rows, "rope(base=4)")


def test_runs_that_cannot_be_compared_are_refused() -> None:
    rows, _ = results({"a": (1.40, lambda _: 0.0), "b": (1.45, lambda _: 0.0)})
    other, _ = results({"a": (1.40, lambda _: 0.0)}, corpus="text:books", fingerprint="77aa77aa77aa")
    both = pd.concat([rows, other], ignore_index=True)
    units = LossTable(units_of(both))
    with pytest.raises(UsageError, match=r"evaluated on stdlib \(3f2a9c41\), and on text:books \(77aa77aa\)"):
        compare_runs(pick(both, "b"), other, units, "sliding")
    assert len(compare_runs(pick(both, "a"), pick(both, "b"), units, "sliding")) == 5  # on the text that both have
    second = pd.concat([both, other.assign(encoding="b", run_id="b-77a2560")], ignore_index=True)
    with pytest.raises(
        UsageError, match=r"both were evaluated on stdlib \(3f2a9c41\) and text:books \(77aa77aa\); choose one with"
    ):
        compare_runs(pick(second, "a"), pick(second, "b"), units, "sliding")
    for wanted in ("text:books", "text"):
        chosen = on_corpus(second, wanted)
        assert set(chosen["corpus"]) == {"text:books"}
        assert len(compare_runs(pick(chosen, "a"), pick(chosen, "b"), LossTable(units_of(second)), "sliding")) == 5
    with pytest.raises(UsageError, match="--corpus txt: no run was evaluated on it: there are: stdlib, text:books"):
        on_corpus(second, "txt")
    more = second.replace({"stdlib": "text:news"})
    with pytest.raises(UsageError, match="--corpus text begins the names of text:books and text:news; give more"):
        on_corpus(more, "text")
    short = results({"a": (1.40, lambda _: 0.0), "b": (1.45, lambda _: 0.0)}, train_length=128)[0]
    with pytest.raises(UsageError, match="trained at several lengths; name single runs by their ids"):
        compare_runs(*(pick(pd.concat([rows, short], ignore_index=True), name) for name in "ab"), units, "sliding")
    with pytest.raises(UsageError, match="--protocol answer: these runs have fixed, nonoverlapping, sliding"):
        compare_runs(pick(rows, "a"), pick(rows, "b"), units, "answer")
    with pytest.raises(UsageError, match="no evaluated run is called 'c'"):
        pick(rows, "c")
    later, _ = results({"c": (1.4, lambda _: 0.0), "d": (1.4, lambda _: 0.0)}, seeds=(0, 1))
    apart = later[(later["encoding"] == "c") & (later["seed"] == 0) | (later["encoding"] == "d") & (later["seed"] == 1)]
    one, two = pick(later, "c"), pick(later, "d")
    with pytest.raises(UsageError, match="no seed with a loss and no text in common; train both with the same --seed"):
        compare_runs(one.assign(seed=one["seed"] + 5), two, LossTable(units_of(later)), "sliding")
    assert (
        len(compare_runs(pick(apart, "c"), pick(apart, "d"), LossTable(units_of(apart)), "sliding")) == 5
    )  # single runs
    longer, _ = results({"c": (1.4, lambda _: 0.0)}, lengths=[300])
    with pytest.raises(UsageError, match="share no length"):
        compare_runs(pick(rows, "a"), longer, units, "sliding")


def test_losses_on_other_amounts_of_text_are_compared_as_if_it_were_as_much() -> None:
    """10 nats on 100 bytes of a document, and 6 on 50 of them, which are 12 on 100; by bytes of the first."""
    made = {"protocol": "sliding", "length": 512, "variant": "full", "unit": "a"}
    rows = [made | {"run_id": "one", "nll": 0.1, "tokens": 100, "bytes": 100}]
    rows += [made | {"run_id": "other", "nll": 0.5, "tokens": 12, "bytes": 50}]
    units = LossTable(pd.DataFrame(rows))
    one, other = (units.losses([run], "sliding", 512, "full") for run in ("one", "other"))
    assert one is not None
    assert other is not None
    assert one.minus(other).tolist() == [[pytest.approx(-2.0)]]
    assert other.minus(one).tolist() == [[pytest.approx(1.0)]]


def test_of_a_single_encoding_no_ranking_is_told() -> None:
    rows, _ = results({"a": (1.40, lambda _: 0.0)})
    assert audit(rows, summarize(rows)) is None


def test_the_audit_names_what_changes_places() -> None:
    rows, _ = results({"a": (1.40, lambda _: 0.0), "b": (1.41, lambda _: 0.0)})
    summary = summarize(rows)
    found = audit(rows, summary)
    assert found is not None
    assert found.answer.startswith("No: under nonoverlapping, sliding and fixed, no two encodings that differ by 0.01")
    early = dict(zip(found.columns[0].cells, found.columns[3].cells, strict=True))
    assert early["sliding"] == "0.000 (0.000 to 0.000)"
    bits = (0.12 - 0.12 / 16) / LN2  # the fake losses fall by so much under nonoverlapping
    assert early["nonoverlapping"] == f"{bits:+.3f} ({bits:+.3f} to {bits:+.3f})"
    swapped = rows.copy()
    where = (swapped["encoding"] == "b") & (swapped["protocol"] == "nonoverlapping")
    swapped.loc[where, "bpb"] -= 0.1
    found = audit(swapped, summary)
    assert found is not None
    assert "under nonoverlapping, other than under sliding, these change places: a with b" in found.answer
    agreement = dict(zip(found.columns[0].cells, found.columns[2].cells, strict=True))
    assert agreement == {"nonoverlapping": "-1.00", "sliding": "1.00", "fixed": "1.00"}


def hits(*rows: tuple[str, int, int, float, float]) -> pd.DataFrame:
    """Rows of recall.csv about tokens that could be copied: (encoding, from, tokens, gain in bits, its lower end)."""
    table = pd.DataFrame(rows, columns=["encoding", "from", "tokens", "gain", "gain_low"])
    nats = {"gain": table["gain"] * LN2, "gain_low": table["gain_low"] * LN2}
    return table.assign(to=2 * table["from"] - 1, kind="hit", train_length=64, ngram=6, **nats)


def test_recall_is_what_is_won_beyond_the_training_length() -> None:
    table = hits(
        ("a", 32, 90, 0.0, 0.0), ("a", 64, 90, 0.5, 0.4), ("a", 128, 90, 0.3, -0.1), ("a", 256, 90, 0.2, 0.1),
        ("b", 32, 90, 0.9, 0.8), ("b", 64, 90, 0.05, 0.01), ("b", 128, 49, 0.9, 0.8),
    )  # fmt: skip
    found = recalled(table, pd.DataFrame({"encoding": ["b", "a", "c"]}))
    assert found is not None
    assert found.answer == "Beyond 64 tokens, text is recalled by a (up to 511 tokens back, +0.500 bits)."
    assert [(column.name, *column.cells) for column in found.columns] == [
        ("encoding", "b", "a"),
        ("32 to 63 (90)", "+0.900", "0.000"),
        ("64 to 127 (90)", "+0.050", "+0.500"),
        ("128 to 255 (90)", "-", "+0.300"),  # 49 tokens are too few
        ("256 to 511 (90)", "-", "+0.200"),
    ]
    nothing = recalled(table[table["encoding"] == "b"], pd.DataFrame({"encoding": ["b"]}))
    assert nothing is not None
    assert nothing.answer.startswith("No: nothing read 64 tokens ago or more is predicted 0.1 bits or more better")
    assert recalled(table.assign(kind="miss"), pd.DataFrame({"encoding": ["a"]})) is None


def gained(gains: dict[str, tuple[float, float]]) -> pd.DataFrame:
    """Rows of eval.csv at 16x with these context gains in bits per byte, of the model and of it under a window."""
    rows, _ = results({name: (1.5, lambda _: 0.0) for name in gains})
    rows = rows[rows["variant"].isin(["full", "crop", "window"])]
    for name, (own, windowed) in gains.items():
        for variant, gain in (("full", own), ("window", windowed)):
            at = (rows["encoding"] == name) & (rows["variant"] == variant)
            rows.loc[at, "gain"] = gain * LN2
    return rows


def attributed(name: str, seed: int, full: float, **harms: float) -> list[dict]:
    """Rows of why/attribution.csv, harms in bits; one that is not a number is void."""
    rows = [{"change": "base", "harm": 0.0}, {"change": "full", "harm": full}]
    rows += [{"change": change, "harm": harm} for change, harm in harms.items()]
    same = {"encoding": name, "seed": seed, "train_length": 64, "length": 256, "reason": ""}
    return [
        row
        | same
        | {"harm": row["harm"] * LN2, "nll": 1 + row["harm"], "status": "ok" if row["harm"] == row["harm"] else "void"}
        for row in rows
    ]


def test_what_breaks_is_told_by_groups_of_encodings_over_seeds() -> None:
    table = pd.DataFrame(
        [
            *attributed("rope", 0, 0.9, offset=math.nan, stretch=0.9, crowd=0.0),
            *attributed("rope", 1, 1.1, offset=math.nan, stretch=0.9, crowd=0.2),
            *attributed("xpos", 0, 1.0, offset=math.nan, stretch=0.8, crowd=0.1),
            *attributed("alibi", 0, 0.0, offset=math.nan, stretch=0.5, crowd=0.0),
        ]
    )
    gains = {"rope": (-1.0, 0.0), "xpos": (-0.5, -0.4), "alibi": (0.0, 0.0)}
    found = broken_by(table, gained(gains), pd.DataFrame({"encoding": ["alibi", "xpos", "rope"]}))
    assert found is not None
    assert found.answer == "A window of 4x L harms xpos and rope, and does not harm alibi."
    assert found.points[0] == "xpos and rope break by distance, not by number of keys"
    assert found.points[1].startswith("what usually mends that, against distance: distances interpolated")
    assert found.points[2:] == (
        "the baseline window, measured at the longest length, mends rope, and does not mend xpos",
    )
    cells = {column.name: column.cells for column in found.columns}
    assert cells["harm at 4x"] == ("0.000", "+1.00", "+1.00")
    assert cells["position (offset)"] == ("void", "void", "void")
    assert cells["distance (stretch)"] == ("+0.500", "+0.800 (80 %)", "+0.900 (90 %)")
    apart = [*attributed("rope", 0, 0.1, offset=math.nan, stretch=0.3, crowd=0.1)]
    found = broken_by(pd.DataFrame(apart), gained(gains), pd.DataFrame({"encoding": ["rope"]}))
    assert found is not None
    assert found.points[0] == "rope is harmed by number of keys, not by distance"
    assert found.columns[3].cells == ("+0.300 (open)",)
    assert cells["number of keys (crowd)"] == ("0.000", "+0.100 (10 %)", "+0.100 (10 %)")


def test_a_harm_too_small_to_explain_has_no_shares() -> None:
    """A window that costs a thousandth of a bit is not broken by three times as much."""
    rows = pd.DataFrame(attributed("rope", 0, 0.001, offset=0.002, stretch=0.003, crowd=0.0))
    found = broken_by(rows, gained({"rope": (0.0, 0.0)}), pd.DataFrame({"encoding": ["rope"]}))
    assert found is not None
    assert [column.cells for column in found.columns[1:]] == [("+0.001",), ("+0.002",), ("+0.003",), ("0.000",)]
    assert found.points == ()


def judged(name: str, seed: int, kind: str, tokens: int, gain: float, low: float) -> dict:
    """A row of why/key_tokens.csv, in bits."""
    nats = {"nll": LN2, "nll_crop": (1 + gain) * LN2, "gain": gain * LN2, "gain_low": low * LN2, "gain_high": LN2 * 9}
    nats["nll"] = nats["nll"] if gain == gain else math.nan
    return {"encoding": name, "seed": seed, "kind": kind, "tokens": tokens} | nats


def test_key_tokens_tell_who_predicts_what_needs_long_context() -> None:
    table = pd.DataFrame(
        [
            judged("a", 0, "key", 60, 3.0, 2.0),
            judged("a", 1, "key", 60, 5.0, 4.0),
            judged("a", 0, "other", 900, 0.02, 0.0),
            judged("b", 0, "key", 60, 0.1, -0.1),
            judged("b", 0, "other", 900, 0.0, 0.0),
            judged("c", 0, "key", 3, math.nan, math.nan),
        ]
    )
    summary = pd.DataFrame({"encoding": ["b", "a", "c", "d"]})
    found = on_key_tokens(table, summary)
    assert found is not None
    assert found.answer == "Longer context helps on them with a; nothing is shown to be won by b."
    assert [column.cells for column in found.columns[:4]] == [
        ("b", "a", "c"), ("60", "60", "3"), ("1.10", "5.00", "-"), ("1.00", "1.00", "-"),
    ]  # fmt: skip
    assert found.columns[4].cells == ("+0.100 [-0.100, +9.00]", "+4.00 [+3.00, +9.00]", "-")
    assert found.columns[5].cells == ("0.000", "+0.020", "-")
    few = on_key_tokens(table[table["encoding"] == "c"], summary)
    assert few is not None
    assert few.answer == "The judge found too few key tokens to say."
    assert on_key_tokens(table[:0], summary) is None


def test_a_fault_of_an_encoding_is_told_even_if_one_seed_shows_it() -> None:
    rows = [*attributed("a", 0, 0.0, offset=0.0), *attributed("a", 1, 0.0, offset=0.5)]
    rows[-1] |= {"status": "fault", "reason": "by definition nothing may change, but it does"}
    found = broken_by(pd.DataFrame(rows), gained({"a": (0.0, 0.0)}), pd.DataFrame({"encoding": ["a"]}))
    assert found is not None
    assert found.answer == "A window of 4x L does not harm a."
    assert found.points == ("a has a fault: by definition nothing may change, but it does",)


def test_the_distance_to_a_known_optimum() -> None:
    """The optimum falls by 0.1 nats per doubling. One encoding wins half of that, the other nothing."""
    rows, _ = results({"half": (1.5, lambda octaves: 0.05 * octaves), "none": (1.6, lambda _: 0.0)})
    octaves = np.log2(rows["ratio"].where(rows["variant"] != "crop", 1.0))
    rows = rows.assign(optimum=1.2 - 0.1 * octaves)
    found = known_limit(rows, summarize(rows))
    assert found is not None
    cells = {column.name: dict(zip(found.columns[0].cells, column.cells, strict=True)) for column in found.columns}
    assert cells["used 4x"] == {"half": "47 %", "none": "0 %"}  # the fake gain of seed 0 is 6 % smaller
    assert float(cells["above the optimum 1x"]["none"]) == pytest.approx((1.6 - 0.02 - 1.2) / LN2, abs=0.01)
    assert "+0.144 at 2x, +0.289 at 4x" in found.answer
    assert found.answer.endswith("At 16x, half wins the largest share of that, 47 %.")
    assert known_limit(results()[0], summarize(results()[0])) is None


def test_where_longer_windows_tell_next_to_nothing_no_share_of_it_is_used() -> None:
    """The optimum falls by a ten-thousandth of a nat per doubling, and rope loses a thousand times that."""
    rows, _ = results({"rope": (1.5, lambda octaves: -0.1 * octaves)})
    octaves = np.log2(rows["ratio"].where(rows["variant"] != "crop", 1.0))
    rows = rows.assign(optimum=1.2 - 1e-4 * octaves)
    found = known_limit(rows, summarize(rows))
    assert found is not None
    assert {column.name: column.cells for column in found.columns if column.name.startswith("used")} == {
        f"used {ratio}x": ("-",) for ratio in (2, 4, 8, 16)
    }
    assert "largest share" not in found.answer


def test_a_report_shows_every_analysis(tmp_path: Path) -> None:
    rows, units = three_seeds()
    report = build_report(rows, NOTHING, tmp_path, details={"units": units}, baseline="alibi")
    (section,) = report.sections
    titles = [analysis.title for analysis in section.analyses]
    assert titles == [
        "Compared with alibi",
        "How sure are these numbers?",
        "Does the ranking at 16x depend on the protocol?",
    ]
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert all(f"### {title}" in page for title in titles)
    assert "safe: the largest multiple of L" in page
    with pytest.raises(UsageError, match="--baseline alib: no run has this encoding"):
        build_report(rows, NOTHING, tmp_path, details={"units": units}, baseline="alib")


def test_what_a_suite_can_tell_apart_is_said_before_it_starts() -> None:
    """More seeds find less; fewer than three say that they stand for themselves only."""
    plan = Plan(Pieces([[1] * 40] * 12), EvaluationSettings(train_length=4, max_len=8, tokens=1000, stride=2))
    few, three, five = (detectable_difference(seeds, plan.documents_compared()) for seeds in (1, 3, 5))
    assert three.startswith("with 3 seeds and 12 documents, a true difference of ")
    assert "for these seeds only" in few
    bits = [float(text.split("difference of ")[1].split()[0]) for text in (three, five)]
    assert 0.02 < bits[1] < bits[0] < 0.2
