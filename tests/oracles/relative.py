"""Oracles of relative vectors, of TUPE's untied positions, and of URPE's factors after the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from oracles import FLOAT32, Content, causal, distances, dots, oracle
from oracles import libraries as lib
from poscli.encodings import Encoding
from poscli.equation import Unsupported


def pairwise(score: Callable[[int, int], Tensor], c: Content) -> Tensor:
    """Scores `[B, H, T, T]` of all visible pairs, from a function of one pair; 0 for the others."""
    tokens = range(len(c.pos))
    hidden = torch.zeros(c.q.shape[:2], dtype=torch.float64)
    rows = [torch.stack([score(i, j) if j <= i else hidden for j in tokens], dim=-1) for i in tokens]
    return torch.stack(rows, dim=-2)


def steps(i: int, j: int, c: Content) -> int:
    """The distance i - j as a whole number, also if rounding noise has moved the positions."""
    return round(float(c.pos[i] - c.pos[j]))


def heads_last(x: Tensor) -> Tensor:
    """Convert `[B, H, T, D]` to the layout of transformers' older models, `[T, B, H, D]`."""
    return x.permute(2, 0, 1, 3)


# Shaw et al.: a^K and a^V hold w[-k] to w[k], of which a decoder needs one side


def shaw_scores(e: Encoding, c: Content) -> Tensor:
    def score(i: int, j: int) -> Tensor:
        a = e.a_k[min(steps(i, j, c), len(e.a_k) - 1)]
        return torch.einsum("bhd,bhd->bh", c.q[:, :, i], c.k[:, :, j] + a) / math.sqrt(c.q.shape[-1])

    return pairwise(score, c)


@oracle("shaw", "shaw(clip=4)", gives="output")
def shaw(e: Encoding, c: Content) -> Tensor:
    s = shaw_scores(e, c)
    rows = []
    for i in range(len(c.pos)):
        alpha = torch.softmax(s[:, :, i, : i + 1], dim=-1)
        a = torch.stack([e.a_v[min(steps(i, j, c), len(e.a_v) - 1)] for j in range(i + 1)])
        rows.append(torch.einsum("bhj,bhjd->bhd", alpha, c.v[:, :, : i + 1] + a))
    return torch.stack(rows, dim=2)


@oracle("shaw(values=false)", "shaw(clip=4, values=false)")
def shaw_keys(e: Encoding, c: Content) -> Tensor:
    return shaw_scores(e, c)


# Transformer-XL and XLNet, section 3.3 of the former: terms (a) to (d)


def sinusoid(d: Tensor, width: int) -> Tensor:
    angles = [d * 10000 ** (-m / width) for m in range(0, width, 2)]
    return torch.stack([torch.sin(angle) for angle in angles] + [torch.cos(angle) for angle in angles])


@oracle("transformer-xl", "transformer-xl(clamp=9)", "xlnet", "xlnet(clamp=9)")
def four_terms(e: Encoding, c: Content) -> Tensor:
    def score(i: int, j: int) -> Tensor:
        d = c.pos[i] - c.pos[j]
        r = e.w_r @ sinusoid(d if e.clamp is None else d.clamp(max=e.clamp), c.x.shape[-1])  # [H, D]
        q, k, u, v = c.q[:, :, i], c.k[:, :, j], e.u[:, 0], e.v[:, 0]
        return ((q * k).sum(-1) + (q * r).sum(-1) + (u * k).sum(-1) + (v * r).sum(-1)) / math.sqrt(q.shape[-1])

    return pairwise(score, c)


def frequencies(width: int) -> Tensor:
    """The frequencies, which transformers rounds to float32."""
    return 1 / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)


@oracle("transformer-xl", against="transformers RelPartialLearnableMultiHeadAttn")
def transfo_xl(e: Encoding, c: Content) -> Tensor:
    """The library's scores only: its attention cannot mask in float64."""
    heads, width = c.q.shape[1], c.q.shape[3]
    sinusoids = lib.transfo_xl.PositionalEmbedding(heads * width)
    sinusoids.inv_freq = frequencies(heads * width)
    r = sinusoids(c.pos[-1] - c.pos)[:, 0]
    q, k, r_k = heads_last(c.q), heads_last(c.k), torch.einsum("hdw,jw->jhd", e.w_r, r)
    ac = torch.einsum("ibhd,jbhd->ijbh", q + e.u[:, 0], k)
    bd = lib.transfo_xl.RelPartialLearnableMultiHeadAttn._rel_shift(
        None, torch.einsum("ibhd,jhd->ijbh", q + e.v[:, 0], r_k)
    )
    return (ac + bd).permute(2, 3, 0, 1) / math.sqrt(width)


@oracle("xlnet", "xlnet(clamp=9)", against="transformers XLNetRelativeAttention", gives="output")
def xlnet(e: Encoding, c: Content) -> Tensor:
    batch, heads, count, width = c.q.shape
    self = SimpleNamespace(
        r_w_bias=e.u[:, 0],
        r_r_bias=e.v[:, 0],
        scale=width**-0.5,
        dropout=lambda x: x,
        rel_shift_bnij=lib.xlnet.XLNetRelativeAttention.rel_shift_bnij,
    )
    both_ways = (c.pos[1] - c.pos[0]) * torch.arange(count, -count, -1)
    both_ways = both_ways if e.clamp is None else both_ways.clamp(-e.clamp, e.clamp)
    r = lib.xlnet.XLNetModel.positional_embedding(both_ways, frequencies(heads * width), batch)  # [2T, B, W]
    k_r = torch.einsum("hdw,jbw->jbhd", e.w_r, r)
    q, k, v = (heads_last(x) for x in (c.q, c.k, c.v))
    mask = (~causal(c)).double()[:, :, None, None].expand(-1, -1, batch, heads)
    return lib.xlnet.XLNetRelativeAttention.rel_attn_core(self, q, k, v, k_r, attn_mask=mask).permute(1, 2, 0, 3)


# DeBERTa, section 3.1: equations 2 to 4


def delta(apart: int, k: int) -> int:
    """Equation 3, a function of i - j, case by case."""
    if apart <= -k:
        return 0
    return 2 * k - 1 if apart >= k else apart + k


def disentangled(e: Encoding, c: Content, k: int, bucket: Callable[[int], int]) -> Tensor:
    def score(i: int, j: int) -> Tensor:
        apart = bucket(steps(i, j, c))
        k_r = e.w_k @ e.p[delta(apart, k)]
        q_r = e.w_q @ e.p[delta(-apart, k)]
        q, key = c.q[:, :, i], c.k[:, :, j]
        return ((q * key).sum(-1) + (q * k_r).sum(-1) + (key * q_r).sum(-1)) / math.sqrt(3 * q.shape[-1])

    return pairwise(score, c)


@oracle("deberta", "deberta(span=5)")
def deberta(e: Encoding, c: Content) -> Tensor:
    return disentangled(e, c, len(e.p) // 2, lambda apart: apart)


@oracle("deberta(buckets=6)", "deberta(span=100, buckets=8)", "deberta(span=9, buckets=4)")
def deberta_buckets(e: Encoding, c: Content) -> Tensor:
    """Distances up to span - 1, in equal steps up to half of the buckets and in equal ratios from there on."""
    buckets = len(e.p) // 2
    middle = buckets // 2
    ratio = ((e.span - 1) / middle) ** (1 / (middle - 1))

    def bucket(apart: int) -> int:
        apart = min(apart, e.span - 1)
        if apart <= middle:
            return apart
        edges = 0
        while middle * ratio**edges < apart * (1 - 1e-12):
            edges += 1
        return middle + edges

    return disentangled(e, c, buckets, bucket)


@oracle(
    *("deberta(span=400)", "deberta(span=400, buckets=8)", "deberta(span=316, buckets=31)"),
    against="transformers DebertaV2 DisentangledSelfAttention",
    unit=FLOAT32,
)
def deberta_v2(e: Encoding, c: Content) -> Tensor:
    """Transformers reads Q_r at delta(i, j), the paper at delta(j, i), so the library gets P reversed for Q_r."""
    batch, heads, count, _ = c.q.shape
    relative = distances(c).round().long()
    if len(e.p) < 2 * e.span:
        relative = lib.deberta_v2.make_log_bucket_position(relative, len(e.p) // 2, e.span)
    mirrored = torch.cat([e.p[:1], e.p[1:].flip(0)])
    self = SimpleNamespace(
        pos_att_type=["c2p", "p2c"],
        share_att_key=False,
        pos_ebd_size=len(e.p) // 2,
        position_buckets=-1,
        max_relative_positions=-1,
        num_attention_heads=heads,
        transpose_for_scores=lambda x, n: lib.deberta_v2.DisentangledSelfAttention.transpose_for_scores(None, x, n),
        pos_key_proj=lambda p: p @ e.w_k.flatten(0, 1).T,
        pos_query_proj=lambda _: mirrored[None] @ e.w_q.flatten(0, 1).T,
    )
    q, k = c.q.flatten(0, 1), c.k.flatten(0, 1)
    bias = lib.deberta_v2.DisentangledSelfAttention.disentangled_attention_bias(
        self, q, k, relative, e.p, scale_factor=3
    )
    return dots(c) / math.sqrt(3) + bias.view(batch, heads, count, count)


# TUPE, section 3.1: equations 7 and 8


def t5_bucket(d: int) -> int:
    """The bucket of 32 for a distance: 16 hold one distance each, 16 have equal ratios from 16 to 128."""
    return d if d < 16 else min(31, 16 + math.floor(16 * math.log(d / 16, 8)))


def untied(e: Encoding, c: Content, p: list[Tensor]) -> Tensor:
    biased = "distance_bias" in e.blanks

    def score(i: int, j: int) -> Tensor:
        content = (c.q[:, :, i] * c.k[:, :, j]).sum(-1)
        positions = ((e.u_q @ p[i]) * (e.u_k @ p[j])).sum(-1)  # [H]
        s = content / math.sqrt(2 * c.q.shape[-1]) + positions / math.sqrt(2 * c.q.shape[-1])
        return s + e.b.table[:, t5_bucket(steps(i, j, c))] if biased else s

    return pairwise(score, c)


@oracle("tupe", "tupe(bias=false)")
def tupe(e: Encoding, c: Content) -> Tensor:
    rows = [round(float(pos)) for pos in c.pos]
    if rows[-1] >= len(e.p):
        raise Unsupported("the table ends")
    return untied(e, c, [e.p[row] for row in rows])


@oracle("tupe(table=sinusoidal)", "tupe(table=sinusoidal, bias=false)")
def tupe_sinusoidal(e: Encoding, c: Content) -> Tensor:
    width = c.x.shape[-1]
    # sines and cosines in turn, as in Vaswani et al.
    return untied(e, c, [sinusoid(pos, width).view(2, -1).T.flatten() for pos in c.pos])


# URPE, section 4: the attention matrix, after the softmax, times a Toeplitz matrix, number by number


def universal(s: Tensor, toeplitz: Tensor, c: Content) -> Tensor:
    p = torch.softmax(s.masked_fill(~causal(c), -math.inf), dim=-1)
    rows = []
    for i in range(len(c.pos)):
        factors = torch.stack([toeplitz[:, min(steps(i, j, c), toeplitz.shape[1] - 1)] for j in range(i + 1)], dim=-1)
        rows.append(torch.einsum("bhj,bhjd->bhd", p[:, :, i, : i + 1] * factors, c.v[:, :, : i + 1]))
    return torch.stack(rows, dim=2)


def rotated(c: Content, base: float) -> Tensor:
    """q_i . k_j / sqrt(D) after RoPE: Re sum_m q_m conj(k_m) e^(i (i-j) theta_m), pairs of channels as numbers."""
    width = c.q.shape[-1]
    q, k = (torch.complex(x[..., : width // 2], x[..., width // 2 :]) for x in (c.q, c.k))
    theta = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    turn = torch.exp(1j * distances(c)[..., None] * theta)
    return torch.einsum("bhim,bhjm,ijm->bhij", q, k.conj(), turn).real / math.sqrt(width)


@oracle("urpe", gives="output")
def urpe(e: Encoding, c: Content) -> Tensor:
    return universal(rotated(c, 10000), e.parts[1].c, c)


@oracle("urpe(base=none)", gives="output")
def urpe_alone(e: Encoding, c: Content) -> Tensor:
    return universal(dots(c), e.parts[1].c, c)


@oracle("rope(base=500)+urpe(base=none)", gives="output")
def urpe_joined(e: Encoding, c: Content) -> Tensor:
    return universal(rotated(c, 500), e.parts[1].parts[1].c, c)


@oracle("urpe(base=transformer-xl)", gives="output")
def urpe_over_vectors(e: Encoding, c: Content) -> Tensor:
    return universal(four_terms(e.parts[0], c), e.parts[1].c, c)
