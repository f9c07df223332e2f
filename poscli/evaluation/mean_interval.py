"""The interval of a mean over tokens that come from several documents."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from poscli.evaluation.intervals import ratio_interval
from poscli.evaluation.scores import FEWEST_DOCUMENTS


def mean_interval(values: NDArray[np.float64], documents: NDArray[np.int64]) -> tuple[float, float]:
    """The 95 % interval of the mean of `values` `[n]`; NaN for fewer than five documents or a value that is not finite.

    `documents` `[n]` says which document each value comes from. Whole documents are resampled.
    """
    units, unit = np.unique(documents, return_inverse=True)
    if len(units) < FEWEST_DOCUMENTS or not np.isfinite(values).all():
        return math.nan, math.nan
    return ratio_interval(np.bincount(unit, weights=values), np.bincount(unit))
