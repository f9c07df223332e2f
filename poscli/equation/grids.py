"""Grids: the shape of a window whose tokens are cells, read in raster order (row by row, from the top left)."""

from __future__ import annotations

import math


def grid_shape(cells: int) -> tuple[int, int]:
    """(rows, columns) of a grid of so many cells: as square as divisors allow, and never higher than wide.

    >>> grid_shape(256), grid_shape(512), grid_shape(2304), grid_shape(7)
    ((16, 16), (16, 32), (48, 48), (1, 7))
    """
    rows = next(divisor for divisor in range(math.isqrt(cells), 0, -1) if cells % divisor == 0)
    return rows, cells // rows


def columns_of(tokens: int) -> int:
    """The number of columns of a window of so many tokens."""
    return grid_shape(tokens)[1]
