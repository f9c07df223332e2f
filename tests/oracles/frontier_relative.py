"""Oracles of relative vectors that features or wavelets make, and of a generalized Gaussian of the distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import functional_call

from oracles import Content, dots, oracle
from oracles import libraries as lib
from oracles.layer import Part, bias, part, steps
from poscli.encodings import Encoding

# finite-span: in transformers' modeling_inkling.py InklingRelativeLogits, and tau in InklingAttention


@part(
    *("finite-span", "finite-span(span=5, rank=3)", "finite-span(span=1)", "finite-span(span=7, alpha=0.4)"),
    *("finite-span(span=7, alpha=2, floor=3)", "finite-span(span=6)+window(9)", "rope+finite-span(span=4, alpha=1)"),
    *("finite-span(span=5, rank=4)+fox+shaw(clip=4)", "transformer-xl+cable+finite-span(span=3)+alibi"),
    *("finite-span(span=5)+deberta(span=5)", "finite-span(span=9, rank=2)+finite-span(span=4, rank=5)"),
    against="the formula of transformers' Inkling",
)
def finite_span(e: Encoding) -> Part:
    """The term is not divided by sqrt(D), as q . k is; where another part has its own scale, all vectors share that."""

    def vectors(c: Content) -> Tensor:
        (span, rank), heads, apart = e.p.shape, c.q.shape[1], steps(c)
        w = e.w.view(heads, rank, -1)
        r = torch.einsum("hrw,biw->bhir", w, c.x)
        term = torch.zeros(*c.q.shape[:3], len(c.pos), dtype=torch.float64)
        for d in range(span):
            term = term + torch.einsum("bhir,r,ij->bhij", r, e.p[d], (apart == d).double())
        return term * math.sqrt(c.q.shape[-1])

    def tau(n: Tensor) -> Tensor:
        factors = [1 + e.alpha * math.log(max(1.0, m / e.floor)) for (m,) in n.tolist()]
        return torch.tensor(factors, dtype=torch.float64)[None, :, None]

    return Part(vectors=vectors, temperature=tau if e.alpha else None)


@oracle("finite-span", "finite-span(span=5, rank=3)", against="x-transformers RelativeProjPositionalBias")
def projected(e: Encoding, c: Content) -> Tensor:
    """The library counts tokens, so that positions that are further apart are tokens of a longer text."""
    (span, rank), heads, width = e.p.shape, c.q.shape[1], c.x.shape[-1]
    theirs = lib.x_transformers.RelativeProjPositionalBias(width, heads, num_distance_basis=rank, max_dist=span)
    order = c.pos.round().long()
    text = torch.zeros(len(c.x), int(order[-1]) + 1, width, dtype=torch.float64).index_copy(1, order, c.x)
    weights = {
        "to_distance_weights.0.weight": e.w,
        "to_distance_weights.0.bias": torch.zeros(len(e.w), dtype=torch.float64),
        "distance_bank": e.p.T,
    }
    term: Tensor = functional_call(theirs, weights, (text,))
    return dots(c) + term[:, :, order][..., order]


# wavelet: equations 10 to 14


@part("wavelet", "wavelet(scales=4)", "wavelet(scales=2, first=2)", "wavelet(scales=1)+window(9)", "rope+wavelet+shaw")
def wavelet(e: Encoding) -> Part:
    def vectors(c: Content) -> Tensor:
        width = c.q.shape[-1]
        term = torch.zeros(*c.q.shape[:3], len(c.pos), dtype=torch.float64)
        for channel in range(width):
            scale, shift = divmod(channel, width // e.scales)
            ratio = (c.pos[:, None] - c.pos[None, :] - shift) / 2 ** (e.first + scale)
            p = torch.exp(-0.5 * ratio * ratio) - ratio * ratio * torch.exp(-0.5 * ratio * ratio)
            term = term + c.q[..., channel, None] * p
        return term

    return Part(vectors=vectors)


# bam: the class AttentionPrior of the authors' code, where j - i stands for i - j and mu has the other sign


@bias(
    *("bam", "bam(beta=1)", "bam(beta=-0.5)", "bam(mu=true)", "bam(beta=0.7, mu=true)", "rope+bam+ssmax"),
    against="the formula of the authors' code",
)
def bam(e: Encoding, c: Content) -> Tensor:
    terms = []
    for h in range(c.q.shape[1]):
        mu = 0 if e.m is None else torch.exp(e.m[h]) - torch.exp(-e.m[h])
        apart = torch.abs(c.pos[None, :] - c.pos[:, None] + mu) + 1e-5
        terms.append(-torch.exp(e.a[h] + e.beta[h] * torch.log(apart)))
    return torch.stack(terms).clamp(min=-10000)
