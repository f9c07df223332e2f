"""Confidence intervals and tests for averages over documents and seeds, made for 3 to 20 seeds and 5 to 50 documents.

The model has crossed random effects. S seeds are scored on the same D documents. The value of a seed on a document,
which is its mean loss per token there or a paired difference of such means, is a sum of four terms:

    y[s, d] = truth + seed[s] + document[d] + interaction[s, d]

Tokens of one document are dependent, so the document is the unit. The estimate is sum(totals) / (S sum(counts)), in
which document d has the weight w[d] = counts[d] / sum(counts). Weights are fixed, effects are drawn at random.

- `ratio_interval`: how far could the estimate be off, had other documents been drawn? The seeds stay as they are.
- `two_level_interval`: how far, had other documents and other seeds been drawn?
- `many_differences`, p: would so large a difference between two encodings be a surprise if neither were better?
- `holm`: which of several differences stand, given that some stand out by chance if many are tested?

Two corrections let few documents suffice. The variance over documents is unbiased under unequal weights (Bell and
McCaffrey 2002), and Student's t has n - 1 degrees of freedom, where n = 1 / sum(w^2) is the number of equally long
documents that would tell as much (Kish 1965). In simulations, 95 % intervals over documents hold the truth in 92 to
98 % of draws from 5 documents on, also with heavy tails or moderate skew (a lognormal distribution with sigma 0.5).
Very skewed documents defeat them: with sigma 1 they hold it in 84 % of draws at 5 or 8 documents, and in 88 % at 24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy  # whose parts are loaded when they are used
from numpy.typing import NDArray

from poscli.statistics import FEWEST_DOCUMENTS, FEWEST_SEEDS, UPPER, Triple
from poscli.statistics.crossed import CrossedMeans, sign_patterns

# The search for an end of Fieller's interval: how far from the ratio, in widths of the interval of the numerator, and
# by how many values in how many rounds, which leave 1/4000 of that distance open.
FIELLER_REACH, FIELLER_TRIED, FIELLER_ROUNDS = 4, 17, 3

Case = tuple[NDArray[np.float64], NDArray[np.float64]]  # totals [S, D] and counts [D]


class Interval(NamedTuple):
    """An estimate with its 95 % interval, and the two spreads behind it, in the unit of the values.

    With fewer than three `seeds`, the interval is over documents only: it is about the mean of these very models.
    `seed_sd` is the standard deviation of a seed's mean, NaN for one seed. `document_sd` is the standard deviation of
    what all seeds share of a document's value (of the value itself for one seed), as if documents were equally long.
    """

    estimate: float
    low: float
    high: float
    seeds: int
    documents: int
    seed_sd: float
    document_sd: float


def ratio_interval(totals: NDArray, counts: NDArray) -> tuple[float, float]:
    """The 95 % interval of sum(totals) / sum(counts) over documents `[D]`.

    It is NaN for a single document and for values that are not finite. For a paired comparison, pass the totals of the
    differences. The limits are percentiles of the bootstrap over documents, moved away from the estimate by one factor,
    which makes the bootstrap's standard error unbiased and replaces the normal quantile by Student's. The expanded
    percentile interval (Hesterberg 2015) takes more extreme percentiles to the same end, but resamples of 5 documents
    have none that are extreme enough. BCa limits, stretched alike, cover up to 2 points more if documents are skewed,
    but 3 to 4 points less if tails are heavy, because they take an outlier for skewness.
    """
    totals, counts = totals[counts > 0], counts[counts > 0]
    if len(totals) < 2 or not np.isfinite(totals).all():
        return math.nan, math.nan
    (low,), (high,) = CrossedMeans(totals[None, None], counts).interval()
    return float(low), float(high)


def mean_interval(values: NDArray[np.float64], documents: NDArray[np.int64]) -> tuple[float, float]:
    """The 95 % interval of the mean of `values` `[n]`; NaN for fewer than five documents or a value that is not finite.

    `documents` `[n]` says which document each value comes from. Whole documents are resampled.
    """
    units, unit = np.unique(documents, return_inverse=True)
    if len(units) < FEWEST_DOCUMENTS or not np.isfinite(values).all():
        return math.nan, math.nan
    return ratio_interval(np.bincount(unit, weights=values), np.bincount(unit))


def two_level_interval(totals: NDArray, counts: NDArray) -> Interval:
    """The 95 % interval of sum(totals) / (S sum(counts)) over documents and seeds, from `totals[S, D]`, `counts[D]`.

    Means of seeds differ by the seeds' effect and by the interaction, so Student's t over them covers both, and the
    interaction is taken out of the variance over documents. Two known ways to combine the quantiles of two such parts
    err to either side in simulations with 3 seeds: Cochran (1964) averages them, weighted by the parts' variances, and
    covers 95 to 98 %; Welch (1947) averages degrees of freedom and covers 92 to 96 %. Halfway between, 94 to 97.5 % of
    intervals hold the truth. A bootstrap of seeds and documents (Owen 2007) holds it in 77 % where seeds dominate.
    Every seed needs a finite value on every document: leave failed seeds out beforehand, and say that you did.
    """
    one = CrossedMeans(totals[None], counts)
    low, high = one.interval()
    return Interval(
        float(one.estimate[0]),
        float(low[0]),
        float(high[0]),
        one.count,
        one.documents,
        seed_sd=math.sqrt(one.count * one.seeds[0]),
        document_sd=math.sqrt(one.documents * one.shared[0]),
    )


def many_differences(cases: Sequence[Case | None], *, test: bool = True) -> NDArray[np.float64]:
    """Estimate, low end, high end and p-value of each case, `[n, 4]`; NaN for None, and for p without `test`.

    The interval is that of `two_level_interval`, the p-value that of the permutation test (`CrossedMeans.p_values`).
    Cases on the same documents are computed together.
    """
    groups: dict[tuple[int, bytes], list[int]] = {}
    for at, case in enumerate(cases):
        if case is not None:
            groups.setdefault((len(case[0]), np.ascontiguousarray(case[1]).tobytes()), []).append(at)
    numbers = np.full((len(cases), 4), math.nan)
    for members in groups.values():
        chosen = [case for case in (cases[at] for at in members) if case is not None]
        group = CrossedMeans(np.stack([totals for totals, _ in chosen]), chosen[0][1])
        p = group.p_values() if test else np.full(len(members), math.nan)
        numbers[members] = np.stack([group.estimate, *group.interval(), p], axis=1)
    return numbers


def around(estimate: float, reach: float) -> Triple:
    """An estimate with an interval that reaches equally far to both sides."""
    return estimate, estimate - reach, estimate + reach


def interval_of_seeds(values: NDArray, lows: NDArray, highs: NDArray) -> Triple:
    """The mean of the `values` `[S]` of several seeds with its 95 % interval, from each seed's interval over documents.

    For values whose single documents were not kept. From FEWEST_SEEDS seeds on, the interval is over documents and
    seeds: the squares of the mean distance over documents and of Student's distance over seeds are added (Zou and
    Donner 2008). What seeds and documents make together is in both, so that 97 to 100 % of intervals hold the truth in
    simulations. With fewer seeds, it is over documents. The ends are NaN if those of a seed are.
    """
    mean, count = float(values.mean()), len(values)
    below, above = float((values - lows).mean()), float((highs - values).mean())
    if count < FEWEST_SEEDS:
        return mean, mean - below, mean + above
    of_seeds = float(scipy.special.stdtrit(count - 1, UPPER) * values.std(ddof=1) / math.sqrt(count))
    return mean, mean - math.hypot(below, of_seeds), mean + math.hypot(above, of_seeds)


def ratio_of_means(top: NDArray, bottom: NDArray, counts: NDArray) -> Triple:
    """sum(top) / sum(bottom) with its 95 % interval over documents and seeds, from totals `[S, D]` and counts `[D]`.

    The interval has the ratios r for which that of the mean of top - r bottom includes zero (Fieller 1954). It is NaN
    where that is no interval, because the mean of `bottom` is not surely on one side of zero, and for one document.
    """
    ratio = float(top.sum() / bottom.sum())

    def includes_zero(ratios: NDArray) -> NDArray:
        low, high = CrossedMeans(top - ratios[:, None, None] * bottom, counts).interval()
        return (low <= 0) & (high >= 0)

    ((low,), (high,)) = CrossedMeans(top[None] - ratio * bottom, counts).interval()
    bottom_low, bottom_high = CrossedMeans(bottom[None], counts).interval()
    if not (bottom_low[0] > 0 or bottom_high[0] < 0):
        return ratio, math.nan, math.nan
    ends = []
    for direction in (-1, 1):
        reach = direction * FIELLER_REACH * (high - low) / abs(bottom.sum() / counts.sum() / len(top))
        near, far = ratio, ratio + reach
        for _ in range(FIELLER_ROUNDS):
            tried = np.linspace(near, far, FIELLER_TRIED)
            outside = np.flatnonzero(~includes_zero(tried))
            if not len(outside):
                return ratio, math.nan, math.nan
            near, far = tried[max(0, outside[0] - 1)], tried[outside[0]]
        ends.append(float((near + far) / 2))
    return ratio, ends[0], ends[1]


@cache  # every comparison of a report asks
def smallest_p(seeds: int, documents: int) -> float:
    """The smallest p-value that the permutation test can give, which it gives where all documents agree.

    Then only two patterns of signs are as extreme: the one that flips no document and the one that flips all. Where
    patterns are drawn at random, these two may be drawn more than once. From three seeds on the result is 0, because
    Student's t of the spread between seeds is added to each flip.

    >>> smallest_p(1, 5), smallest_p(3, 5), smallest_p(1, 14), smallest_p(1, 40)
    (0.0625, 0.0, 0.0002, 0.0001)
    """
    if seeds >= FEWEST_SEEDS:
        return 0.0
    return float(np.mean(np.concatenate([np.abs(s.sum(axis=1)) == documents for s in sign_patterns(documents)])))


def unseen_share(documents: int) -> float:
    """If none of these documents has a property, up to which share of all documents may have it.

    It is the upper end of the exact 95 % interval of that share (Clopper and Pearson 1934).

    >>> round(unseen_share(256), 4)
    0.0143
    """
    return 1 - (1 - UPPER) ** (1 / documents)


def holm(p_values: Sequence[float] | NDArray) -> NDArray:
    """P-values adjusted for several tests: below 5 % for any true null in at most 5 % of cases (Holm 1979).

    The smallest of n is multiplied by n, the next by n - 1, and so on; none falls below its predecessor or exceeds 1.
    NaN stays NaN and does not count as a test.

    >>> holm([0.01, float("nan"), 0.04, 0.03]).tolist()
    [0.03, nan, 0.06, 0.06]
    """
    values = np.asarray(p_values, float)
    ascending = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]  # NaN is sorted last
    adjusted = np.full(values.shape, np.nan)
    products = values[ascending] * np.arange(len(ascending), 0, -1)
    adjusted[ascending] = np.minimum(np.maximum.accumulate(products), 1)
    return adjusted
