"""Confidence intervals and tests for averages over documents and seeds, made for 3 to 20 seeds and 5 to 50 documents.

The model has crossed random effects. S seeds are scored on the same D documents. The value of a seed on a document,
which is its mean loss per token there or a paired difference of such means, is a sum of four terms:

    y[s, d] = truth + seed[s] + document[d] + interaction[s, d]

Tokens of one document are dependent, so the document is the unit. The estimate is sum(totals) / (S sum(counts)), in
which document d has the weight w[d] = counts[d] / sum(counts). Weights are fixed, effects are drawn at random.

- `ratio_interval`: how far could the estimate be off, had other documents been drawn? The seeds stay as they are.
- `two_level_interval`: how far, had other documents and other seeds been drawn?
- `permutation_test`: would so large a difference between two encodings be a surprise if neither were better?
- `holm`: which of several differences stand, given that some stand out by chance if many are tested?
- `smallest_detectable`: which true difference is a planned number of seeds and documents likely to find?

Two corrections let few documents suffice. The variance over documents is unbiased under unequal weights (Bell and
McCaffrey 2002), and Student's t has n - 1 degrees of freedom, where n = 1 / sum(w^2) is the number of equally long
documents that would tell as much (Kish 1965). In simulations, 95 % intervals over documents hold the truth in 92 to
98 % of draws from 5 documents on, also with heavy tails or moderate skew (a lognormal distribution with sigma 0.5).
Very skewed documents defeat them: with sigma 1 they hold it in 84 % of draws at 5 or 8 documents, and in 88 % at 24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr, ndtri, stdtr, stdtrit

RESAMPLES = 2000
FLIPS = 10_000  # sign flips of the permutation test; all of them if there are no more than this
FEWEST_SEEDS = 3  # with fewer, the spread between seeds is not estimated
UPPER = 0.975  # the upper end of a 95 % interval; 1 - UPPER is the lower one
PLANNED = 200  # grid points for each of the two variances that a planned experiment will estimate


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


class _Variances(NamedTuple):
    """Means of documents over seeds, their weights, and the variances of the estimate by origin."""

    means: NDArray  # [D], mean over seeds
    weights: NDArray  # [D], sum 1
    estimate: float
    seeds: float  # of the seeds, the interaction included; NaN for one seed
    shared: float  # of the documents, as far as it is common to all seeds
    reduction: float  # shared / (variance over documents of `means`, which has a part of the interaction)


def ratio_interval(totals: NDArray, counts: NDArray, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of sum(totals) / sum(counts) over documents `[D]`.

    It is NaN for a single document and for values that are not finite. For a paired comparison, pass the totals of the
    differences. The limits are percentiles of the bootstrap over documents, moved away from the estimate by one factor,
    which makes the bootstrap's standard error unbiased and replaces the normal quantile by Student's. The expanded
    percentile interval (Hesterberg 2015) takes more extreme percentiles to the same end, but resamples of 5 documents
    have none that are extreme enough. BCa limits, stretched alike, cover up to 2 points more if documents are skewed,
    but 3 to 4 points less if tails are heavy, because they take an outlier for skewness.
    """
    totals, counts = totals[counts > 0], counts[counts > 0]
    estimate = totals.sum() / counts.sum() if len(totals) > 1 else math.nan
    if not np.isfinite(estimate):
        return math.nan, math.nan
    if np.ptp(totals / counts) < 1e-12 * max(1.0, abs(estimate)):
        return float(estimate), float(estimate)
    below, above = _document_reach(totals / counts, counts / counts.sum(), seed)
    return float(estimate - below), float(estimate + above)


def two_level_interval(totals: NDArray, counts: NDArray, seed: int = 0) -> Interval:
    """The 95 % interval of sum(totals) / (S sum(counts)) over documents and seeds, from `totals[S, D]`, `counts[D]`.

    Means of seeds differ by the seeds' effect and by the interaction, so Student's t over them covers both, and the
    interaction is taken out of the variance over documents. Two known ways to combine the quantiles of two such parts
    err to either side in simulations with 3 seeds: Cochran (1964) averages them, weighted by the parts' variances, and
    covers 95 to 98 %; Welch (1947) averages degrees of freedom and covers 92 to 96 %. Halfway between, 94 to 97.5 % of
    intervals hold the truth. A bootstrap of seeds and documents (Owen 2007) holds it in 77 % where seeds dominate.
    Every seed needs a finite value on every document: leave failed seeds out beforehand, and say that you did.
    """
    parts = _variances(totals, counts)
    count, documents = len(totals), len(parts.means)
    if count < FEWEST_SEEDS:
        low, high = ratio_interval(totals.mean(axis=0), counts, seed)
    elif documents < 2:
        low = high = math.nan
    else:
        below, above = _combined_reach(parts, count, seed)
        low, high = parts.estimate - below, parts.estimate + above
    seed_sd, document_sd = math.sqrt(count * parts.seeds), math.sqrt(documents * parts.shared)
    return Interval(parts.estimate, low, high, count, documents, seed_sd, document_sd)


def permutation_test(totals: NDArray, counts: NDArray, seed: int = 0) -> float:
    """The two-sided p-value of a mean paired difference of zero, from `totals[S, D]` and `counts[D]`.

    If two encodings are alike, a document's difference is as likely negative as positive, so its sign can be flipped
    (Fisher 1935). With one or two seeds, the p-value is the share of flips whose mean is at least as far from zero.
    From three seeds on, Student's t of the spread between seeds is added to each flip, because flips cannot show that
    spread. Documents and seeds then explain the mean together, so only the documents' part of it is flipped.
    The p-value is NaN for a single document. If differences are skewed although their mean is 0, signs are not
    exchangeable. Then a test at 5 % rejects in up to 6 % of simulations (lognormal differences with sigma 0.5) or 8 %
    (sigma 1) if documents make 90 % of the variance, and in up to 7 % or 14 % if they make 98 %.
    """
    parts = _variances(totals, counts)
    if len(parts.means) < 2:
        return math.nan
    signs, distance = sign_patterns(len(parts.means), seed), abs(parts.estimate)
    error, rounding = math.sqrt(parts.seeds), 1e-12 * np.abs(parts.means).max()
    if len(totals) < FEWEST_SEEDS or error <= rounding:
        flipped = np.abs(signs @ (parts.weights * parts.means))
        return float((flipped >= distance - rounding).mean())
    own = math.sqrt(parts.reduction) * (parts.means - parts.estimate)
    mean = math.sqrt(parts.shared / (parts.shared + parts.seeds)) * parts.estimate
    flipped = signs @ (parts.weights * (own + mean))
    tails = stdtr(len(totals) - 1, np.stack([flipped - distance, -flipped - distance]) / error)
    return float(tails.sum(axis=0).mean())


def unseen_share(documents: int) -> float:
    """The share that may have a property which none of so many documents has: the end of its exact 95 % interval.

    (Clopper and Pearson 1934.)

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


def smallest_detectable(seeds: int, documents: int, seed_sd: float, document_sd: float, power: float = 0.8) -> float:
    """The smallest true paired difference whose `two_level_interval` excludes zero with probability `power`.

    `seed_sd` and `document_sd` are those of `Interval`, guessed or taken from a pilot. Effects are assumed normal and
    documents alike in length. It is infinite where no interval would be made: for one document, or for fewer than three
    seeds unless `seed_sd` is 0, which asks about the given models only.
    """
    if math.isnan(seed_sd + document_sd):
        return math.nan
    if documents < 2 or (seeds < FEWEST_SEEDS and seed_sd > 0):
        return math.inf
    error = math.hypot(seed_sd / math.sqrt(seeds), document_sd / math.sqrt(documents))
    if error == 0:
        return 0.0
    degrees = max(seeds - 1, 1), documents - 1
    of_seeds = _planned(seed_sd / math.sqrt(seeds), degrees[0])[:, None]
    total = of_seeds + _planned(document_sd / math.sqrt(documents), degrees[1])
    quantile, shortened = combined_quantile(of_seeds / total, *degrees)
    reach = quantile * shortened * np.sqrt(total)

    def excess(difference: float) -> float:
        found = ndtr((difference - reach) / error) + ndtr((-difference - reach) / error)
        return float(found.mean()) - power

    return float(brentq(excess, 0, reach.max() + 10 * error))


def _planned(error: float, degrees: int) -> NDArray:
    """Equally likely estimates of the squared standard error `error`: quantiles of a scaled chi-square."""
    levels = (np.arange(PLANNED) + 0.5) / PLANNED
    return error**2 * chdtri(degrees, levels) / degrees


def _variances(totals: NDArray, counts: NDArray) -> _Variances:
    """The variances of the estimate by origin, after an analysis of variance of the table of seeds and documents."""
    assert totals.shape == (len(totals), len(counts)), "totals have the shape [S, D], counts [D]"
    assert np.isfinite(totals).all(), "leave out failed seeds first"
    totals, counts = totals[:, counts > 0], counts[counts > 0]
    weights, values = counts / counts.sum(), totals / counts
    means = values.mean(axis=0)
    estimate = float(means @ weights)
    if len(totals) < 2:
        shared = float(squared_error(means, weights))
        return _Variances(means, weights, estimate, math.nan, shared, 1.0)
    degrees = len(totals) * (len(totals) - 1)
    seeds = float((((values - means) @ weights) ** 2).sum() / degrees)
    whole, interaction = squared_error(means, weights), squared_error(values - means, weights).sum() / degrees
    shared = max(float(whole - interaction), 0.0) if len(weights) > 1 else math.nan
    return _Variances(means, weights, estimate, seeds, shared, shared / float(whole) if whole > 0 else 1.0)


def squared_error(values: NDArray, weights: NDArray) -> NDArray:
    """The squared standard error of the weighted mean of values `[..., D]`; NaN for one document.

    It is unbiased if all documents have one variance: the square of a value's deviation from the weighted mean is then
    (1 - 2 w[d] + sum(w^2)) variances on average.
    """
    if len(weights) < 2:
        return np.full(values.shape[:-1], np.nan)
    deviations = values - (values @ weights)[..., None]
    return (weights**2 * deviations**2 / (1 - 2 * weights + (weights**2).sum())).sum(axis=-1)


def _document_reach(means: NDArray, weights: NDArray, seed: int) -> tuple[float, float]:
    """How far below and above the weighted mean the 95 % interval over documents reaches."""
    estimate = means @ weights
    drawn = np.random.default_rng(seed).integers(len(means), size=(RESAMPLES, len(means)))
    resampled = (weights * means)[drawn].sum(axis=1) / weights[drawn].sum(axis=1)
    low, high = np.quantile(resampled, [1 - UPPER, UPPER])
    if low == high:
        return 0.0, 0.0
    student = stdtrit(kish_degrees(weights), UPPER) * math.sqrt(squared_error(means, weights))
    factor = student / (ndtri(UPPER) * resampled.std())
    return float(factor * (estimate - low)), float(factor * (high - estimate))


def _combined_reach(parts: _Variances, seeds: int, seed: int) -> tuple[float, float]:
    """How far below and above the estimate the interval over documents and seeds reaches."""
    total = math.sqrt(parts.seeds + parts.shared)
    if total == 0:
        return 0.0, 0.0
    of_seeds = stdtrit(seeds - 1, UPPER) * parts.seeds / total
    documents = math.sqrt(parts.reduction * parts.shared) / total
    _, shortened = combined_quantile(parts.seeds / total**2, seeds - 1, kish_degrees(parts.weights))
    below, above = _document_reach(parts.means, parts.weights, seed)
    return float(shortened * (of_seeds + documents * below)), float(shortened * (of_seeds + documents * above))


def combined_quantile(share: float | NDArray, seed_degrees: float, document_degrees: float) -> tuple[NDArray, NDArray]:
    """Cochran's 97.5 % quantile of estimate / standard error, and the factor from there halfway to Welch's.

    `share` is the seeds' share of the squared standard error, as an array or a number.
    """
    quantile = share * stdtrit(seed_degrees, UPPER) + (1 - share) * stdtrit(document_degrees, UPPER)
    degrees = 1 / (share**2 / seed_degrees + (1 - share) ** 2 / document_degrees)
    return quantile, (1 + stdtrit(degrees, UPPER) / quantile) / 2


def kish_degrees(weights: NDArray) -> float:
    """Degrees of freedom of the variance over documents; at least one, even if one document has most of the tokens."""
    return max(float(1 / (weights**2).sum()) - 1, 1.0)


def sign_patterns(documents: int, seed: int) -> NDArray:
    """All patterns of signs `[flips, D]` if there are few enough, else a random choice that has the one given."""
    if 2**documents <= FLIPS:
        return np.array(list(product([1.0, -1.0], repeat=documents)))
    drawn = 1.0 - 2.0 * np.random.default_rng(seed).integers(2, size=(FLIPS, documents))
    drawn[0] = 1
    return drawn
