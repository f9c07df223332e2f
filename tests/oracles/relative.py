"""Oracles of relative vectors, of TUPE's untied positions, and of URPE's factors after the softmax."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor

from oracles import FLOAT32, Content, causal, distances, dots, oracle
from oracles import libraries as lib
from oracles.absolute import sinusoids
from oracles.biases import bucket
from oracles.layer import Part, by_step, part, parts_of, steps
from poscli.encodings import Encoding
from poscli.equation import Unsupported


def heads_last(x: Tensor) -> Tensor:
    """Convert `[B, H, T, D]` to the layout of transformers' older models, `[T, B, H, D]`."""
    return x.permute(2, 0, 1, 3)


# Shaw et al.: a^K and a^V hold w[-k] to w[k], of which a decoder needs one side


@part("shaw", "shaw(clip=4)", "shaw(values=false)", "shaw(clip=4, values=false)", "shaw+randomized(40)")
def shaw(e: Encoding) -> Part:
    def rows(table: Tensor, c: Content) -> Tensor:
        return table[steps(c).clamp(max=e.clip)]

    return Part(
        vectors=lambda c: torch.einsum("bhid,ijd->bhij", c.q, rows(e.a_k, c)),
        values=(lambda c: rows(e.a_v, c)) if "relative_values" in e.blanks else None,
    )


# Transformer-XL and XLNet, section 3.3 of the former: terms (a) to (d)


def halves(d: Tensor, width: int) -> Tensor:
    """The sinusoids of distances, `[width, ...]`: all sines, then all cosines."""
    angles = [d * 10000 ** (-m / width) for m in range(0, width, 2)]
    return torch.stack([torch.sin(angle) for angle in angles] + [torch.cos(angle) for angle in angles])


@part("transformer-xl", "transformer-xl(clamp=9)", "xlnet", "xlnet(clamp=9)")
def four_terms(e: Encoding) -> Part:
    def vectors(c: Content) -> Tensor:
        d = distances(c) if e.clamp is None else distances(c).clamp(max=e.clamp)
        r = torch.einsum("hdw,wij->hijd", e.w_r, halves(d, e.w_r.shape[-1]))
        return torch.einsum("bhid,hijd->bhij", c.q + e.v, r)

    return Part(content_query=lambda q: q + e.u, vectors=vectors)


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


def bucket_of(e: Encoding, apart: int) -> int:
    """Distances up to span - 1, in equal steps up to half of the buckets and in equal ratios from there on."""
    if e.buckets is None:
        return apart
    middle, apart = e.buckets // 2, min(apart, e.span - 1)
    ratio, edges = ((e.span - 1) / middle) ** (1 / (middle - 1)), 0
    if apart <= middle:
        return apart
    while middle * ratio**edges < apart * (1 - 1e-12):
        edges += 1
    return middle + edges


@part(
    *("deberta", "deberta(span=5)", "deberta(buckets=6)", "deberta(span=100, buckets=8)"),
    "deberta(span=9, buckets=4)",
)
def deberta(e: Encoding) -> Part:
    def vectors(c: Content) -> Tensor:
        k = len(e.p) // 2
        of_keys, of_queries = (torch.einsum("hdw,rw->hrd", w, e.p) for w in (e.w_k, e.w_q))
        there = of_keys[:, by_step(lambda apart: delta(bucket_of(e, apart), k), c)]
        back = of_queries[:, by_step(lambda apart: delta(-bucket_of(e, apart), k), c)]
        return torch.einsum("bhid,hijd->bhij", c.q, there) + torch.einsum("bhjd,hijd->bhij", c.k, back)

    return Part(vectors=vectors, scale=(3 * e.shape.head_width) ** -0.5)


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


@part("tupe", "tupe(bias=false)", "tupe(table=sinusoidal)", "tupe(table=sinusoidal, bias=false)")
def tupe(e: Encoding) -> Part:
    """Rows of a table or sinusoids, mapped to queries and keys of their own beside the content; T5's buckets."""

    def beside(x: Tensor, pos: Tensor, u: Tensor) -> Tensor:
        if e.sinusoids is None:
            if round(float(pos[-1])) >= len(e.p):
                raise Unsupported("the table ends")
            rows = e.p[pos.round().long()]
        else:
            rows = sinusoids(pos, u.shape[-1])
        p = torch.einsum("hdw,tw->htd", u, rows)
        return torch.cat([x, p.expand(len(x), -1, -1, -1)], dim=-1)

    biased = "distance_bias" in e.blanks
    return Part(
        query=lambda q, pos: beside(q, pos, e.u_q),
        key=lambda k, pos: beside(k, pos, e.u_k),
        scale=(2 * e.shape.head_width) ** -0.5,
        bias=(lambda c: e.b.table[:, by_step(lambda d: bucket(d, 32, 128), c)]) if biased else None,
    )


# URPE, section 4: the attention matrix, after the softmax, times a Toeplitz matrix


@part("urpe", "urpe(base=none)", "urpe(base=transformer-xl)", "rope(base=500)+urpe(base=none)")
def urpe(e: Encoding) -> Part:
    (base,), toeplitz = parts_of(e.parts[0]), e.parts[1].c
    return replace(base, factors=lambda c: toeplitz[:, steps(c).clamp(max=toeplitz.shape[1] - 1)])
