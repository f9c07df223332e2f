"""From pixels to cells, and from cells to grey levels, in whole numbers, so that every machine gets the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poscli.data.source import Part

Cells = NDArray[np.uint8]  # [rows, columns]
GREYS = 256


class Picture(NamedTuple):
    """The grey values of an image's cells, 0 to 255, and the split that it belongs to if the source says so."""

    cells: Cells
    part: Part | None = None


def stretched(values: NDArray[Any]) -> Cells:
    """Values of any range as grey values: the smallest becomes 0, the largest 255; values that are all equal become 0.

    >>> stretched(np.array([[-5, 0, 5]])).tolist()
    [[0, 128, 255]]
    """
    low, high = values.min(), values.max()
    if low == high:
        return np.zeros(values.shape, dtype=np.uint8)
    share = (values.astype(np.float64) - float(low)) / (float(high) - float(low))
    return np.floor(share * (GREYS - 1) + 0.5).astype(np.uint8)


def patches(pixels: Cells, size: int) -> Cells:
    """The mean of every patch of size x size pixels, halves rounded up; pixels left over at the right and below go.

    >>> patches(np.array([[0, 1, 9], [2, 3, 9]], dtype=np.uint8), 2).tolist()
    [[2]]
    """
    rows, columns = (extent // size for extent in pixels.shape)
    blocks = pixels[: rows * size, : columns * size].reshape(rows, size, columns, size)
    total, count = blocks.sum(axis=(1, 3), dtype=np.int64), size * size
    return ((2 * total + count) // (2 * count)).astype(np.uint8)


def thresholds(pictures: Iterable[Cells], levels: int) -> NDArray[np.int64]:
    """The smallest grey value of each level but the first, `[levels - 1]`: quantiles of the cells of all pictures.

    Every level then holds about equally many cells, unless one grey value is more frequent than that.

    >>> thresholds([np.array([[0, 0, 10, 20], [30, 40, 50, 60]], dtype=np.uint8)], 4).tolist()
    [10, 30, 50]
    """
    counts = sum((np.bincount(cells.ravel(), minlength=GREYS) for cells in pictures), np.zeros(GREYS, np.int64))
    upto = counts.cumsum()
    return np.searchsorted(upto, upto[-1] * np.arange(1, levels) // levels, side="right")


def quantised(cells: Cells, bounds: NDArray[np.int64]) -> Cells:
    """The level of every cell: the number of thresholds that it reaches.

    >>> quantised(np.array([[9, 10, 60]], dtype=np.uint8), np.array([10, 30, 50])).tolist()
    [[0, 1, 3]]
    """
    return np.searchsorted(bounds, np.arange(GREYS), side="right").astype(np.uint8)[cells]


def greys(pictures: Iterable[Cells], bounds: NDArray[np.int64]) -> Cells:
    """The mean grey value of the cells of each level, `[levels]`, to draw it with; the threshold of an empty level."""
    counts = sum((np.bincount(cells.ravel(), minlength=GREYS) for cells in pictures), np.zeros(GREYS, np.int64))
    level = np.searchsorted(bounds, np.arange(GREYS), side="right")
    size = np.bincount(level, weights=counts, minlength=len(bounds) + 1)
    total = np.bincount(level, weights=counts * np.arange(GREYS), minlength=len(bounds) + 1)
    first = np.concatenate([[0], bounds]).clip(max=GREYS - 1)
    return np.where(size > 0, np.rint(total / np.maximum(size, 1)), first).astype(np.uint8)
