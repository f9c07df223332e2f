"""Tile sizes, and whether the kernels are compiled or interpreted."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

INTERPRETED = bool(triton.knobs.runtime.interpret)  # TRITON_INTERPRET=1 when triton was first imported


class Tiles(NamedTuple):
    """Queries and keys of a tile, warps of a program, stages of its software pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


def padded(width: int) -> int:
    """The width that a tile has in registers: a power of two, 16 at the least."""
    return max(16, triton.next_power_of_2(width))


def forward_tiles(width: int, dtype: torch.dtype, square: bool) -> Tiles:
    """For heads of `width` numbers, the widest of all vectors; `square`: there are relative ones.

    Chosen by what fits the registers and the 227 KiB of shared memory of a Hopper chip, for which the kernels were
    compiled, but untuned: never timed there. Beside a table at width 64 or below, ptxas spills at most 24 bytes a
    thread. Products of float32 numbers run outside the tensor cores and need small tiles.
    """
    if dtype == torch.float32:
        return _float32(width, square)
    if width > 128:
        return _wide(width)
    if square:
        return Tiles(64, 64, 8, 2 if width <= 64 else 1)
    return Tiles(128, 64, 4, 3) if width <= 64 else Tiles(128, 64, 8, 2)


def backward_tiles(width: int, dtype: torch.dtype, square: bool) -> tuple[Tiles, Tiles, Tiles]:
    """The same for the kernels by queries, by keys and by distances (square always); as untuned.

    The side over which a program does not walk is the long one, as it decides how often the other operands are read.
    """
    if dtype == torch.float32:
        return (_float32(width, square),) * 2 + (_float32(width, True),)
    if width > 128:
        return (_wide(width),) * 3
    if square:
        return (Tiles(64, 64, 8, 1),) * 3
    by_distance = Tiles(128, 128, 8, 2) if width <= 64 else Tiles(64, 64, 8, 2)
    return Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 2), by_distance


def _float32(width: int, square: bool) -> Tiles:
    return Tiles(16, 16, 4, 1) if width > 128 or (square and width > 64) else Tiles(32, 32, 4, 1)


def _wide(width: int) -> Tiles:
    """Queries and keys that an encoding has widened, or vectors of several side by side."""
    return Tiles(32, 32, 4, 1) if width <= 256 else Tiles(16, 16, 4, 1)
