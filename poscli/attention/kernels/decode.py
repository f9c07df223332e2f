"""One query per head against a long cache: the keys are split among programs, whose results are then combined.

(Flash-decoding: Dao et al., 2023, crfm.stanford.edu/2023/10/12/flashdecoding.html.) A single query cannot use the
tensor cores: products are sums over a tile, and the time is that of reading k and v once. There is no gradient.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from poscli.attention.kernels.flash import Call, arranged, packed
from poscli.attention.kernels.pairs import get_rows
from poscli.attention.kernels.tile_shapes import padded

LEAST_KEYS_PER_PROGRAM = 512
MOST_PARTS = 64  # per head: the second kernel combines them at once
TILE_KEYS = 64


@triton.jit
def part_kernel(
    q, k, v,
    parts,  # [B, H, parts, E] in float32: sum_j p_j v_j of the keys of a part, p relative to its peak
    peaks,  # [B, H, parts] in units of log 2
    totals,  # [B, H, parts], sum_j p_j
    q_met, k_met, table, a, b, c, reach,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, table_h, a_h, b_h,
    scale, H, S,
    length,  # keys of a part, a multiple of N
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr, TABLE: tl.constexpr,
    A: tl.constexpr, A_PADDED: tl.constexpr, B: tl.constexpr, B_PADDED: tl.constexpr, POTENTIAL: tl.constexpr,
    REACH: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Unnormalised attention to one part of the keys."""
    part, text, head = tl.program_id(0), (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    at = tl.program_id(1).to(tl.int64)
    k += text * k_b + head * k_h
    v += text * v_b + head * v_h
    c += at * 2 * S
    one = tl.zeros([1], tl.int32)
    x = get_rows(q + text * q_b + head * q_h, one, 1, q_t, D, D_PADDED).to(tl.float32)
    if A > 0:
        x_met = get_rows(q_met + at * A, one, 1, A, A, A_PADDED).to(tl.float32)

    low, high = part * length, tl.minimum(S, (part + 1) * length)
    far = S
    if REACH:
        far = tl.load(reach + head)
        low = tl.maximum(low, (S - far) // N * N)
    peak = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([E_PADDED], tl.float32)
    for key in range(low, high, N):
        j = key + tl.arange(0, N)
        d = S - 1 - j
        s = tl.sum(get_rows(k, j, S, k_t, D, D_PADDED).to(tl.float32) * x, 1)
        if A > 0:
            s += tl.sum(get_rows(a + head * a_h, d, S, A, A, A_PADDED).to(tl.float32) * x_met, 1)
        if B > 0:
            met = get_rows(k_met + at * S * B, j, S, B, B, B_PADDED).to(tl.float32)
            s += tl.sum(get_rows(b + head * b_h, d, S, B, B, B_PADDED).to(tl.float32) * met, 1)
        s *= scale
        if TABLE:
            s += tl.load(table + head * table_h + d, mask=d >= 0, other=0.0)
        if POTENTIAL:
            s += tl.load(c + S - 1) - tl.load(c + j, mask=j < S, other=0.0)
            s += tl.load(c + 2 * S - 1) - tl.load(c + S + j, mask=j < S, other=0.0)
        s = tl.where((j < S) & (d < far), s, float("-inf"))
        higher = tl.maximum(peak, tl.max(s, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - base)
        shrink = tl.exp2(peak - base)
        acc = acc * shrink + tl.sum(get_rows(v, j, S, v_t, E, E_PADDED).to(tl.float32) * p[:, None], 0)
        total = total * shrink + tl.sum(p, 0)
        peak = higher
    out = at * tl.num_programs(0) + part
    column = tl.arange(0, E_PADDED)
    tl.store(parts + out * E + column, acc, mask=column < E)
    tl.store(peaks + out + one, peak)
    tl.store(totals + out + one, total)


@triton.jit
def combine_kernel(o, parts, peaks, totals, count, E: tl.constexpr, E_PADDED: tl.constexpr, PARTS: tl.constexpr):
    """The output of a head: its parts, each weighted by exp of its peak, over the sum of their totals."""
    at = tl.program_id(0).to(tl.int64)
    part, column = tl.arange(0, PARTS), tl.arange(0, E_PADDED)
    peak = tl.load(peaks + at * count + part, mask=part < count, other=float("-inf"))
    weight = tl.exp2(peak - tl.max(peak, 0))
    total = tl.load(totals + at * count + part, mask=part < count, other=0.0)
    x = get_rows(parts + at * count * E, part, count, E, E, E_PADDED)
    out = tl.sum(x * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(o + at * E + column, out.to(o.dtype.element_ty), mask=column < E)


@torch.no_grad()
def decode(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSE: Tensor,
    *,
    scale: float,
    table: Tensor | None = None,
    a: Tensor | None = None,
    q_met: Tensor | None = None,
    b: Tensor | None = None,
    k_met: Tensor | None = None,
    potential: Tensor | None = None,
    reach: int | Tensor | None = None,
) -> Tensor:
    """`flash` for a single query, T = 1, without a gradient; the parameters are those of `flash`."""
    assert q_BHTD.shape[2] == 1
    q, k, v, *given = arranged(q_BHTD, k_BHSD, v_BHSE, table, a, q_met, b, k_met, potential, reach)
    assert q is not None and k is not None and v is not None  # noqa: PT018
    call = Call(q, k, v, v, packed(*given), scale)
    length = max(LEAST_KEYS_PER_PROGRAM, triton.cdiv(triton.cdiv(call.keys, MOST_PARTS), TILE_KEYS) * TILE_KEYS)
    count = triton.cdiv(call.keys, length)
    width = v.shape[-1]
    parts = torch.empty(call.batch, call.heads, count, width, dtype=torch.float32, device=q.device)
    peaks, totals = torch.empty(2, call.batch, call.heads, count, dtype=torch.float32, device=q.device)
    o = v.new_empty(call.batch, call.heads, 1, width)
    flags = {name: value for name, value in call.flags.items() if name != "PRECISION"}
    with torch.cuda.device_of(q):
        part_kernel[(count, call.batch * call.heads)](
            q, k, v, parts, peaks, totals, *call.terms, *call.strides[:9], *call.strides[12:], scale / math.log(2),
            call.heads, call.keys, length, **flags, N=TILE_KEYS,
        )  # fmt: skip
        combine_kernel[(call.batch * call.heads,)](
            o, parts, peaks, totals, count, E=width, E_PADDED=padded(width), PARTS=triton.next_power_of_2(count)
        )
    return o
