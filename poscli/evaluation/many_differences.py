"""Intervals and tests of many averages at once, as for every pair of fifty encodings at every length.

`many_differences` returns what `two_level_interval` and `permutation_test` of intervals.py return for each case, to
rounding. Cases on the same documents share their resamples and sign flips, so that the work is a few products of
matrices; a thousand cases then take a fifth of a second instead of ten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit

from poscli.evaluation.intervals import (
    FEWEST_SEEDS,
    RESAMPLES,
    UPPER,
    combined_quantile,
    kish_degrees,
    sign_patterns,
    squared_error,
)

AT_ONCE = 64  # cases whose flips are held in memory together: 10,000 flips of each take 5 MB

Array = NDArray[np.float64]
Case = tuple[Array, Array]  # totals [S, D] and counts [D], as in intervals.py


def many_differences(cases: Sequence[Case | None], *, test: bool = True) -> Array:
    """Estimate, low end, high end and p-value of each case, `[n, 4]`; NaN for None, and for p without `test`."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for at, case in enumerate(cases):
        if case is not None:
            groups.setdefault((len(case[0]), np.ascontiguousarray(case[1]).tobytes()), []).append(at)
    found = np.full((len(cases), 4), math.nan)
    for members in groups.values():
        chosen = [cases[at] for at in members]
        totals = np.stack([case[0] for case in chosen if case is not None])
        assert chosen[0] is not None
        found[members] = _group(totals, chosen[0][1], test)
    return found


def _group(totals: Array, counts: Array, test: bool) -> Array:
    """The numbers of cases `[P, S, D]` on the same documents `[D]`."""
    assert np.isfinite(totals).all(), "leave out failed seeds first"
    totals, counts = totals[:, :, counts > 0], counts[counts > 0]
    parts = _Parts(totals / counts, counts / counts.sum())
    low, high = parts.interval()
    p = parts.p_values() if test and len(counts) > 1 else np.full(len(totals), math.nan)
    return np.stack([parts.estimate, low, high, p], axis=1)


class _Parts:
    """The variances of P estimates by origin, after an analysis of variance, from values `[P, S, D]`."""

    def __init__(self, values: Array, weights: Array) -> None:
        self.weights, self.count, self.documents = weights, values.shape[1], values.shape[2]
        self.means = values.mean(axis=1)  # [P, D]
        self.estimate = self.means @ weights
        whole = squared_error(self.means, weights)
        self.seeds, self.shared, self.reduction = np.zeros(len(values)), whole, np.ones(len(values))
        if self.count > 1 and self.documents > 1:
            degrees = self.count * (self.count - 1)
            apart = values - self.means[:, None]
            self.seeds = ((apart @ weights) ** 2).sum(axis=1) / degrees
            self.shared = np.maximum(whole - squared_error(apart, weights).sum(axis=1) / degrees, 0.0)
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
        of_seeds = stdtrit(self.count - 1, UPPER) * share * total
        documents = np.sqrt(np.divide(self.reduction * self.shared, variance, out=np.zeros_like(total), where=known))
        _, shortened = combined_quantile(share, self.count - 1, kish_degrees(self.weights))
        below, above = (np.where(known, shortened * (of_seeds + documents * reach), 0.0) for reach in (below, above))
        return self.estimate - below, self.estimate + above

    def _document_reach(self) -> tuple[Array, Array]:
        """How far the intervals over documents reach below and above the estimates, each `[P]`."""
        drawn = np.random.default_rng(0).integers(self.documents, size=(RESAMPLES, self.documents))
        cells = drawn + self.documents * np.arange(RESAMPLES)[:, None]
        times = np.bincount(cells.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(float)  # [R, D]
        resampled = (times @ (self.weights * self.means).T) / (times @ self.weights)[:, None]  # [R, P]
        low, high = np.quantile(resampled, [1 - UPPER, UPPER], axis=0)
        student = stdtrit(kish_degrees(self.weights), UPPER) * np.sqrt(squared_error(self.means, self.weights))
        spread = ndtri(UPPER) * resampled.std(axis=0)
        factor = np.divide(student, spread, out=np.zeros_like(spread), where=high > low)
        return factor * (self.estimate - low), factor * (high - self.estimate)

    def p_values(self) -> Array:
        """The p-values of the permutation test, `[P]`."""
        signs, distance, error = sign_patterns(self.documents, 0), np.abs(self.estimate), np.sqrt(self.seeds)
        rounding = 1e-12 * np.abs(self.means).max(axis=1)
        found = np.empty(len(self.means))
        for first in range(0, len(found), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            found[part] = self._flipped_documents(part, signs, distance[part] - rounding[part])
        if self.count < FEWEST_SEEDS:
            return found
        for first in range(0, len(found), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            with_seeds = self._flipped_with_seeds(part, signs, distance[part], error[part])
            found[part] = np.where(error[part] <= rounding[part], found[part], with_seeds)
        return found

    def _flipped_documents(self, part: slice, signs: Array, least: Array) -> Array:
        """The share of flips whose mean is at least so far from zero."""
        return (np.abs(signs @ (self.weights * self.means[part]).T) >= least).mean(axis=0)

    def _flipped_with_seeds(self, part: slice, signs: Array, distance: Array, error: Array) -> Array:
        """The p-values where Student's t of the spread between seeds is added to each flip."""
        estimate, shared, seeds = self.estimate[part], self.shared[part], self.seeds[part]
        own = np.sqrt(self.reduction[part])[:, None] * (self.means[part] - estimate[:, None])
        explained = np.divide(shared, shared + seeds, out=np.zeros_like(seeds), where=shared + seeds > 0)
        flipped = signs @ (self.weights * (own + (np.sqrt(explained) * estimate)[:, None])).T
        error = np.where(error > 0, error, 1.0)
        degrees = self.count - 1
        tails = student_below((flipped - distance) / error, degrees) + student_below(
            (-flipped - distance) / error, degrees
        )
        return tails.mean(axis=0)


def student_below(t: Array, degrees: int) -> Array:
    """The probability that Student's t is below these values; for 2 and 4 degrees by its closed form, 20 times faster.

    >>> student_below(np.array([-1.0, 0.0]), 2).round(6).tolist(), float(stdtr(2, -1.0).round(6))
    ([0.211325, 0.5], 0.211325)
    """
    if degrees not in (2, 4):
        return stdtr(degrees, t)
    squared = degrees + t * t
    half = 0.5 * t / np.sqrt(squared)
    return 0.5 + (half if degrees == 2 else half * (1 + 2 / squared))
