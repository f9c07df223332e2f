"""Right answers of a synthetic task: in which episode, and how far back or how deep in the window they were told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.evaluation.recall import octaves
from poscli.tasks.episodes import DEPTH

DEPTH_BINS = 5
Bounds = list[tuple[int, int]]  # the smallest and the largest value of each bin, both inclusive


def depth_bins() -> Bounds:
    """Fifths of the window, in percent of its length from its start.

    >>> depth_bins()
    [(0, 19), (20, 39), (40, 59), (60, 79), (80, 99)]
    """
    width = 100 // DEPTH_BINS
    return [(first, first + width - 1) for first in range(0, 100, width)]


def gap_bins(train_length: int, longest: int) -> Bounds:
    """Tokens back: all below a quarter of the training length, then octaves up to the longest window.

    >>> gap_bins(64, 256)
    [(1, 15), (16, 31), (32, 63), (64, 127), (128, 255)]
    """
    later = octaves(train_length, longest)
    return [(1, later[0][0] - 1), *later] if later and later[0][0] > 1 else later


def bin_numbers(back: NDArray[np.int64], length: int, by: str, bins: Bounds) -> NDArray[np.int64]:
    """The number of the bin of each of the last targets of windows of `length` tokens, from their `back` `[B, scored]`.

    A token that stood n tokens before the last target has the depth 100 (length - n) / length.
    """
    targets = length + np.arange(1 - back.shape[1], 1)  # numbers of the stored tokens of a window, from 0
    values = 100 * (targets - back) // length if by == DEPTH else back
    return np.searchsorted([first for first, _ in bins], values, side="right") - 1


def answer_rows(
    back: NDArray[np.int64], right: NDArray[np.float64], *, units: list[str], length: int, by: str, bins: Bounds
) -> Iterator[dict[str, Any]]:
    """One row per episode and bin that has a scored token: how many tokens, and how many of them are right.

    `back` and `right`, `[B, scored]`, are of the last targets of each window; a target counts if its `back` is not 0.
    """
    numbers = np.where(back > 0, bin_numbers(back, length, by, bins), -1)
    for number, (first, last) in enumerate(bins):
        counted = numbers == number
        tokens, found = counted.sum(axis=1), np.where(counted, right, 0).sum(axis=1)
        for row in np.flatnonzero(tokens):
            bounds = {"unit": units[row], "by": by, "from": first, "to": last}
            yield bounds | {"tokens": int(tokens[row]), "right": round(found[row])}
