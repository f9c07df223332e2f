"""Grids: windows whose tokens are the cells of an image in raster order, at positions (row, column)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def grid_shape(cells: int) -> tuple[int, int]:
    """Rows and columns of the grid of so many cells: as square as its divisors allow, and never higher than wide.

    >>> grid_shape(256), grid_shape(512), grid_shape(7)
    ((16, 16), (16, 32), (1, 7))
    """
    rows = next(rows for rows in range(math.isqrt(cells), 0, -1) if cells % rows == 0)
    return rows, cells // rows


def columns_of(cells: int) -> int:
    """The columns of the grid of so many cells; see `grid_shape`."""
    return grid_shape(cells)[1]


def raster(index: Tensor, columns: int) -> Tensor:
    """The row and column `[..., 2]` of tokens by their order `[...]` in the sequence."""
    return torch.stack([index // columns, index % columns], dim=-1)
