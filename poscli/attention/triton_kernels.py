"""Causal flash attention with a learned number per distance added to its scores, in Triton.

    s_ij = scale q_i . k_j + table[i-j]        j <= i
    o_i  = sum_j softmax_j(s_ij) v_j

Torch's fused kernels take a bias, but have no gradient for it: the gradient of the table is what these kernels are for.
The blocks and the backward pass follow Dao, 2023, arXiv:2307.08691. Memory beside inputs and outputs is two float32 per
query, and twice the table for each of up to B parts of the batch. Every number of a gradient is written by one program
without atomics, so gradients are identical in every run.

With TRITON_INTERPRET=1 in the environment when triton is first imported, the same code runs on CPU, thousands of times
slower. Importing this module imports triton, so the engine (triton.py) imports it only when a kernel first runs.

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D and E widths of queries and
values. Inside a kernel all tensors are contiguous, and a tile has N queries and N keys; x, y, z and g are rows of q, k,
v and do (the gradient of the output). Scores are in units of log 2, because the hardware computes exp2.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

# The batch is divided until the kernel by distances has this many programs.
LEAST_DISTANCE_PROGRAMS = 1024
# The interpreter stores bfloat16 as integers, and would multiply those.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


def flash(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSE: Tensor, table_HN: Tensor, scale: float) -> Tensor:
    """Attention output `[B, H, T, E]` in the dtype of the values (float32, bfloat16 or float16).

    `table_HN` is `[H or 1, n]` with n >= S, for the distances 0..n-1. Gradients go to all four tensors.
    """
    heads, keys = q_BHTD.shape[1], k_BHSD.shape[2]
    assert 1 <= q_BHTD.shape[2] <= keys <= table_HN.shape[1]
    most = max(1, (2**16 - 1) // heads)  # the limit on programs along the second axis of a CUDA grid
    if len(q_BHTD) > most:
        parts = zip(q_BHTD.split(most), k_BHSD.split(most), v_BHSE.split(most), strict=True)
        return torch.cat([flash(q, k, v, table_HN, scale) for q, k, v in parts])
    table_HS = table_HN[:, :keys].float().expand(heads, keys)
    return _Flash.apply(*(x.contiguous() for x in (q_BHTD, k_BHSD, v_BHSE, table_HS)), scale)


class _Flash(torch.autograd.Function):
    """The kernels with their backward pass, for contiguous tensors."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float) -> Tensor:
        table = table / math.log(2)
        o = v.new_empty(*q.shape[:3], v.shape[3])
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        # The forward pass needs no gradient of the output, nor its product with the output: any pointer serves.
        _by_queries(q, k, v, table, scale, lse, o, o, lse, backward=False)
        ctx.save_for_backward(q, k, v, table, o, lse)
        ctx.scale = scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, table, o, lse = ctx.saved_tensors
        do = do.contiguous()
        delta = (o.float() * do.float()).sum(-1)  # [B, H, T]
        inputs = (q, k, v, table, ctx.scale, lse)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        _by_queries(*inputs, dq, do, delta, backward=True)
        _by_keys(*inputs, dk, dv, do, delta)
        d_table = _by_distances(*inputs, do, delta) if ctx.needs_input_grad[3] else None
        return dq, dk, dv, d_table, None


def _by_queries(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    scale: float,
    lse: Tensor,
    out: Tensor,
    do: Tensor,
    delta: Tensor,
    *,
    backward: bool,
) -> None:
    """Fill `out` with the output, and `lse`; or, if `backward`, `out` with the gradient of the queries."""
    batch, heads, queries, _ = q.shape
    known, side = _known(q, k, v)
    with torch.cuda.device_of(q):
        query_kernel[(triton.cdiv(queries, side), batch * heads)](
            q, k, v, table, lse, do, delta, out, scale / math.log(2), scale, **known, BACKWARD=backward
        )


def _by_keys(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    scale: float,
    lse: Tensor,
    dk: Tensor,
    dv: Tensor,
    do: Tensor,
    delta: Tensor,
) -> None:
    """Fill `dk` and `dv` with the gradients of keys and values."""
    batch, heads, keys, _ = k.shape
    known, side = _known(q, k, v)
    with torch.cuda.device_of(q):
        key_kernel[(triton.cdiv(keys, side), batch * heads)](
            q, k, v, table, lse, do, delta, dk, dv, scale / math.log(2), scale, **known
        )


def _by_distances(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float, lse: Tensor, do: Tensor, delta: Tensor
) -> Tensor:
    """The gradient of the table, `[H, S]` in float32."""
    batch, heads, keys, _ = k.shape
    known, side = _known(q, k, v)
    blocks = triton.cdiv(keys, side) + 1
    parts = min(batch, triton.cdiv(LEAST_DISTANCE_PROGRAMS, blocks * heads))
    sums = lse.new_empty(parts, heads, blocks, 2, side)
    with torch.cuda.device_of(q):
        distance_kernel[(blocks, heads, parts)](
            q, k, v, table, lse, do, delta, sums, scale / math.log(2), batch, **known
        )
    # Each program has written the distances of its own block, and those of the block before.
    before, own = sums.sum(0).unbind(2)
    own[:, :-1] += before[:, 1:]
    return own.flatten(1)[:, :keys].contiguous()


def side_of_tiles(width: int, dtype: torch.dtype) -> int:
    """The queries, and the keys, of a tile for vectors of at most `width` numbers.

    The tiles fit the registers and the 227 KiB of shared memory of a Hopper GPU, for which the kernels were compiled;
    they are not tuned by timing. Products of float32 numbers run outside the tensor cores and need small tiles, as do
    the wide queries and keys of some encodings.
    """
    if dtype == torch.float32:
        return 16 if width > 128 else 32
    return 64 if width <= 128 else 32 if width <= 256 else 16


def _known(q: Tensor, k: Tensor, v: Tensor) -> tuple[dict[str, Any], int]:
    """The sizes that every kernel is told, most of them compile-time constants; and the side of its tiles."""
    D, E = q.shape[3], v.shape[3]
    D_PADDED, E_PADDED = (max(16, triton.next_power_of_2(width)) for width in (D, E))
    side = side_of_tiles(max(D_PADDED, E_PADDED), q.dtype)
    precision = "ieee" if q.dtype == torch.float32 else "tf32"  # concerns products of float32 numbers only
    known: dict[str, Any] = {"H": q.shape[1], "T": q.shape[2], "S": k.shape[2]}
    known |= {"D": D, "D_PADDED": D_PADDED, "E": E, "E_PADDED": E_PADDED, "N": side, "PRECISION": precision}
    return known, side


@triton.jit
def product(x, y, total, PRECISION: tl.constexpr):
    """The matrix product x y in float32, plus `total` unless that is None."""
    if INTERPRETED:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def get_rows(matrix, index, count, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows `index` of a matrix `[count, WIDTH]`, `[len(index), PADDED]`; 0 outside of the matrix."""
    column = tl.arange(0, PADDED)[None, :]
    inside = (index[:, None] >= 0) & (index[:, None] < count) & (column < WIDTH)
    return tl.load(matrix + index[:, None] * WIDTH + column, mask=inside, other=0.0)


@triton.jit
def put_rows(matrix, index, count, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Write x to the rows `index` of a matrix `[count, WIDTH]`; entries outside of the matrix are not written."""
    column = tl.arange(0, PADDED)[None, :]
    inside = (index[:, None] < count) & (column < WIDTH)
    tl.store(matrix + index[:, None] * WIDTH + column, x.to(matrix.dtype.element_ty), mask=inside)


@triton.jit
def scores_of_pairs(x, y, i, j, table, S, scale, PRECISION: tl.constexpr):
    """Scores `[N, N]` of the queries i and keys j, both counted as tokens; -inf where a key is not visible."""
    d = i[:, None] - j[None, :]
    visible = (d >= 0) & (d < S) & (j[None, :] >= 0) & (j[None, :] < S)
    return product(x, tl.trans(y), None, PRECISION) * scale + tl.load(table + d, mask=visible, other=float("-inf"))


@triton.jit
def query_kernel(
    q, k, v,
    table,  # [H, S] in units of log 2
    lse,  # [B, H, T], the log-sum-exp of each row in units of log 2
    do,
    delta,  # [B, H, T], sum_e o do
    out,  # o, or dq
    scale,  # the factor on q . k in units of log 2
    gain,  # this factor itself
    H, T, S, D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """One block of queries of a text and head, over all keys: the output and lse or, if BACKWARD, dq = dS k."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * N  # the longest rows first
    at = tl.program_id(1).to(tl.int64)  # the index into batch and heads together
    m = first + tl.arange(0, N)
    i = S - T + m
    table += at % H * S
    x = get_rows(q + at * T * D, m, T, D, D_PADDED)
    if BACKWARD:
        g = get_rows(do + at * T * E, m, T, E, E_PADDED)
        log_sum = tl.load(lse + at * T + m, mask=m < T, other=float("inf"))
        share = tl.load(delta + at * T + m, mask=m < T, other=0.0)
        acc = tl.zeros([N, D_PADDED], tl.float32)
    else:
        peak = tl.full([N], float("-inf"), tl.float32)
        total = tl.zeros([N], tl.float32)
        acc = tl.zeros([N, E_PADDED], tl.float32)
    for key in range(0, tl.minimum(S, S - T + first + N), N):
        j = key + tl.arange(0, N)
        y = get_rows(k + at * S * D, j, S, D, D_PADDED)
        z = get_rows(v + at * S * E, j, S, E, E_PADDED)
        s = scores_of_pairs(x, y, i, j, table, S, scale, PRECISION)
        if BACKWARD:
            p = tl.exp2(s - log_sum[:, None])
            ds = p * (product(g, tl.trans(z), None, PRECISION) - share[:, None])
            acc = product(ds.to(y.dtype), y, acc, PRECISION)
        else:
            higher = tl.maximum(peak, tl.max(s, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen no key yet
            p = tl.exp2(s - base[:, None])
            shrink = tl.exp2(peak - base)
            acc = product(p.to(z.dtype), z, acc * shrink[:, None], PRECISION)
            total = total * shrink + tl.sum(p, 1)
            peak = higher
    if BACKWARD:
        put_rows(out + at * T * D, m, T, acc * gain, D, D_PADDED)
    else:
        total = tl.maximum(total, 1.0)  # at least 1, except in rows after the last query
        put_rows(out + at * T * E, m, T, acc / total[:, None], E, E_PADDED)
        tl.store(lse + at * T + m, peak + tl.log2(total), mask=m < T)


@triton.jit
def key_kernel(
    q, k, v, table, lse, do, delta, dk, dv, scale, gain,
    H, T, S, D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of keys of a text and head, over all queries: dk = dS^T q and dv = P^T do."""
    first = tl.program_id(0) * N  # the longest columns first: most queries see the early keys
    at = tl.program_id(1).to(tl.int64)
    j = first + tl.arange(0, N)
    table += at % H * S
    y = get_rows(k + at * S * D, j, S, D, D_PADDED)
    z = get_rows(v + at * S * E, j, S, E, E_PADDED)
    acc_k = tl.zeros([N, D_PADDED], tl.float32)
    acc_v = tl.zeros([N, E_PADDED], tl.float32)
    for query in range(tl.maximum(0, first - (S - T)) // N * N, T, N):
        m = query + tl.arange(0, N)
        x = get_rows(q + at * T * D, m, T, D, D_PADDED)
        g = get_rows(do + at * T * E, m, T, E, E_PADDED)
        s = scores_of_pairs(x, y, S - T + m, j, table, S, scale, PRECISION)
        p = tl.exp2(s - tl.load(lse + at * T + m, mask=m < T, other=float("inf"))[:, None])
        share = tl.load(delta + at * T + m, mask=m < T, other=0.0)
        ds = p * (product(g, tl.trans(z), None, PRECISION) - share[:, None])
        acc_v = product(tl.trans(p.to(g.dtype)), g, acc_v, PRECISION)
        acc_k = product(tl.trans(ds.to(x.dtype)), x, acc_k, PRECISION)
    put_rows(dk + at * S * D, j, S, acc_k * gain, D, D_PADDED)
    put_rows(dv + at * S * E, j, S, acc_v, E, E_PADDED)


@triton.jit
def distance_kernel(
    q, k, v, table, lse, do, delta,
    sums,  # [parts, H, blocks, 2, N]: the sums of the distances from apart - N on, and of those from apart on
    scale, texts,
    H, T, S, D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of distances of a head, over the texts part, part + parts, ...: the sums of dS along its diagonals.

    The tiles whose first query and first key are `apart` tokens apart hold the distances apart + m - n, which belong to
    the block and to the one before it. The tiles are summed first, and their sum is then summed along its diagonals.
    Recomputing dS costs two products per tile; sums written beside dk and dv would save those, but take
    O(length^2 / N) memory.
    """
    apart = tl.program_id(0) * N
    head, part, parts = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    table += head * S
    r = tl.arange(0, N)
    acc = tl.zeros([N, N], tl.float32)
    for text in range(part, texts, parts):
        at = head.to(tl.int64) + text * H
        # Earlier queries have no key at this distance.
        for query in range(tl.maximum(0, apart - (S - T) - N + 1) // N * N, T, N):
            m = query + r
            i = S - T + m
            j = i - apart
            x = get_rows(q + at * T * D, m, T, D, D_PADDED)
            y = get_rows(k + at * S * D, j, S, D, D_PADDED)
            z = get_rows(v + at * S * E, j, S, E, E_PADDED)
            g = get_rows(do + at * T * E, m, T, E, E_PADDED)
            s = scores_of_pairs(x, y, i, j, table, S, scale, PRECISION)
            p = tl.exp2(s - tl.load(lse + at * T + m, mask=m < T, other=float("inf"))[:, None])
            share = tl.load(delta + at * T + m, mask=m < T, other=0.0)
            acc += p * (product(g, tl.trans(z), None, PRECISION) - share[:, None])
    # Column c of row r takes the pair with key r - c, at the distance apart + c, or for c > r apart + c - N.
    by_distance = tl.gather(acc, (r[:, None] - r[None, :]) & (N - 1), 1)
    own = r[None, :] <= r[:, None]
    out = sums + ((part.to(tl.int64) * H + head) * tl.num_programs(0) + tl.program_id(0)) * 2 * N
    tl.store(out + r, tl.sum(tl.where(own, 0.0, by_distance), 0))
    tl.store(out + N + r, tl.sum(tl.where(own, by_distance, 0.0), 0))
