"""Means over tokens that come from several documents, with intervals."""

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


def gain_numbers(
    full: NDArray[np.float64], crop: NDArray[np.float64], documents: NDArray[np.int64]
) -> dict[str, float]:
    """What the text beyond L is worth to some tokens, from their losses `[n]` with the whole window and cropped to L.

    The keys are those of GAIN_COLUMNS in poscli/runs/details.py; n is at least 1.
    """
    low, high = mean_interval(crop - full, documents)
    means = {"nll": float(full.mean()), "nll_crop": float(crop.mean()), "gain": float((crop - full).mean())}
    return means | {"gain_low": low, "gain_high": high}
