"""Intervals and tests of many averages at once, as for every pair of fifty encodings at every length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from poscli.evaluation.estimates import Estimates

Array = NDArray[np.float64]
Case = tuple[Array, Array]  # totals [S, D] and counts [D], as in intervals.py


def many_differences(cases: Sequence[Case | None], *, test: bool = True) -> Array:
    """Estimate, low end, high end and p-value of each case, `[n, 4]`; NaN for None, and for p without `test`.

    They are what `two_level_interval` and `permutation_test` of intervals.py return for each. Cases on the same
    documents are computed together.
    """
    groups: dict[tuple[int, bytes], list[int]] = {}
    for at, case in enumerate(cases):
        if case is not None:
            groups.setdefault((len(case[0]), np.ascontiguousarray(case[1]).tobytes()), []).append(at)
    found = np.full((len(cases), 4), math.nan)
    for members in groups.values():
        chosen = [case for case in (cases[at] for at in members) if case is not None]
        group = Estimates(np.stack([totals for totals, _ in chosen]), chosen[0][1])
        p = group.p_values() if test else np.full(len(members), math.nan)
        found[members] = np.stack([group.estimate, *group.interval(), p], axis=1)
    return found
