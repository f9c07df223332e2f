"""Oracles of the content-dependent encodings."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call

from oracles import FLOAT32, Content, dots, oracle
from oracles import libraries as lib
from oracles.layer import Part, bias, pairwise, part, parts_of
from poscli.encodings import Encoding


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def by_token(library: Tensor) -> Tensor:
    """Convert fla's layout `[B, T, H, D]` from or to `[B, H, T, D]`."""
    return library.transpose(1, 2)


# forget gates: FoX, CABLE


def gate(e: Encoding, c: Content) -> Tensor:
    """The gate's argument w_h . x_l + b_h, `[B, H, T]`."""
    return torch.einsum("btw,hw->bht", c.x, e.w) + e.b[:, None]


def tokens_between(c: Content) -> Tensor:
    """1 where j < l <= i, else 0: `[i, j, l]`."""
    order = torch.arange(len(c.pos))
    return ((order > order[:, None]) & (order <= order[:, None, None])).double()


def between(c: Content, term: Tensor) -> Tensor:
    """The sum over l = j+1..i of a term `[B, H, T]`, for every pair."""
    return torch.einsum("bhl,ijl->bhij", term, tokens_between(c))


@bias("fox", "fox(start=0.5)")
def fox(e: Encoding, c: Content) -> Tensor:
    return between(c, torch.log(sigmoid(gate(e, c))))


@oracle("fox", "fox(start=0.5)", against="fla naive_forgetting_attn", gives="output", unit=FLOAT32)
def fox_of_fla(e: Encoding, c: Content) -> Tensor:
    log_f = torch.log(sigmoid(gate(e, c))).transpose(1, 2)
    q, k, v = by_token(c.q), by_token(c.k), by_token(c.v).float()
    return by_token(lib.fla_fox.naive_forgetting_attn(q, k, v, log_f).double())


@oracle("fox", against="x-transformers DataDependentAlibi")
def fox_of_x_transformers(e: Encoding, c: Content) -> Tensor:
    theirs = lib.x_transformers.DataDependentAlibi(c.x.shape[-1], c.q.shape[1])
    weights = {"to_forget_gates.0.weight": e.w, "to_forget_gates.0.bias": e.b}
    return dots(c) + functional_call(theirs, weights, (c.x,))


@bias("cable", "cable(start=-2)")
def cable(e: Encoding, c: Content) -> Tensor:
    return -between(c, torch.log(1 + torch.exp(gate(e, c))))


# stick-breaking


@part("stick-breaking", "stick-breaking(current=false)")
def stick_breaking(e: Encoding) -> Part:
    """From the query back, each key breaks its share off what is left of a stick of length 1."""

    def weights(s: Tensor) -> Tensor:
        share, left = torch.where(s > -math.inf, sigmoid(s.clamp(min=-700)), 0), torch.ones_like(s[..., 0])
        if not e.current:
            share = share * (1 - torch.eye(s.shape[-1], dtype=s.dtype))
        taken = []
        for j in reversed(range(s.shape[-1])):
            taken.append(left * share[..., j])
            left = left * (1 - share[..., j])
        return torch.stack(taken[::-1], dim=-1)

    return Part(weights=weights)


@oracle(*("stick-breaking", "stick-breaking(current=false)"), against="fla naive_stickbreaking_attn", gives="output")
def stick_breaking_of_fla(e: Encoding, c: Content) -> Tensor:
    q, k, v = by_token(c.q), by_token(c.k), by_token(c.v)
    o, _ = lib.fla_stick_breaking.naive_stickbreaking_attn(q, k, v, attend_current=e.current)
    return by_token(o)


# PaTH


def reflections(e: Encoding, c: Content) -> tuple[Tensor, Tensor]:
    """The vectors w_t `[B, T, H, D]` of length 1, and beta_t `[B, T, H]`."""
    w = torch.einsum("btw,rw,nr->btn", c.x, e.down, e.up).unflatten(-1, (c.q.shape[1], -1))
    beta = 2 * sigmoid(torch.einsum("btw,hw->bth", c.x, e.u) + e.b)
    return w / torch.sqrt((w**2).sum(-1, keepdim=True)), beta


@part("path", "path(rank=3)")
def path(e: Encoding) -> Part:
    """Scores with every product H_{j+1} ... H_i as a matrix."""

    def similarity(c: Content) -> Tensor:
        w, beta = (y.transpose(1, 2) for y in reflections(e, c))
        eye = torch.eye(c.q.shape[-1], dtype=torch.float64)
        h = eye - beta[..., None, None] * w[..., :, None] * w[..., None, :]

        def score(i: int, j: int) -> Tensor:
            product = eye
            for t in range(j + 1, i + 1):
                product = product @ h[:, :, t]
            return torch.einsum("bhd,bhde,bhe->bh", c.k[:, :, j], product.expand_as(h[:, :, 0]), c.q[:, :, i])

        return pairwise(score, c)

    return Part(similarity=similarity)


@oracle("path", "path(rank=3)", against="fla naive_path_attn", gives="output", unit=FLOAT32)
def path_of_fla(e: Encoding, c: Content) -> Tensor:
    w, beta = reflections(e, c)
    q, k, v = (by_token(y) for y in (c.q, c.k, c.v))
    no_gate = torch.zeros_like(beta)
    return by_token(lib.fla_path.naive_path_attn(q, k, v, w, beta, no_gate, c.q.shape[-1] ** -0.5, chunk_size=4))


# CoPE


@part("cope", "cope(max_pos=5)")
def cope(e: Encoding) -> Part:
    """Scores s_ij + q_i . e[p_ij], p_ij = sum_{l=j..i} sigmoid(s_il), e interpolated; hidden keys have no gate."""

    def scores(s: Tensor, c: Content, factor: Tensor) -> Tensor:
        last, order = len(e.e) - 1, torch.arange(s.shape[-1])
        gates = torch.where(s > -math.inf, sigmoid(s.clamp(min=-700)), 0)
        p = torch.clamp(torch.einsum("bhil,jl->bhij", gates, (order[:, None] <= order).double()), max=last)
        low = torch.floor(p.detach()).clamp(max=last - 1)
        mean = (1 - (p - low))[..., None] * e.e[low.long()] + (p - low)[..., None] * e.e[low.long() + 1]
        return s + torch.einsum("bhid,bhijd->bhij", c.q, mean)

    return Part(scores=scores)


@oracle("cope", "cope(max_pos=5)", against="x-transformers CoPE")
def cope_of_x_transformers(e: Encoding, c: Content) -> Tensor:
    theirs = lib.x_transformers.CoPE(c.q.shape[-1], c.q.shape[1], len(e.e))
    future = torch.ones(c.q.shape[2], c.q.shape[2], dtype=torch.bool).triu(1)
    s = dots(c).masked_fill(future, -1e9)  # the library sums the gates of all keys that are not masked
    return s + functional_call(theirs, {"pos_emb": e.e}, (c.q, s))


# DAPE


@part("dape", "dape(hidden=5)", "dape(base=alibi)", "dape(base=fox)")
def dape(e: Encoding) -> Part:
    """S + f([s - b; b]) with one network for all pairs, b the base's bias times the temperature."""
    (base,) = parts_of(e.parts[0])

    def scores(s: Tensor, c: Content, factor: Tensor) -> Tensor:
        s = s.masked_fill(s == -math.inf, 0)  # the mask is put back afterwards
        b = (base.bias(c) * factor).expand_as(s)
        y = torch.einsum("bnij,mn->bmij", torch.cat([s - b, b], dim=1), e.inner.weight) + e.inner.bias[:, None, None]
        return s + torch.einsum("bmij,hm->bhij", torch.where(y > 0, y, 0.01 * y), e.outer.weight)

    return replace(base, scores=scores)


# GRAPE's path integral


@bias("grape-additive", "grape-additive(probe=2)")
def grape_additive(e: Encoding, c: Content) -> Tensor:
    """sum_{l=j+1..t} alpha_h log sigmoid(<p_t, R_l p_l> / d)."""
    heads, size = c.q.shape[1], e.probe
    alpha = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2])  # of ALiBi for 3 heads: those of 2, then the first of 4
    p = torch.einsum("btw,hpw->bhtp", c.x, e.w_p.reshape(heads, size, -1))
    p = p / torch.sqrt((p**2).mean(-1, keepdim=True) + 1e-6)
    real, imaginary = p[..., : size // 2], p[..., size // 2 :]
    turned = torch.complex(real, imaginary) * torch.exp(1j * c.pos)[:, None]
    r = torch.cat([turned.real, turned.imag], dim=-1)  # R_l p_l
    edges = torch.einsum("bhtp,bhlp->bhtl", p, r) / size
    psi = -torch.log(1 + torch.exp(-edges)) * alpha[:, None, None]
    return torch.einsum("bhil,ijl->bhij", psi, tokens_between(c))
