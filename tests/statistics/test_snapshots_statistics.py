"""Estimates, intervals and tests by the numbers of seeds and documents, as one table."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from lines import sections, table, told
from numpy.typing import NDArray

from poscli.statistics.intervals import (
    many_differences,
    mean_interval,
    ratio_interval,
    smallest_p,
    two_level_interval,
    unseen_share,
)
from poscli.statistics.power import smallest_detectable

SIZES = [(1, 1), (1, 2), (1, 6), (1, 14), (2, 5), (2, 14), (3, 2), (3, 6), (5, 9), (3, 14)]  # seeds and documents
# Seeds, documents, spreads over seeds and over documents, and the share of cases in which a difference is to be found.
PLANS = [
    (3, 5, 0.01, 0.05, 0.8),
    (3, 5, 0.0, 0.05, 0.8),
    (1, 5, 0.0, 0.05, 0.8),
    (8, 40, 0.02, 0.1, 0.5),
    (3, 1, 0.01, 0.05, 0.8),
    (3, 5, 0.0, 0.0, 0.8),
    (3, 5, math.nan, 0.1, 0.8),
    (2, 12, 0.0, 0.1, 0.95),
    (5, 7, 0.3, 0.0, 0.8),
]


def measured(seeds: int, documents: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Totals of seeds on documents of unequal length, as a formula, and the lengths."""
    s, d = np.arange(seeds)[:, None], np.arange(documents)
    counts = 10.0 + 7 * (d % 3)
    means = 0.04 + 0.05 * np.sin(3 * d + 1) + 0.02 * np.cos(5 * s) + 0.01 * np.sin(7 * s * d + 2)
    return np.asarray(means * counts), np.asarray(counts)


def p_value(totals: NDArray, counts: NDArray) -> float:
    return float(many_differences([(totals, counts)])[0, 3])


def test_intervals(snapshot: Callable[..., None]) -> None:
    rows = []
    for totals, counts in (measured(*sizes) for sizes in SIZES):
        interval = two_level_interval(totals, counts)._asdict()
        first = ratio_interval(totals[0], counts)
        rows.append(interval | {"p": p_value(totals, counts), "first seed": first})
    totals, counts = measured(3, 6)
    values, sources = np.array([1.0, 2, 4, 8, 3, 3, 5, 1]), np.array([0, 0, 1, 2, 3, 4, 4, 5])
    odd = {
        "a document without tokens": two_level_interval(totals, counts * (np.arange(6) != 2)),
        "equal": two_level_interval(np.ones((4, 6)) * counts, counts),
        "equal seeds": [two_level_interval(totals[[0, 0, 0]], counts), p_value(totals[[0, 0, 0]], counts)],
        "many": many_differences([measured(1, 6), None, (totals, counts), (-totals, counts)]),
        "means": [mean_interval(values[:n], sources[:n]) for n in (8, 5)],
        "smallest p": [[smallest_p(s, d) for d in (1, 5, 13, 14)] for s in (1, 2, 3)],
        "unseen": [unseen_share(n) for n in (1, 5, 40, 256)],
        "detectable": [smallest_detectable(*plan) for plan in PLANS],
    }
    snapshot(sections({"by size": table(rows), "odd": told(odd).replace("], ", "]\n")}), rounded=True)
