"""Functions of the distance as strided views: a relative bias is one vector per row, not a matrix.

Number a block's queries backwards: row r is query i = last - r. With distances in descending order, column c of a
matrix G stands for distance n - 1 - c, and pair (r, j) is at distance n - 1 - (r + j), so bias[r, j] = G[r, r + j].
That is a strided view of G without a copy: the next row starts one row and one column further.
Columns past the n distances stand for keys after the query.

A table (one row for all queries) then costs O(keys) memory at any length, and q . a[i-j] is one matrix product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def descending(by_distance: Tensor, rows: int, fill: float) -> Tensor:
    """Entries `[H, n, ...]` for distances 0..n-1, reversed and padded for `skew`: `[H, n + rows - 1, ...]`."""
    trailing = [0, 0] * (by_distance.ndim - 2)
    return F.pad(by_distance.flip(1), (*trailing, 0, rows - 1), value=fill).contiguous()


def skew(g: Tensor, rows: int, keys: int) -> Tensor:
    """`[.., rows or 1, N]` -> `[.., rows, keys]` with out[r, j] = g[r, r + j], as a view."""
    return _Skew.apply(g, rows, keys)


def skew_keys(g: Tensor, rows: int) -> Tensor:
    """`[.., keys, N]` -> `[.., rows, keys]` with out[r, j] = g[j, r + j], as a view; here each key has a row of g."""
    return _Skew.apply(g, g.shape[-2], rows).mT


def unskew(p: Tensor, columns: int) -> Tensor:
    """`[.., rows, keys]` -> `[.., rows, columns]` with out[r, r + j] = p[r, j] and 0 elsewhere, as a copy."""
    return _Unskew.apply(p, columns)


class _Skew(torch.autograd.Function):
    """`skew` with its own backward: autograd's backward of a view that reads entries many times is slow."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, rows: int, keys: int) -> Tensor:
        ctx.rows, ctx.columns = g.shape[-2:]
        return _view(g, rows, keys)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        spread = _spread(grad, ctx.columns)
        return (spread.sum(-2, keepdim=True) if ctx.rows == 1 else spread), None, None


class _Unskew(torch.autograd.Function):
    """`unskew`, whose backward is the view."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, columns: int) -> Tensor:
        ctx.rows, ctx.keys = p.shape[-2:]
        return _spread(p, columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _view(grad.contiguous(), ctx.rows, ctx.keys), None


def _spread(p: Tensor, columns: int) -> Tensor:
    *heads, rows, keys = p.shape
    spread = p.new_zeros(*heads, rows, columns)
    _view(spread, rows, keys).copy_(p)  # each entry is written at most once
    return spread


def _view(g: Tensor, rows: int, keys: int) -> Tensor:
    assert rows + keys - 1 <= g.shape[-1]
    along = g.stride(-1)
    down = (g.stride(-2) if g.shape[-2] > 1 else 0) + along
    return g.as_strided((*g.shape[:-2], rows, keys), (*g.stride()[:-2], down, along), g.storage_offset())
