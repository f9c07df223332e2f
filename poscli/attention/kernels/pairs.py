"""The scores of a tile, shared by the forward and all backward kernels, so that all of them compute equal weights.

A tile is M queries by N keys (SIGN = 1), or the transpose with keys as rows (SIGN = -1), which the backward kernel for
k and v uses. Within a tile the distance is apart + m - n, with m and n counted from the tile's corner. The products of
a tile's rows with relative vectors are one matrix product with a band of distances; each row of that product must then
be shifted by its own index to meet its pairs. In square tiles the shift is cyclic: column c of a row holds the distance
apart + c or, past the edge, apart + c - N. Two products of the usual size, a selection and one `tl.gather` compute this
in registers.

Scores are in units of log 2, because the hardware computes exp2.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from poscli.attention.kernels.tile_shapes import INTERPRETED

# A table is read by one load per pair from the first-level cache into the thread that holds the score of the pair. By
# default triton would pipeline whole tiles of the table through shared memory, as it does for operands of products.
DIRECT = tl.constexpr(not INTERPRETED and torch.version.hip is None)
UPCAST = tl.constexpr(INTERPRETED)  # the interpreter stores bfloat16 as integers and would multiply those


@triton.jit
def product(x, y, total, PRECISION: tl.constexpr):
    """The matrix product x y in float32, plus `total` unless that is None."""
    if UPCAST:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def look_up(table, i, j):
    """table[i - j] for queries and keys whose shapes broadcast."""
    if DIRECT:
        address = (table.to(tl.int64) + 4 * i.to(tl.int64)) - 4 * j.to(tl.int64)
        found = tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [address], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        found = tl.load(table + (i - j))
    return found


@triton.jit
def get_rows(base, index, count, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows `index` of a matrix whose rows are `stride` apart, `[len(index), PADDED]`; 0 outside of the matrix."""
    column = tl.arange(0, PADDED)
    inside = (index[:, None] >= 0) & (index[:, None] < count)
    if WIDTH != PADDED:
        inside &= column[None, :] < WIDTH
    return tl.load(base + index[:, None] * stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def put_rows(base, index, count, stride, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Write x to the rows `index` of a matrix; entries outside of the matrix are not written."""
    column = tl.arange(0, PADDED)
    inside = index[:, None] < count
    if WIDTH != PADDED:
        inside &= column[None, :] < WIDTH
    tl.store(base + index[:, None] * stride + column[None, :], x.to(base.dtype.element_ty), mask=inside)


@triton.jit
def bands(base, apart, count, WIDTH: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr):
    """The vectors of the distances apart..apart + N - 1, and those of the N distances before, `[N, PADDED]` each."""
    d = apart + tl.arange(0, N)
    return get_rows(base, d, count, WIDTH, WIDTH, PADDED), get_rows(base, d - N, count, WIDTH, WIDTH, PADDED)


@triton.jit
def shift_rows(x, SIGN: tl.constexpr, N: tl.constexpr):
    """out[r, c] = x[r, (r - SIGN c) mod N]: from pairs to distances. For SIGN = 1 this is its own inverse."""
    r = tl.arange(0, N)
    return tl.gather(x, (r[:, None] - SIGN * r[None, :]) & (N - 1), 1)


@triton.jit
def near_in_rows(SIGN: tl.constexpr, N: tl.constexpr):
    """`[N, N]`, true where column c of row r stands for the distance apart + c, false for apart + c - N."""
    r = tl.arange(0, N)
    if SIGN == 1:
        near = r[None, :] <= r[:, None]
    else:
        near = r[None, :] + r[:, None] < N
    return near


@triton.jit
def near_in_columns(SIGN: tl.constexpr, N: tl.constexpr):
    """`[N, N]`, true where row c of column t stands for the distance apart + c, false for apart + c - N."""
    r = tl.arange(0, N)
    if SIGN == 1:
        near = r[:, None] + r[None, :] < N
    else:
        near = r[:, None] <= r[None, :]
    return near


@triton.jit
def met_by_rows(
    x, base, apart, count, SIGN: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, PRECISION
):
    """x_r . w[d(r, t)], `[N, N]`, for the vectors x of a tile's rows and the distance d of row r and column t."""
    high, low = bands(base, apart, count, WIDTH, PADDED, N)
    by_high = product(x, tl.trans(high), None, PRECISION)
    by_low = product(x, tl.trans(low), None, PRECISION)
    by_distance = tl.where(near_in_rows(SIGN, N), by_high, by_low)
    r = tl.arange(0, N)
    return tl.gather(by_distance, (SIGN * (r[:, None] - r[None, :])) & (N - 1), 1)


@triton.jit
def met_by_columns(
    x, base, apart, count, SIGN: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, N: tl.constexpr, PRECISION
):
    """x_t . w[d(r, t)], `[N, N]`, for the vectors x of a tile's columns and the distance d of row r and column t."""
    high, low = bands(base, apart, count, WIDTH, PADDED, N)
    by_high = product(high, tl.trans(x), None, PRECISION)
    by_low = product(low, tl.trans(x), None, PRECISION)
    by_distance = tl.where(near_in_columns(SIGN, N), by_high, by_low)
    r = tl.arange(0, N)
    return tl.gather(by_distance, (SIGN * (r[:, None] - r[None, :])) & (N - 1), 0)


@triton.jit
def scores(
    q,  # [M, D]
    k,  # [N, D]
    q_met,  # [M, A] queries that meet the vectors a
    k_met,  # [N, D] keys that meet the vectors b
    i,  # [M] queries, counted as tokens
    j,  # [N] keys
    apart,  # i[0] - j[0]
    table,  # of this head, at distance 0
    a, b,
    c,  # of this text and head: [2, S], the high parts and the low parts
    S, scale,
    SIGN: tl.constexpr, TABLE: tl.constexpr, A: tl.constexpr, A_PADDED: tl.constexpr, B: tl.constexpr,
    B_PADDED: tl.constexpr, POTENTIAL: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores of a tile, `[M, N]` (SIGN = 1) or `[N, M]` (SIGN = -1), before hidden pairs are masked.

    A and B are the widths of the relative vectors, 0 if there are none.
    """
    if SIGN == 1:
        s = product(q, tl.trans(k), None, PRECISION)
        if A > 0:
            s += met_by_rows(q_met, a, apart, S, SIGN, A, A_PADDED, N, PRECISION)
        if B > 0:
            s += met_by_columns(k_met, b, apart, S, SIGN, B, B_PADDED, N, PRECISION)
        s *= scale
        i, j = i[:, None], j[None, :]
    else:
        s = product(k, tl.trans(q), None, PRECISION)
        if A > 0:
            s += met_by_columns(q_met, a, apart, S, SIGN, A, A_PADDED, N, PRECISION)
        if B > 0:
            s += met_by_rows(k_met, b, apart, S, SIGN, B, B_PADDED, N, PRECISION)
        s *= scale
        i, j = i[None, :], j[:, None]
    if TABLE:
        s += look_up(table, i, j)  # the table is padded on both sides, so that no mask is needed
    if POTENTIAL:
        here, there = i < S, (j >= 0) & (j < S)
        s += tl.load(c + i, mask=here, other=0.0) - tl.load(c + j, mask=there, other=0.0)
        s += tl.load(c + S + i, mask=here, other=0.0) - tl.load(c + S + j, mask=there, other=0.0)
    return s


@triton.jit
def visible(i, j, S, reach, REACH: tl.constexpr):
    """True where query i sees key j; the shapes of i and j broadcast."""
    seen = (i >= j) & (j >= 0) & (j < S)
    if REACH:
        seen &= i - j < reach
    return seen
