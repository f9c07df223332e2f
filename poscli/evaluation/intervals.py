"""Confidence intervals by the bootstrap, which resamples documents, because tokens of one document are dependent."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 2000


def ratio_interval(totals: NDArray, counts: NDArray, seed: int = 0) -> tuple[float, float]:
    """The 95 % BCa bootstrap interval of sum(totals) / sum(counts) over units `[n]`; NaN for a single unit.

    For a paired comparison, pass the totals of the differences.
    """
    estimate = totals.sum() / counts.sum()
    if len(totals) < 2:
        return float("nan"), float("nan")
    if np.ptp(totals / counts) < 1e-12 * max(1.0, abs(estimate)):
        return float(estimate), float(estimate)  # BCa is undefined if all units agree

    def statistic(t: NDArray, c: NDArray, axis: int = -1) -> NDArray:
        return t.sum(axis) / c.sum(axis)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # scipy then returns NaN, which is handled below
        result = stats.bootstrap(
            (totals, counts),
            statistic,
            paired=True,
            vectorized=True,
            n_resamples=RESAMPLES,
            rng=np.random.default_rng(seed),
        )
    low, high = result.confidence_interval
    if np.isnan(low) or np.isnan(high):  # BCa is undefined if all resamples lie on one side of the estimate
        low, high = np.percentile(result.bootstrap_distribution, [2.5, 97.5])
    return float(low), float(high)
