"""The backward kernels: dq (and dq_met) by blocks of queries; dk and dv (and dk_met, dc) by blocks of keys.

Each recomputes the weights from the log-sum-exp of the forward pass. Every number of a gradient is written by one
program without atomics, so gradients are identical in every run.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from poscli.attention.kernels.pairs import bands, get_rows, near_in_rows, product, put_rows, scores, shift_rows, visible


@triton.jit
def query_kernel(
    q, k, v, do,
    dq,  # strides of q
    dq_met,  # [B, H, T, A]
    lse,
    delta,  # [B, H, T], sum_e o do
    q_met, k_met, table, a, b, c, reach,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, table_h, a_h, b_h,
    scale,
    gain,  # the factor on q . k; `scale` is this factor in units of log 2
    H, T, S,
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr, TABLE: tl.constexpr,
    A: tl.constexpr, A_PADDED: tl.constexpr, B: tl.constexpr, B_PADDED: tl.constexpr, POTENTIAL: tl.constexpr,
    REACH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq = dS k, and dq_met = dS a for the queries that meet the vectors a."""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * M
    text, head = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    at = tl.program_id(1).to(tl.int64)
    m = first + tl.arange(0, M)
    i = S - T + m
    start = S - T + first
    k += text * k_b + head * k_h
    v += text * v_b + head * v_h
    table += head * table_h
    a += head * a_h
    b += head * b_h
    c += at * 2 * S
    k_met += at * S * B
    x = get_rows(q + text * q_b + head * q_h, m, T, q_t, D, D_PADDED)
    g = get_rows(do + text * o_b + head * o_h, m, T, o_t, E, E_PADDED)
    log_sum = tl.load(lse + at * T + m, mask=m < T, other=float("inf"))
    share = tl.load(delta + at * T + m, mask=m < T, other=0.0)
    x_met = x
    if A > 0:
        x_met = get_rows(q_met + at * T * A, m, T, A, A, A_PADDED)
        acc_met = tl.zeros([M, A_PADDED], tl.float32)

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

    acc = tl.zeros([M, D_PADDED], tl.float32)
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
            p = tl.exp2(s - log_sum[:, None])
            z = get_rows(v, j, S, v_t, E, E_PADDED)
            dp = product(g, tl.trans(z), None, PRECISION)
            ds = p * (dp - share[:, None])
            acc = product(ds.to(y.dtype), y, acc, PRECISION)
            if A > 0:
                by_distance = shift_rows(ds, 1, N)
                near = near_in_rows(1, N)
                a_high, a_low = bands(a, start - key, S, A, A_PADDED, N)
                of_high, of_low = tl.where(near, by_distance, 0.0), tl.where(near, 0.0, by_distance)
                acc_met = product(of_high.to(a_high.dtype), a_high, acc_met, PRECISION)
                acc_met = product(of_low.to(a_low.dtype), a_low, acc_met, PRECISION)
    put_rows(dq + text * q_b + head * q_h, m, T, q_t, acc * gain, D, D_PADDED)
    if A > 0:
        put_rows(dq_met + at * T * A, m, T, A, acc_met * gain, A, A_PADDED)


@triton.jit
def key_kernel(
    q, k, v, do,
    dk,  # strides of k
    dv,  # strides of v
    dk_met,  # [B, H, S, B]
    dc,  # [B, H, S]
    lse, delta, q_met, k_met, table, a, b, c, reach,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, table_h, a_h, b_h,
    scale, gain, H, T, S,
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr, TABLE: tl.constexpr,
    A: tl.constexpr, A_PADDED: tl.constexpr, B: tl.constexpr, B_PADDED: tl.constexpr, POTENTIAL: tl.constexpr,
    REACH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk = dS^T q, dv = P^T do, dk_met = dS^T b for the keys that meet b, and dc = minus the column sums of dS.

    The potential c_i of a query is added to its whole row and gets no gradient: the sum of dS along a row is 0.
    """
    first = tl.program_id(0) * N  # the longest columns first: most queries see the early keys
    text, head = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    at = tl.program_id(1).to(tl.int64)
    j = first + tl.arange(0, N)
    before = S - T  # tokens before the first query
    q += text * q_b + head * q_h
    do += text * o_b + head * o_h
    table += head * table_h
    a += head * a_h
    b += head * b_h
    c += at * 2 * S
    lse += at * T
    delta += at * T
    q_met += at * T * A
    y = get_rows(k + text * k_b + head * k_h, j, S, k_t, D, D_PADDED)
    z = get_rows(v + text * v_b + head * v_h, j, S, v_t, E, E_PADDED)
    y_met = y
    if B > 0:
        y_met = get_rows(k_met + at * S * B, j, S, B, B, B_PADDED)
        acc_met = tl.zeros([N, B_PADDED], tl.float32)

    # queries [low, whole) and [past, high) see some of the keys, queries [whole, past) see all of them
    low = tl.maximum(0, first - before) // M * M
    whole = tl.cdiv(tl.maximum(0, first + N - 1 - before), M) * M
    high, past = T, tl.cdiv(T, M) * M
    far = S
    if REACH:
        far = tl.load(reach + head)
        high = tl.minimum(T, tl.maximum(0, first + N - 1 + far - before))
        past = tl.maximum(0, first + far - before) // M * M
        past = tl.minimum(past, high // M * M)
    whole = tl.minimum(whole, tl.cdiv(high, M) * M)
    past = tl.maximum(past, whole)

    acc_k = tl.zeros([N, D_PADDED], tl.float32)
    acc_v = tl.zeros([N, E_PADDED], tl.float32)
    acc_c = tl.zeros([N], tl.float32)
    for PART in tl.static_range(0, 3 if REACH else 2):
        if PART == 0:
            begin, end = low, whole
        elif PART == 1:
            begin, end = whole, past
        else:
            begin, end = past, high
        for query in range(begin, end, M):
            m = query + tl.arange(0, M)
            i = before + m
            x = get_rows(q, m, T, q_t, D, D_PADDED)
            x_met = x
            if A > 0:
                x_met = get_rows(q_met, m, T, A, A, A_PADDED)
            s = scores(
                x, y, x_met, y_met, i, j, before + query - first, table, a, b, c, S, scale,
                -1, TABLE, A, A_PADDED, B, B_PADDED, POTENTIAL, N, PRECISION,
            )  # fmt: skip
            if PART != 1:
                s = tl.where(visible(i[None, :], j[:, None], S, far, REACH), s, float("-inf"))
            log_sum = tl.load(lse + m, mask=m < T, other=float("inf"))  # no weights beyond the last query
            p = tl.exp2(s - log_sum[None, :])
            g = get_rows(do, m, T, o_t, E, E_PADDED)
            acc_v = product(p.to(g.dtype), g, acc_v, PRECISION)
            dp = product(z, tl.trans(g), None, PRECISION)
            share = tl.load(delta + m, mask=m < T, other=0.0)
            ds = p * (dp - share[None, :])
            acc_k = product(ds.to(x.dtype), x, acc_k, PRECISION)
            if POTENTIAL:
                acc_c -= tl.sum(ds, 1)
            if B > 0:
                by_distance = shift_rows(ds, -1, N)
                near = near_in_rows(-1, N)
                b_high, b_low = bands(b, before + query - first, S, B, B_PADDED, N)
                of_high, of_low = tl.where(near, by_distance, 0.0), tl.where(near, 0.0, by_distance)
                acc_met = product(of_high.to(b_high.dtype), b_high, acc_met, PRECISION)
                acc_met = product(of_low.to(b_low.dtype), b_low, acc_met, PRECISION)
    put_rows(dk + text * k_b + head * k_h, j, S, k_t, acc_k * gain, D, D_PADDED)
    put_rows(dv + text * v_b + head * v_h, j, S, v_t, acc_v, E, E_PADDED)
    if POTENTIAL:
        tl.store(dc + at * S + j, acc_c, mask=j < S)
    if B > 0:
        put_rows(dk_met + at * S * B, j, S, B, acc_met * gain, B, B_PADDED)


@triton.jit
def delta_kernel(
    o, do, delta, o_b, o_h, o_t, g_b, g_h, g_t, H, T, E: tl.constexpr, E_PADDED: tl.constexpr, M: tl.constexpr
):
    """Compute sum_e o do, `[B, H, T]` in float32."""
    text, head = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    m = tl.program_id(0) * M + tl.arange(0, M)
    x = get_rows(o + text * o_b + head * o_h, m, T, o_t, E, E_PADDED).to(tl.float32)
    g = get_rows(do + text * g_b + head * g_h, m, T, g_t, E, E_PADDED).to(tl.float32)
    tl.store(delta + tl.program_id(1).to(tl.int64) * T + m, tl.sum(x * g, 1), mask=m < T)
