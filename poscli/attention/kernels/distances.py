"""The gradients of the terms that depend on the distance: a table, and vectors a and b.

A program owns a block of distances of one head. It visits the tiles along that diagonal of the score matrix and
recomputes their dS, so all sums over pairs stay in its registers. For a table the tiles are summed first, and their
sum is then summed along its diagonals. Recomputing costs two products per tile; partial tables written beside dk and
dv would save those products but take O(length^2 / block) memory.

The distances apart + m - n of a tile belong to the program's own block and to the block before, so every program writes
both parts, and the caller adds them.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from poscli.attention.kernels.pairs import get_rows, near_in_columns, near_in_rows, product, scores, shift_rows, visible


@triton.jit
def distance_kernel(
    q, k, v, do,
    d_table,  # [parts, H, blocks, 2, N]: the distances from apart - N on, and those from apart on
    d_a,  # [parts, H, blocks, 2, N, A]
    d_b,  # [parts, H, blocks, 2, N, B]
    lse, delta, q_met, k_met, table, a, b, c, reach,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, table_h, a_h, b_h,
    scale, gain, texts, H, T, S,
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr, TABLE: tl.constexpr,
    A: tl.constexpr, A_PADDED: tl.constexpr, B: tl.constexpr, B_PADDED: tl.constexpr, POTENTIAL: tl.constexpr,
    REACH: tl.constexpr,
    SUM_TABLE: tl.constexpr,  # SUM_TABLE, SUM_A, SUM_B: the gradients that are wanted
    SUM_A: tl.constexpr, SUM_B: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients for one block of distances and one head, summed over the texts part, part + parts, ..."""
    apart = tl.program_id(0) * N
    head, part, parts = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    out = (part.to(tl.int64) * H + head) * tl.num_programs(0) + tl.program_id(0)
    before = S - T
    table += head * table_h
    a += head * a_h
    b += head * b_h
    far = S
    if REACH:
        far = tl.load(reach + head)
    low = tl.maximum(0, apart - before - N + 1) // N * N  # earlier queries have no key at this distance
    high = tl.where(apart - N + 1 < far, T, low)  # an empty range beyond the reach

    r = tl.arange(0, N)
    acc = tl.zeros([N, N], tl.float32)
    if SUM_A:
        a_high = tl.zeros([N, A_PADDED], tl.float32)
        a_low = tl.zeros([N, A_PADDED], tl.float32)
    if SUM_B:
        b_high = tl.zeros([N, B_PADDED], tl.float32)
        b_low = tl.zeros([N, B_PADDED], tl.float32)
    for text in range(part, texts, parts):
        at = head.to(tl.int64) + text * H
        t = at // H  # the index of the text, in 64 bits
        x_base = q + t * q_b + head * q_h
        y_base = k + t * k_b + head * k_h
        z_base = v + t * v_b + head * v_h
        g_base = do + t * o_b + head * o_h
        for query in range(low, high, N):
            m = query + r
            i = before + m
            j = i - apart
            x = get_rows(x_base, m, T, q_t, D, D_PADDED)
            y = get_rows(y_base, j, S, k_t, D, D_PADDED)
            x_met, y_met = x, y
            if A > 0:
                x_met = get_rows(q_met + at * T * A, m, T, A, A, A_PADDED)
            if B > 0:
                y_met = get_rows(k_met + at * S * B, j, S, B, B, B_PADDED)
            s = scores(
                x, y, x_met, y_met, i, j, apart, table, a, b, c + at * 2 * S, S, scale,
                1, TABLE, A, A_PADDED, B, B_PADDED, POTENTIAL, N, PRECISION,
            )  # fmt: skip
            s = tl.where(visible(i[:, None], j[None, :], S, far, REACH), s, float("-inf"))
            log_sum = tl.load(lse + at * T + m, mask=m < T, other=float("inf"))
            p = tl.exp2(s - log_sum[:, None])
            g = get_rows(g_base, m, T, o_t, E, E_PADDED)
            z = get_rows(z_base, j, S, v_t, E, E_PADDED)
            dp = product(g, tl.trans(z), None, PRECISION)
            share = tl.load(delta + at * T + m, mask=m < T, other=0.0)
            ds = p * (dp - share[:, None])
            if SUM_TABLE:
                acc += ds
            if SUM_A:
                by_distance = shift_rows(ds, 1, N)
                near = near_in_rows(1, N)
                of_high = tl.trans(tl.where(near, by_distance, 0.0).to(x_met.dtype))
                of_low = tl.trans(tl.where(near, 0.0, by_distance).to(x_met.dtype))
                a_high = product(of_high, x_met, a_high, PRECISION)
                a_low = product(of_low, x_met, a_low, PRECISION)
            if SUM_B:
                by_distance = tl.gather(ds, (r[:, None] + r[None, :]) & (N - 1), 0)
                near = near_in_columns(1, N)
                of_high = tl.where(near, by_distance, 0.0).to(y_met.dtype)
                of_low = tl.where(near, 0.0, by_distance).to(y_met.dtype)
                b_high = product(of_high, y_met, b_high, PRECISION)
                b_low = product(of_low, y_met, b_low, PRECISION)
    if SUM_TABLE:
        by_distance = shift_rows(acc, 1, N)
        near = near_in_rows(1, N)
        tl.store(d_table + out * 2 * N + r, tl.sum(tl.where(near, 0.0, by_distance), 0))
        tl.store(d_table + out * 2 * N + N + r, tl.sum(tl.where(near, by_distance, 0.0), 0))
    if SUM_A:
        column = tl.arange(0, A_PADDED)[None, :]
        here = d_a + out * 2 * N * A + r[:, None] * A + column
        tl.store(here, a_low * gain, mask=column < A)
        tl.store(here + N * A, a_high * gain, mask=column < A)
    if SUM_B:
        column = tl.arange(0, B_PADDED)[None, :]
        here = d_b + out * 2 * N * B + r[:, None] * B + column
        tl.store(here, b_low * gain, mask=column < B)
        tl.store(here + N * B, b_high * gain, mask=column < B)
