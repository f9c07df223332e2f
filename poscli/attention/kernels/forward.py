"""The forward kernel: one program per block of queries, text and head visits the keys that the block can see."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from poscli.attention.kernels.pairs import get_rows, product, put_rows, scores, visible


@triton.jit
def forward_kernel(
    q, k, v, o,
    lse,  # [B, H, T], in units of log 2
    q_met,  # [B, H, T, A]
    k_met,  # [B, H, S, B]
    table, a, b,
    c,  # [B, H, 2, S]
    reach,  # [H]
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, table_h, a_h, b_h,
    scale, H, T, S,
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr, TABLE: tl.constexpr,
    A: tl.constexpr, A_PADDED: tl.constexpr, B: tl.constexpr, B_PADDED: tl.constexpr, POTENTIAL: tl.constexpr,
    REACH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The output o, and the log-sum-exp of each row in units of log 2."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * M  # the longest rows first
    text, head = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    at = tl.program_id(1).to(tl.int64)
    m = first + tl.arange(0, M)
    i = S - T + m
    start = S - T + first
    q += text * q_b + head * q_h
    k += text * k_b + head * k_h
    v += text * v_b + head * v_h
    table += head * table_h
    a += head * a_h
    b += head * b_h
    c += at * 2 * S
    k_met += at * S * B
    x = get_rows(q, m, T, q_t, D, D_PADDED)
    x_met = x
    if A > 0:
        x_met = get_rows(q_met + at * T * A, m, T, A, A, A_PADDED)

    # keys [low, whole) and [past, high) are hidden from some queries, keys [whole, past) from none
    low, whole = 0, 0
    far = S
    if REACH:
        far = tl.load(reach + head)
        low = tl.maximum(0, start - far + 1) // N * N
        whole = tl.cdiv(tl.maximum(0, start + M - far), N) * N
    high = tl.minimum(S, start + M)
    past = tl.minimum(start + 1, S) // N * N
    past = tl.maximum(past, low)
    whole = tl.minimum(whole, past)

    peak = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, E_PADDED], tl.float32)
    for PART in tl.static_range(0 if REACH else 1, 3):
        if PART == 0:
            begin, end = low, whole
        elif PART == 1:
            begin, end = whole, past
        else:
            begin, end = past, high
        for key in range(begin, end, N):
            j = key + tl.arange(0, N)
            y = get_rows(k, j, S, k_t, D, D_PADDED)
            y_met = y
            if B > 0:
                y_met = get_rows(k_met, j, S, B, B, B_PADDED)
            s = scores(
                x, y, x_met, y_met, i, j, start - key, table, a, b, c, S, scale,
                1, TABLE, A, A_PADDED, B, B_PADDED, POTENTIAL, N, PRECISION,
            )  # fmt: skip
            if PART != 1:
                s = tl.where(visible(i[:, None], j[None, :], S, far, REACH), s, float("-inf"))
            higher = tl.maximum(peak, tl.max(s, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen no key yet
            p = tl.exp2(s - base[:, None])
            shrink = tl.exp2(peak - base)
            z = get_rows(v, j, S, v_t, E, E_PADDED)
            acc = product(p.to(z.dtype), z, acc * shrink[:, None], PRECISION)
            total = total * shrink + tl.sum(p, 1)
            peak = higher
    total = tl.maximum(total, 1.0)  # at least 1, except in rows after the last query
    acc /= total[:, None]
    put_rows(o + text * o_b + head * o_h, m, T, o_t, acc, E, E_PADDED)
    tl.store(lse + at * T + m, peak + tl.log2(total), mask=m < T)
