"""The bias of tokens on a grid: a table over the distances of rows and columns, read as strided views.

For the queries of one row of the grid and the keys of another, the bias is a skewed view (skew.py) of the 2w - 1
distances of columns. Side by side for all distances of rows, the largest first, these views are the bias of the last
row of queries. The row of queries before it has the same bias w keys earlier. So the bias of every block of m rows is
a slice of one matrix G for the last block, which takes O(block x length) memory.

Shapes: H heads, R rows of the grid, w columns of the grid, m rows of queries in a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention.skew import skew
from poscli.equation import Encoding, Operands


def fits(encoding: Encoding, x: Operands) -> bool:
    """Whether the bias has a table of distances on a grid, and there are enough queries for it to pay."""
    return x.columns is not None and "distance_bias" in encoding.blanks and x.queries >= x.columns


def grid_blocks(encoding: Encoding, x: Operands, most: int) -> Iterator[tuple[Operands, Tensor]]:
    """Blocks of about `most` queries in order, each with its distance bias `[1, H or 1, T, S]`, rows reversed.

    Every block but the first begins with a row of the grid, and the last one ends with the last query. Keys of the
    future have the bias -inf. Keys beyond the reach of all queries of a block are left out; others are not hidden.
    """
    assert x.columns is not None
    w, first = x.columns, x.keys - x.queries
    rows, first_row, reach = math.ceil(x.keys / w), first // w, x.reach or x.keys
    m = max(1, min(most // w, rows - first_row))
    g = _biases_of_rows(encoding, x, rows, m)
    blocks = math.ceil((rows - first_row) / m)
    for row in range(rows - blocks * m, rows, m):  # the last block ends with the last row
        start, stop = max(first, row * w), min((row + m) * w, x.keys)
        first_key = 0 if x.sinks else max(0, start - reach + 1)
        queries = slice((row + m) * w - stop, (row + m) * w - start)
        offset = (rows + 1 - m - row) * w - 1
        yield x.block(start - first, stop - first, first_key), g[None, :, queries, offset + first_key : offset + stop]


def _biases_of_rows(encoding: Encoding, x: Operands, rows: int, m: int) -> Tensor:
    """G for the last m of R rows of queries: `[H or 1, m w, (R + 1) w]`, the last query first.

    Its keys are the cells of all R rows, and those of a row above them: the first token stands at the end of it.
    """
    w, device = x.columns, x.pos_S.device
    assert w is not None
    down, right = torch.arange(rows, -1, -1, device=device), torch.arange(w - 1, -w, -1, device=device)
    d = torch.stack(torch.meshgrid(down, right, indexing="ij"), dim=-1)
    # The cell to predict and those after it, whose distances no formula ever meets.
    future = (d[..., 0] == 0) & (d[..., 1] <= 0)
    bias = encoding.distance_bias(d.masked_fill(future[..., None], 0).flatten(0, 1)).to(x.q_BHTD.dtype)
    by_distance = bias.unflatten(1, future.shape).masked_fill(future, -math.inf)
    of_last_row = skew(by_distance[:, :, None].contiguous(), w, w).transpose(1, 2)  # [H, w, R + 1, w], a view
    if torch.is_grad_enabled():
        longer = F.pad(of_last_row, (0, 0, 0, m - 1), value=-math.inf)
        return torch.stack([longer[:, :, a : a + rows + 1] for a in range(m)], dim=1).flatten(3).flatten(1, 2)
    g = bias.new_empty(len(bias), m, w, rows + 1, w)  # written once: it is large, and further copies take as long
    for a in range(m):
        g[:, a, :, : rows + 1 - a] = of_last_row[:, :, a:]
        g[:, a, :, rows + 1 - a :] = -math.inf
    return g.flatten(3).flatten(1, 2)
