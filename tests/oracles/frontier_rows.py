"""Oracles of encodings that act on whole rows of scores: a sink in the softmax, tokens that hide others."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor

from oracles import Content, causal, dots, oracle
from oracles import libraries as lib
from oracles.layer import Part, pairwise, part, parts_of
from poscli.encodings import Encoding

attend = lib.Library("x_transformers.attend")
gpt_oss = lib.model("gpt_oss.modeling_gpt_oss")


@part(
    *("sink-logit", "sink-logit(start=3)", "sink-logit(start=-2)+rope+window(5)", "alibi+sink-logit"),
    *("fox+sink-logit", "t5(buckets=6, far=11)+window(8)+sink-logit", "transformer-xl+sink-logit"),
    *("cope(max_pos=5)+sink-logit", "fire+sink-logit", "query-bias+sink-logit", "urpe(base=t5)+sink-logit"),
    *("sink(2)+window(5)+fox+shaw+sink-logit", "rerope(window=4)+sink-logit", "dape(base=t5)+sink-logit"),
    *("alibi+ssmax+sink-logit", "sink-logit+sink-logit(start=-1)", "stick-breaking+sink-logit"),
)
def sink_logit(e: Encoding) -> Part:
    """One more key, whose score is b."""
    return Part(null=e.b)


@oracle("sink-logit", against="softmax times sigmoid(lse - b)", gives="output")
def sink_logit_of_lse(e: Encoding, c: Content) -> Tensor:
    s = (torch.einsum("bhid,bhjd->bhij", c.q, c.k) / math.sqrt(c.q.shape[-1])).masked_fill(~causal(c), -math.inf)
    kept = torch.sigmoid(torch.logsumexp(s, -1) - e.b[:, None])
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(s, -1), c.v) * kept[..., None]


@oracle("rope+window(5)+sink-logit", against="transformers gpt_oss eager_attention_forward", gives="output")
def sink_logit_of_transformers(e: Encoding, c: Content) -> Tensor:
    rope, window, _ = parts_of(e)
    assert rope.query
    assert rope.key
    tokens = torch.arange(len(c.pos))
    apart = tokens[:, None] - tokens
    mask = torch.zeros(apart.shape, dtype=torch.float64).masked_fill((apart < 0) | (apart >= window.width), -math.inf)
    module = SimpleNamespace(num_key_value_groups=1, sinks=e.parts[2].b, training=False)
    q, k = rope.query(c.q, c.pos), rope.key(c.k, c.pos)
    theirs = gpt_oss.eager_attention_forward(module, q, k, c.v, mask[None, None], scaling=c.q.shape[-1] ** -0.5)
    return theirs[0].transpose(1, 2)


# selective attention


def products(e: Encoding, c: Content) -> Tensor:
    """u_l . w_j / sqrt(P) for every two tokens, `[B, T, T]`."""
    u, w = torch.einsum("btw,pw->btp", c.x, e.u), torch.einsum("btw,pw->btp", c.x, e.w)
    return torch.einsum("blp,bjp->blj", u, w) / math.sqrt(len(e.u))


@part("selective", "rope+selective", "selective+window(5)", "alibi+selective+sink-logit", "sink(2)+window(6)+selective")
def selective(e: Encoding) -> Part:
    """The sum, token by token, of what hides a key; the first key is never hidden."""

    def scores_less(s: Tensor, c: Content, _: Tensor) -> Tensor:
        y = products(e, c)
        hidden, rows = torch.zeros_like(y[:, 0]), []
        for token in range(len(c.pos)):
            rows.append(hidden)
            hides = [y[:, token, j].clamp(min=0) if 0 < j < token else 0 * y[:, 0, 0] for j in range(len(c.pos))]
            hidden = hidden + torch.stack(hides, dim=-1)
        return s - torch.stack(rows, dim=1)[:, None]

    return Part(scores=scores_less)


@oracle("selective", against="x-transformers selective_attn")
def selective_of_x_transformers(e: Encoding, c: Content) -> Tensor:
    return attend.selective_attn(dots(c), products(e, c).masked_fill(~causal(c), -math.inf))


# TAPA


@part("tapa", "tapa(alpha=0.5, amplitude=0.25)", "alibi+tapa+window(5)", "tapa+ssmax+sink-logit")
def tapa(e: Encoding) -> Part:
    """Pair by pair; the first numbers of a head are those of the amplitude."""
    a = e.width

    def similarity(c: Content) -> Tensor:
        size, p = c.q.shape[-1], c.q.shape[-1] - a

        def entry(i: int, j: int) -> Tensor:
            q, k = c.q[:, :, i], c.k[:, :, j]
            phase = sum(q[..., m] * k[..., m] for m in range(a, size)) / math.sqrt(p)
            turns = float(c.pos[i] - c.pos[j]) ** e.alpha
            return sum(q[..., m] * k[..., m] for m in range(a)) * torch.cos(2 * math.pi * turns * phase)

        return pairwise(entry, c)

    return Part(similarity=similarity, scale=a**-0.5)
