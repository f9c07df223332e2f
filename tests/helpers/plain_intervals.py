"""Intervals and tests of one average, written as their definitions read: what `CrossedMeans` is compared with."""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr, stdtrit

RESAMPLES, FLIPS, FEWEST_SEEDS, UPPER = 2000, 10_000, 3, 0.975


class _Variances(NamedTuple):
    """Means of documents over seeds, their weights, and the variances of the estimate by origin."""

    means: NDArray  # [D], mean over seeds
    weights: NDArray  # [D], sum 1
    estimate: float
    seeds: float  # of the seeds, the interaction included; NaN for one seed
    shared: float  # of the documents, as far as it is common to all seeds
    reduction: float  # shared / (variance over documents of `means`, which has a part of the interaction)


def ratio_interval(totals: NDArray, counts: NDArray, seed: int = 0) -> tuple[float, float]:
    """The interval over documents."""
    totals, counts = totals[counts > 0], counts[counts > 0]
    estimate = totals.sum() / counts.sum() if len(totals) > 1 else math.nan
    if not np.isfinite(estimate):
        return math.nan, math.nan
    if np.ptp(totals / counts) < 1e-12 * max(1.0, abs(estimate)):
        return float(estimate), float(estimate)
    below, above = _document_reach(totals / counts, counts / counts.sum(), seed)
    return float(estimate - below), float(estimate + above)


def two_level_interval(totals: NDArray, counts: NDArray, seed: int = 0) -> tuple[float, ...]:
    """Estimate, ends of the interval over documents and seeds, seeds, documents, and the two spreads behind it."""
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
    return parts.estimate, low, high, count, documents, seed_sd, document_sd


def permutation_test(totals: NDArray, counts: NDArray, seed: int = 0) -> float:
    """The p-value of the paired permutation test."""
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
