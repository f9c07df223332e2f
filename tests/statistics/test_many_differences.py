"""Many differences at once are those of a plain computation of each, to rounding; so are single ones."""

from __future__ import annotations

import math

import numpy as np
import plain_intervals as plain
import pytest
from scipy.special import stdtr

from poscli.statistics import intervals
from poscli.statistics.crossed import student_below
from poscli.statistics.intervals import Case, many_differences

# Sums of up to 2000 resamples or 10,000 flips in another order: 10,000 roundings of 1e-16, times the factor that widens
# an interval, which for two documents reaches 13.
ROUNDING = 1e-10


def cases(seeds: int, documents: int) -> list[Case]:
    """Random cases, and those at the edge: all zero, all alike, seeds apart without a spread over documents."""
    draw = np.random.default_rng([seeds, documents])
    counts = draw.integers(50, 200, size=documents).astype(float)
    apart = np.arange(1.0, seeds + 1)[:, None] * np.ones(documents)
    shaped = [draw.normal(0.05 * k, 1, (seeds, documents)) + draw.normal(0, 0.3, documents) for k in range(6)]
    return [(values * counts, counts) for values in (*shaped, 0 * apart, 0 * apart + 1, apart)]


@pytest.mark.parametrize(
    ("seeds", "documents"), [(1, 1), (1, 2), (1, 12), (2, 7), (3, 1), (3, 2), (3, 12), (3, 24), (4, 9), (5, 15)]
)
def test_many_differences_are_those_of_single_ones(seeds: int, documents: int) -> None:
    asked = cases(seeds, documents)
    found = many_differences(asked)
    single = [[*plain.two_level_interval(*case)[:3], plain.permutation_test(*case)] for case in asked]
    np.testing.assert_allclose(found, single, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
    for totals, counts in asked:
        whole, expected = intervals.two_level_interval(totals, counts), plain.two_level_interval(totals, counts)
        np.testing.assert_allclose(whole, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
        over = intervals.ratio_interval(totals[0], counts), plain.ratio_interval(totals[0], counts)
        np.testing.assert_allclose(*over, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
    np.testing.assert_array_equal(many_differences(asked, test=False)[:, :3], found[:, :3])


def test_cases_on_different_documents_do_not_mix_and_none_stays_unknown() -> None:
    one, other = cases(3, 12), cases(3, 8)
    mixed = many_differences([one[0], None, other[1], one[2]])
    assert np.isnan(mixed[1]).all()
    np.testing.assert_allclose(mixed[[0, 3]], many_differences([one[0], one[2]]), rtol=ROUNDING)
    np.testing.assert_allclose(mixed[[2]], many_differences([other[1]]), rtol=ROUNDING)


def test_documents_without_tokens_do_not_count() -> None:
    totals, counts = cases(3, 12)[0]
    padded = np.concatenate([totals, np.full((3, 1), 5.0)], axis=1), np.append(counts, 0.0)
    np.testing.assert_allclose(many_differences([padded]), many_differences([(totals, counts)]), rtol=ROUNDING)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7])
def test_student_s_distribution_is_that_of_scipy(degrees: int) -> None:
    t = np.concatenate([np.linspace(-40, 40, 161), [math.inf, -math.inf]])
    finite = np.isfinite(t)
    np.testing.assert_allclose(student_below(t[finite], degrees), stdtr(degrees, t[finite]), rtol=1e-9, atol=1e-15)
