"""How long a window may be: what is proven of single lengths, by hand and in simulations of known truth."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from fake_pages import summarized
from fake_results import results
from toys import first

from poscli.report.accuracy import by_length
from poscli.report.reach import effective_interval, effective_ratio, proven_lengths, safety
from poscli.statistics import crossed
from poscli.statistics.intervals import many_differences


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer resamples: the ends of intervals are noisier, their coverage hardly changes."""
    monkeypatch.setattr(crossed, "RESAMPLES", 300)


@pytest.mark.parametrize(
    ("lows", "highs", "safe", "harmful", "said"),
    [
        ([0.0, -0.009], [0.5, 0.0], 4.0, math.nan, "proven safe to 4x"),
        ([-0.009, -0.3], [-0.002, -0.01], 2.0, 4.0, "proven safe to 2x, proven harmful from 4x"),
        ([0.0, -0.01], [0.5, 0.5], 2.0, math.nan, "proven safe to 2x, undecided at 4x"),
        ([-0.3, -0.3], [-0.02, -0.01], 1.0, 2.0, "proven harmful from 2x"),
        ([-0.3, -0.3], [-0.0099, -0.2], 1.0, 4.0, "undecided at 2x, proven harmful from 4x"),
        ([-0.02, 0.1], [0.5, 0.5], 1.0, math.nan, "undecided at 2x and 4x"),
        ([-0.3, -0.3], [-0.2, 0.5], 1.0, math.nan, "undecided at 2x and 4x"),  # harmful at 2x, but not from there on
        ([0.0, math.nan], [0.5, math.nan], 2.0, math.nan, "proven safe to 2x, undecided at 4x"),
    ],
)
def test_a_length_is_proven_safe_or_proven_harmful_or_undecided(lows, highs, safe, harmful, said) -> None:
    """Safe: the interval of the gain excludes a harm of 0.01 here and at all shorter lengths; harmful: it lies at that
    harm or beyond, here and at all longer ones.
    """
    points = pd.DataFrame({"ratio": [2.0, 4.0], "gain_low": lows, "gain_high": highs, "seeds": 3, "failed": 0})
    assert proven_lengths(points) == pytest.approx((safe, harmful), nan_ok=True)
    assert proven_lengths(points.iloc[::-1]) == pytest.approx((safe, harmful), nan_ok=True)
    assert safety(safe, harmful, [1.0, 2.0, 4.0]) == said


def test_lengths_with_failed_seeds_or_too_few_prove_nothing() -> None:
    ends = {"ratio": [2.0, 4.0, 8.0], "seeds": 4, "failed": 0}
    safe = pd.DataFrame(ends | {"gain_low": 0.0, "gain_high": 0.1})
    harmful = pd.DataFrame(ends | {"gain_low": -0.2, "gain_high": -0.1})
    assert proven_lengths(safe.assign(failed=[0, 1, 0])) == pytest.approx((2.0, math.nan), nan_ok=True)
    assert proven_lengths(safe.assign(seeds=[4, 2, 4])) == pytest.approx((2.0, math.nan), nan_ok=True)
    assert proven_lengths(harmful.assign(failed=[0, 2, 0])) == (1.0, 2.0)  # the others are shown to be harmful
    assert proven_lengths(harmful.assign(seeds=[4, 4, 2])) == (1.0, 2.0)
    assert proven_lengths(harmful.assign(seeds=2)) == pytest.approx((math.nan, math.nan), nan_ok=True)
    assert safety(math.nan, math.nan, [1.0, 2.0]) == ""


@pytest.mark.usefixtures("quick")
def test_at_most_one_in_forty_experiments_proves_too_much() -> None:
    """Gains of 3 seeds on 24 documents. The true harm at 4x and 8x is 0.01, the least of consequence: to call 4x safe
    is then wrong, and so is to call 8x harmful if the true harm is the tiniest bit smaller.
    """
    draw, counts, draws = np.random.default_rng(0), np.ones(24), 400
    too_safe = too_harmful = 0
    for _ in range(draws):
        noise = draw.normal(0, 0.003, (3, 1)) + draw.normal(0, 0.01, 24)
        lengths = [gain + noise + draw.normal(0, 0.01, (3, 24)) for gain in (0.02, -0.01, -0.01, -0.1)]
        numbers = many_differences([(values, counts) for values in lengths], test=False)
        ends = {"ratio": [2.0, 4.0, 8.0, 16.0], "seeds": 3, "failed": 0}
        safe, harmful = proven_lengths(pd.DataFrame(ends | {"gain_low": numbers[:, 1], "gain_high": numbers[:, 2]}))
        too_safe += safe >= 4
        too_harmful += harmful <= 8
    allowed = 0.025 * draws + 3 * math.sqrt(0.025 * 0.975 * draws)
    assert too_safe <= allowed
    assert too_harmful <= allowed


# ---- the effective length


def shares(*lines: tuple[float, float, float], failed: int = 0) -> pd.DataFrame:
    """Points of 1x, 2x, 4x, ...: accuracy with the ends of its interval."""
    table = pd.DataFrame(lines, columns=["accuracy", "low", "high"], index=[2.0**k for k in range(len(lines))])
    return table.assign(failed=[0] * (len(lines) - 1) + [failed])


@pytest.mark.parametrize(
    ("points", "low", "effective", "high"),
    [
        (shares((1.0, 0.98, 1.0), (0.95, 0.92, 0.97), (0.4, 0.3, 0.5)), 2, 2, 2),
        (shares((1.0, 0.98, 1.0), (0.92, 0.88, 0.95), (0.4, 0.3, 0.5)), 1, 2, 2),
        (shares((1.0, 0.98, 1.0), (0.88, 0.83, 0.92), (0.87, 0.8, 0.91)), 1, 1, 4),
        (shares((0.85, 0.8, 0.9), (0.8, 0.75, 0.85), (1.0, 0.98, 1.0)), 0, 0, 1),
        (shares((0.5, 0.4, 0.6), (0.8, 0.75, 0.85), (1.0, 0.98, 1.0)), 0, 0, 0),
        (shares((1.0, 0.98, 1.0), (1.0, 0.98, 1.0), (1.0, 0.98, 1.0), failed=1), 2, 2, 2),
        (shares((1.0, math.nan, math.nan), (0.5, math.nan, math.nan)), math.nan, 1, math.nan),
    ],
)
def test_the_interval_goes_from_where_it_is_sure_to_where_it_is_possible(points, low, effective, high) -> None:
    assert effective_ratio(points) == effective
    assert effective_interval(points.iloc[::-1], points.reset_index(names="ratio")) == pytest.approx(
        (low, high), nan_ok=True
    )


def episodes(accuracies: list[float], draw: np.random.Generator, seeds: int = 3, count: int = 128) -> pd.DataFrame:
    """Rows of answers.csv: answers of four tokens; seeds differ by 0.01, and episodes in difficulty."""
    tables = []
    for at, accuracy in enumerate(accuracies):
        ease = draw.beta(9 * accuracy, 9 * (1 - accuracy), count)
        of_seed = np.clip(ease + 0.01 * draw.normal(size=(seeds, 1)), 0, 1)
        right = draw.binomial(4, of_seed)
        run, unit = np.indices(right.shape)
        columns = {"run_id": run.ravel(), "unit": unit.ravel(), "right": right.ravel()}
        tables.append(pd.DataFrame(columns).assign(encoding="a", length=32 << at, train_length=32, tokens=4))
    return pd.concat(tables, ignore_index=True)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("accuracies", "truth", "least"),
    first(2, [([0.98, 0.95, 0.92, 0.87, 0.7], 4, 0.95), ([0.9] * 5, 16, 0.9), ([0.95, 0.89, 0.6, 0.3, 0.1], 1, 0.95)]),
)
def test_intervals_of_effective_lengths_hold_the_truth(accuracies, truth, least) -> None:
    """In the second case, every length is as hard to tell as can be."""
    draw, draws, inside = np.random.default_rng(0), 80, 0
    for _ in range(draws):
        points = by_length(episodes(accuracies, draw))
        low, high = effective_interval(points.set_index("ratio").assign(failed=0), points)
        inside += low <= truth <= high
    assert inside >= draws * least - 2 * math.sqrt(draws * least * (1 - least))


def test_the_summary_has_the_interval_where_single_answers_are_known() -> None:
    rows = results({"a": (1.4, lambda _: 0.0)}, seeds=(0, 1, 2), train_length=32)[0]
    rows = rows.assign(accuracy=rows["ratio"].map({1: 0.99, 2: 0.95, 4: 0.88, 8: 0.5, 16: 0.1}))
    answers = episodes([0.99, 0.95, 0.88, 0.5, 0.1], np.random.default_rng(1))
    answers = answers.assign(run_id=answers["run_id"].map("a-3f232{}".format))
    line = summarized(rows, answers).iloc[0]
    assert (line["effective"], line["effective_low"], line["effective_high"]) == (2, 2, 4)
    line = summarized(rows).iloc[0]
    assert line["effective"] == 2
    assert line[["effective_low", "effective_high"]].isna().all()
