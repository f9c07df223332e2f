"""The tile shapes of the kernels, and whether the kernels are compiled or interpreted."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

INTERPRETED = bool(triton.knobs.runtime.interpret)  # true if TRITON_INTERPRET was 1 when triton was first imported


class TileShape(NamedTuple):
    """The queries and keys of a tile, the warps of a program and the stages of its software pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


def padded(width: int) -> int:
    """The width of a vector in registers: the next power of two, at least 16."""
    return max(16, triton.next_power_of_2(width))


def forward_shape(width: int, dtype: torch.dtype, square: bool) -> TileShape:
    """The shape for vectors of at most `width` numbers; `square` tiles are needed for relative vectors.

    The shapes fit the registers and the 227 KiB of shared memory of a Hopper GPU, for which the kernels were compiled;
    they are not tuned by timing. With a table at width 64 or below, ptxas spills at most 24 bytes per thread. Products
    of float32 numbers run outside the tensor cores and need small tiles.
    """
    if dtype == torch.float32:
        return _float32(width, square)
    if width > 128:
        return _wide(width)
    if square:
        return TileShape(64, 64, 8, 2 if width <= 64 else 1)
    return TileShape(128, 64, 4, 3) if width <= 64 else TileShape(128, 64, 8, 2)


def backward_shapes(width: int, dtype: torch.dtype, square: bool) -> tuple[TileShape, TileShape, TileShape]:
    """The shapes for the backward kernels by queries, by keys and by distances (always square); not tuned either.

    The side that a program owns is the longer one, because it decides how often the other operands are read.
    """
    if dtype == torch.float32:
        return (_float32(width, square),) * 2 + (_float32(width, True),)
    if width > 128:
        return (_wide(width),) * 3
    if square:
        return (TileShape(64, 64, 8, 1),) * 3
    by_distance = TileShape(128, 128, 8, 2) if width <= 64 else TileShape(64, 64, 8, 2)
    return TileShape(128, 64, 8, 2), TileShape(64, 128, 8, 2), by_distance


def _float32(width: int, square: bool) -> TileShape:
    return TileShape(16, 16, 4, 1) if width > 128 or (square and width > 64) else TileShape(32, 32, 4, 1)


def _wide(width: int) -> TileShape:
    """The shape for queries and keys that an encoding has widened, or for concatenated vectors of several encodings."""
    return TileShape(32, 32, 4, 1) if width <= 256 else TileShape(16, 16, 4, 1)
