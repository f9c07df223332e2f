"""Weighted means over crossed documents and seeds, with the variances behind them, their intervals and tests.

intervals.py says what the numbers mean. Here they are computed for many cases at once: cases on the same documents
share their resamples and sign flips, so that the work is a few products of matrices, and a thousand cases take a fifth
of a second.

Shapes: P cases, S seeds, D documents, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product

import numpy as np
import scipy  # whose parts are loaded when they are used
from numpy.typing import NDArray

from poscli.statistics import FEWEST_SEEDS, UPPER

RESAMPLES = 2000
FLIPS = 10_000  # sign flips of the permutation test; all of them if there are no more than this
AT_ONCE = 64  # cases whose flips are held in memory together: 10,000 flips of each take 5 MB
CELLS = 4_000_000  # of resamples, or flips, times documents that are held in memory together, 32 MB
KEPT = CELLS // 2  # the most that are kept for the next call

Array = NDArray[np.float64]


class CrossedMeans:
    """P weighted means, the estimates, from values `[P, S, D]`, after an analysis of variance.

    `means` `[P, D]` are the means of documents over seeds, and `estimate` `[P]` is their weighted mean. The variance of
    the estimate is a sum of two, each `[P]`. `seeds` is what other seeds would change, the interaction of seeds and
    documents included; it is NaN for one seed. `shared` is what other documents would change for all seeds alike; it is
    NaN for one document. `means` vary over documents by more than that, because a part of the interaction stays in
    them: `reduction` `[P]` is the share of their variance that is `shared`.
    """

    def __init__(self, totals: Array, counts: Array) -> None:
        """`totals` `[P, S, D]` and `counts` `[D]` as in intervals.py; documents without a count are left out."""
        assert totals.shape[2:] == counts.shape, "totals have the shape [P, S, D], counts [D]"
        assert np.isfinite(totals).all(), "leave out failed seeds first"
        totals, counts = totals[:, :, counts > 0], counts[counts > 0]
        values, self.weights = totals / counts, counts / counts.sum()
        self.count, self.documents = values.shape[1:]
        self.means = values.mean(axis=1)
        self.estimate = totals.mean(axis=1).sum(axis=1) / counts.sum()
        whole = squared_error(self.means, self.weights)
        self.seeds, self.shared, self.reduction = np.full(len(values), math.nan), whole, np.ones(len(values))
        if self.count > 1:
            degrees = self.count * (self.count - 1)
            apart = values - self.means[:, None]
            self.seeds = ((apart @ self.weights) ** 2).sum(axis=1) / degrees
            interaction = squared_error(apart, self.weights).sum(axis=1) / degrees
            self.shared = np.maximum(whole - interaction, 0.0)  # NaN stays NaN
            self.reduction = np.divide(self.shared, whole, out=np.ones_like(whole), where=whole > 0)

    def interval(self) -> tuple[Array, Array]:
        """The ends of the 95 % intervals, each `[P]`: over documents, and from three seeds on also over seeds."""
        if self.documents < 2:
            unknown = np.full(len(self.means), math.nan)
            return unknown, unknown
        below, above = self._document_reach()
        if self.count < FEWEST_SEEDS:
            alike = np.ptp(self.means, axis=1) < 1e-12 * np.maximum(1.0, np.abs(self.estimate))
            below, above = np.where(alike, 0.0, below), np.where(alike, 0.0, above)
            return self.estimate - below, self.estimate + above
        variance = self.seeds + self.shared
        total, known = np.sqrt(variance), variance > 0
        share = np.divide(self.seeds, variance, out=np.zeros_like(total), where=known)
        of_seeds = scipy.special.stdtrit(self.count - 1, UPPER) * share * total
        documents = np.sqrt(np.divide(self.reduction * self.shared, variance, out=np.zeros_like(total), where=known))
        _, shortened = combined_quantile(share, self.count - 1, kish_degrees(self.weights))
        below, above = (np.where(known, shortened * (of_seeds + documents * reach), 0.0) for reach in (below, above))
        return self.estimate - below, self.estimate + above

    def p_values(self) -> Array:
        """The two-sided p-values of a mean paired difference of zero, `[P]`; NaN for a single document.

        If two encodings are alike, a document's difference is as likely negative as positive, so its sign can be
        flipped (Fisher 1935). With one or two seeds, the p-value is the share of flips whose mean is at least as far
        from zero. From three seeds on, Student's t of the spread between seeds is added to each flip, because flips
        cannot show that spread. Documents and seeds then explain the mean together, so only the documents' part of it
        is flipped. If differences are skewed although their mean is 0, signs are not exchangeable. Then a test at 5 %
        rejects in up to 6 % of simulations (lognormal differences with sigma 0.5) or 8 % (sigma 1) if documents make
        90 % of the variance, and in up to 7 % or 14 % if they make 98 %.
        """
        if self.documents < 2:
            return np.full(len(self.means), math.nan)
        distance, error = np.abs(self.estimate), np.sqrt(self.seeds)
        rounding = 1e-12 * np.abs(self.means).max(axis=1)
        farther, flips = np.zeros(len(self.means)), 0
        for signs in sign_patterns(self.documents):
            flips += len(signs)
            for part in _parts(len(farther), AT_ONCE):
                means = np.abs(signs @ (self.weights * self.means[part]).T)  # of each flip
                count = (means >= distance[part] - rounding[part]).sum(axis=0).astype(float)
                if self.count >= FEWEST_SEEDS:
                    with_seeds = self._flipped_with_seeds(part, signs, distance[part], error[part])
                    count = np.where(error[part] <= rounding[part], count, with_seeds)
                farther[part] += count
        return farther / flips

    def _document_reach(self) -> tuple[Array, Array]:
        """How far the intervals over documents reach below and above the estimates, each `[P]`."""
        resampled = np.concatenate(
            [
                (times @ (self.weights * self.means).T) / (times @ self.weights)[:, None]
                for times in resamples(self.documents)
            ]
        )
        low, high = np.quantile(resampled, [1 - UPPER, UPPER], axis=0)
        error = np.sqrt(squared_error(self.means, self.weights))
        student = scipy.special.stdtrit(kish_degrees(self.weights), UPPER) * error
        spread = scipy.special.ndtri(UPPER) * resampled.std(axis=0)
        factor = np.divide(student, spread, out=np.zeros_like(spread), where=high > low)
        return factor * (self.estimate - low), factor * (high - self.estimate)

    def _flipped_with_seeds(self, part: slice, signs: Array, distance: Array, error: Array) -> Array:
        """The sum over flips of the chance to be as far from zero, by Student's t of the spread between seeds."""
        estimate, shared, seeds = self.estimate[part], self.shared[part], self.seeds[part]
        apart = np.sqrt(self.reduction[part])[:, None] * (self.means[part] - estimate[:, None])
        explained = np.divide(shared, shared + seeds, out=np.zeros_like(seeds), where=shared + seeds > 0)
        flipped = signs @ (self.weights * (apart + (np.sqrt(explained) * estimate)[:, None])).T
        error, degrees = np.where(error > 0, error, 1.0), self.count - 1
        below, above = (student_below((side * flipped - distance) / error, degrees) for side in (1, -1))
        return (below + above).sum(axis=0)


def _parts(count: int, size: int) -> Iterator[slice]:
    """Slices of at most so many of `count` things."""
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


def resamples(documents: int) -> Iterable[Array]:
    """How often each of D documents is drawn in each of 2,000 resamples of them, the same for the same number.

    The rows of all arrays, `[resamples, D]`, are the resamples; there are several arrays where one would be large.
    """
    return (_kept_resamples if RESAMPLES * documents <= KEPT else _drawn_resamples)(documents)


def _drawn_resamples(documents: int) -> Iterator[Array]:
    random = np.random.default_rng(0)
    for part in _parts(RESAMPLES, max(1, CELLS // documents)):
        drawn = random.integers(documents, size=(part.stop - part.start, documents))
        cells = drawn + documents * np.arange(len(drawn))[:, None]
        yield np.bincount(cells.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)


@lru_cache(maxsize=4)  # an evaluation asks for the same ones dozens of times
def _kept_resamples(documents: int) -> list[Array]:
    return [*_drawn_resamples(documents)]


def squared_error(values: NDArray, weights: NDArray) -> NDArray:
    """The squared standard error of the weighted mean of values `[..., D]`; NaN for one document.

    It is unbiased if all documents have one variance: the square of a value's deviation from the weighted mean is then
    (1 - 2 w[d] + sum(w^2)) variances on average.
    """
    if len(weights) < 2:
        return np.full(values.shape[:-1], np.nan)
    deviations = values - (values @ weights)[..., None]
    return (weights**2 * deviations**2 / (1 - 2 * weights + (weights**2).sum())).sum(axis=-1)


def student_below(t: Array, degrees: int) -> Array:
    """The probability that Student's t is below these values; for 2 and 4 degrees by its closed form, 20 times faster.

    >>> student_below(np.array([-1.0, 0.0]), 2).round(6).tolist(), float(scipy.special.stdtr(2, -1.0).round(6))
    ([0.211325, 0.5], 0.211325)
    """
    if degrees not in (2, 4):
        return scipy.special.stdtr(degrees, t)
    squared = degrees + t * t
    half = 0.5 * t / np.sqrt(squared)
    return 0.5 + (half if degrees == 2 else half * (1 + 2 / squared))


def combined_quantile(share: float | NDArray, seed_degrees: float, document_degrees: float) -> tuple[NDArray, NDArray]:
    """Two factors of a 95 % interval, each in the shape of `share`, the seeds' share of the squared standard error.

    The first is Cochran's 97.5 % quantile of (estimate - truth) / standard error. The second multiplies it and lies
    halfway between 1 and the ratio of Welch's quantile to Cochran's.
    """
    of_seeds, of_documents = (scipy.special.stdtrit(degrees, UPPER) for degrees in (seed_degrees, document_degrees))
    quantile = share * of_seeds + (1 - share) * of_documents
    degrees = 1 / (share**2 / seed_degrees + (1 - share) ** 2 / document_degrees)
    return quantile, (1 + scipy.special.stdtrit(degrees, UPPER) / quantile) / 2


def kish_degrees(weights: NDArray) -> float:
    """Degrees of freedom of the variance over documents; at least one, even if one document has most of the tokens."""
    return max(float(1 / (weights**2).sum()) - 1, 1.0)


def sign_patterns(documents: int) -> Iterator[NDArray]:
    """All patterns of signs if there are few enough, else a random choice that has the one given.

    The rows of all arrays, `[flips, D]`, are the patterns; there are several arrays where one would be large.
    """
    if 2**documents <= FLIPS:
        yield np.array(list(product([1.0, -1.0], repeat=documents)))
        return
    random = np.random.default_rng(0)
    for part in _parts(FLIPS, max(1, CELLS // documents)):
        drawn = 1.0 - 2.0 * random.integers(2, size=(part.stop - part.start, documents))
        if part.start == 0:
            drawn[0] = 1
        yield drawn
