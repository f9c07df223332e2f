"""Training batches of sub-grids as a pure function of (split, seed, step)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poscli.data.images.corpus import ImageSplit

# Symmetries of the square by number: n quarter turns for 0 to 3, and for 4 to 7 mirrored ones. Those with an even
# number keep the rows of an oblong grid horizontal.
SYMMETRIES = 8


def batch(split: ImageSplit, *, shape: tuple[int, int], size: int, seed: int, step: int) -> NDArray[np.int64]:
    """Sub-grids drawn uniformly from all places of all images: levels in raster order, `[size, rows * columns]`.

    Each is turned and mirrored by one of the 8 symmetries of the square, or, if `shape` is no square, by one of the 4
    that keep its shape. At least one image must hold a grid of this shape.
    """
    # Raw words of Philox, as in poscli/data/sampler.py: streams of steps never overlap, and numpy never changes them.
    words = np.random.Philox(key=seed, counter=step << 192).random_raw(2 * size)
    places = (split.shapes - shape + 1).clip(min=0)  # [images, 2]: in how many rows and columns a sub-grid may begin
    last = places.prod(axis=1).cumsum()
    drawn = (words[:size] % np.uint64(last[-1])).astype(np.int64)
    document = np.searchsorted(last, drawn, side="right")
    row, column = np.divmod(drawn - last[document] + places[document].prod(axis=1), places[document, 1])
    oblong = shape[0] != shape[1]
    symmetry = (words[size:] % np.uint64(SYMMETRIES // (1 + oblong))).astype(np.int64) * (1 + oblong)
    grids = [
        transformed(split.images[n][r : r + shape[0], c : c + shape[1]], s).ravel()
        for n, r, c, s in zip(document, row, column, symmetry, strict=True)
    ]
    return np.stack(grids).astype(np.int64)


def transformed(grid: NDArray[np.uint8], symmetry: int) -> NDArray[np.uint8]:
    """A grid after the symmetry of a number: quarter turns, then mirrored left to right from 4 on.

    >>> [transformed(np.array([[1, 2], [3, 4]], np.uint8), s).ravel().tolist() for s in (0, 1, 2, 4, 6)]
    [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [2, 1, 4, 3], [3, 4, 1, 2]]
    """
    turned = np.rot90(grid, symmetry % 4)
    return np.fliplr(turned) if symmetry >= 4 else turned
