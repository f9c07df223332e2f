"""The analyses of a report on results whose truth is known: spreads, comparisons, protocols, limits, safe lengths."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_pages import against
from fake_results import BEHAVIOUR, LN2, results, units_of

from poscli.report import build_report
from poscli.report.analyses import audit
from poscli.report.comparison import compare_runs, on_corpus, pick
from poscli.report.data import Analysis
from poscli.report.groups import split
from poscli.report.pooling import headline, points_of, pool, with_intervals
from poscli.report.summary import summarize
from poscli.report.verdicts import MAY_USE_CONTEXT, USES_CONTEXT
from poscli.runs.schema import POSITION_COLUMNS, frame
from poscli.statistics.comparison import BETTER, WITHIN_NOISE, WORSE, LossTable
from poscli.system.errors import UsageError

NOTHING = frame([], POSITION_COLUMNS)


def three_seeds(noise: float = 0.002) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and units of three seeds whose losses differ by about `noise` nats."""
    rows, _ = results(seeds=(0, 1, 2))
    rows["nll"] += rows["seed"].map({0: -noise, 1: 0.0, 2: noise})
    rows["bpb"], rows["ppl"] = rows["nll"] / LN2, np.exp(rows["nll"])
    return rows, units_of(rows)


def test_a_gain_needs_three_seeds_to_be_called_use_of_context() -> None:
    for seeds, word in (((0,), MAY_USE_CONTEXT), ((0, 1), MAY_USE_CONTEXT), ((0, 1, 2), USES_CONTEXT)):
        rows, _ = results({"a": (1.4, lambda octaves: 0.02 * octaves), "b": BEHAVIOUR["rope"]}, seeds=seeds)
        (group,) = split(rows, NOTHING, {"units": units_of(rows)})
        assert summarize(group.rows).set_index("encoding").loc["a", "verdict"] == word


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


def audited(rows: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    points = {name: points_of(rows, name) for name in dict.fromkeys(rows["protocol"])}
    return audit(points, headline(rows), summary, "bits per byte")


def test_the_audit_names_what_changes_places() -> None:
    rows, _ = results({"a": (1.40, lambda _: 0.0), "b": (1.41, lambda _: 0.0)})
    summary = summarize(rows)
    found = audited(rows, summary)
    assert found is not None
    assert found.answer.startswith("No: under nonoverlapping, sliding and fixed, no two encodings that differ by 0.01")
    early = dict(zip(found.columns[0].cells, found.columns[3].cells, strict=True))
    assert early["sliding"] == "0.000 (0.000 to 0.000)"
    bits = (0.12 - 0.12 / 16) / LN2  # the fake losses fall by so much under nonoverlapping
    assert early["nonoverlapping"] == f"{bits:+.3f} ({bits:+.3f} to {bits:+.3f})"
    swapped = rows.copy()
    where = (swapped["encoding"] == "b") & (swapped["protocol"] == "nonoverlapping")
    swapped.loc[where, "bpb"] -= 0.1
    found = audited(swapped, summary)
    assert found is not None
    assert "under nonoverlapping, other than under sliding, these change places: a with b" in found.answer
    agreement = dict(zip(found.columns[0].cells, found.columns[2].cells, strict=True))
    assert agreement == {"nonoverlapping": "-1.00", "sliding": "1.00", "fixed": "1.00"}
