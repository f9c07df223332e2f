"""Oracles of the content-dependent encodings."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call

from oracles import FLOAT32, Content, dots, oracle
from oracles import libraries as lib
from poscli.encodings import Encoding


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def pairs(c: Content, entry: Callable[[int, int], Tensor]) -> Tensor:
    """`[B, H, T, T]` from a function of query i and key j that gives `[B, H]`; zero in the future."""
    n = c.q.shape[2]
    zero = torch.zeros_like(c.q[:, :, 0, 0])
    return torch.stack([torch.stack([entry(i, j) if j <= i else zero for j in range(n)], -1) for i in range(n)], -2)


def by_token(library: Tensor) -> Tensor:
    """Convert fla's layout `[B, T, H, D]` from or to `[B, H, T, D]`."""
    return library.transpose(1, 2)


# forget gates: FoX, CABLE


def gate(e: Encoding, c: Content) -> Tensor:
    """The gate's argument w_h . x_l + b_h, `[B, H, T]`."""
    return torch.einsum("btw,hw->bht", c.x, e.w) + e.b[:, None]


def between(c: Content, term: Tensor) -> Tensor:
    """The sum over l = j+1..i of a term `[B, H, T]`, for every pair."""
    return pairs(c, lambda i, j: sum((term[:, :, m] for m in range(j + 1, i + 1)), torch.zeros_like(term[:, :, 0])))


@oracle("fox", "fox(start=0.5)")
def fox(e: Encoding, c: Content) -> Tensor:
    return dots(c) + between(c, torch.log(sigmoid(gate(e, c))))


@oracle("fox", "fox(start=0.5)", against="fla naive_forgetting_attn", gives="output", unit=FLOAT32)
def fox_of_fla(e: Encoding, c: Content) -> Tensor:
    log_f = torch.log(sigmoid(gate(e, c))).transpose(1, 2)
    return by_token(
        lib.fla_fox.naive_forgetting_attn(by_token(c.q), by_token(c.k), by_token(c.v).float(), log_f).double()
    )


@oracle("fox", against="x-transformers DataDependentAlibi")
def fox_of_x_transformers(e: Encoding, c: Content) -> Tensor:
    theirs = lib.x_transformers.DataDependentAlibi(c.x.shape[-1], c.q.shape[1])
    weights = {"to_forget_gates.0.weight": e.w, "to_forget_gates.0.bias": e.b}
    return dots(c) + functional_call(theirs, weights, (c.x,))


@oracle("cable", "cable(start=-2)")
def cable(e: Encoding, c: Content) -> Tensor:
    return dots(c) - between(c, torch.log(1 + torch.exp(gate(e, c))))


# stick-breaking


def stick(current: bool) -> Callable[[Encoding, Content], Tensor]:
    """From the query back, each key breaks its share off what is left of a stick of length 1."""

    def formula(e: Encoding, c: Content) -> Tensor:
        share, rows = sigmoid(dots(c)), []
        for i in range(c.q.shape[2]):
            stick, o = torch.ones_like(share[:, :, 0, 0]), torch.zeros_like(c.v[:, :, 0])
            for j in range(i if current else i - 1, -1, -1):
                a = stick * share[:, :, i, j]
                o, stick = o + a[..., None] * c.v[:, :, j], stick * (1 - share[:, :, i, j])
            rows.append(o)
        return torch.stack(rows, dim=2)

    return formula


def stick_of_fla(current: bool) -> Callable[[Encoding, Content], Tensor]:
    def formula(e: Encoding, c: Content) -> Tensor:
        o, _ = lib.fla_stick_breaking.naive_stickbreaking_attn(
            by_token(c.q), by_token(c.k), by_token(c.v), attend_current=current
        )
        return by_token(o)

    return formula


for spec, current in (("stick-breaking", True), ("stick-breaking(current=false)", False)):
    oracle(spec, gives="output")(stick(current))
    oracle(spec, against="fla naive_stickbreaking_attn", gives="output")(stick_of_fla(current))


# PaTH


def reflections(e: Encoding, c: Content) -> tuple[Tensor, Tensor]:
    """The vectors w_t `[B, T, H, D]` of length 1, and beta_t `[B, T, H]`."""
    w = torch.einsum("btw,rw,nr->btn", c.x, e.down, e.up).unflatten(-1, (c.q.shape[1], -1))
    beta = 2 * sigmoid(torch.einsum("btw,hw->bth", c.x, e.u) + e.b)
    return w / torch.sqrt((w**2).sum(-1, keepdim=True)), beta


@oracle("path", "path(rank=3)")
def path(e: Encoding, c: Content) -> Tensor:
    """Scores with every product H_{j+1} ... H_i as a matrix."""
    w, beta = (y.transpose(1, 2) for y in reflections(e, c))
    eye = torch.eye(c.q.shape[-1], dtype=torch.float64)
    h = eye - beta[..., None, None] * w[..., :, None] * w[..., None, :]

    def score(i: int, j: int) -> Tensor:
        product = eye
        for t in range(j + 1, i + 1):
            product = product @ h[:, :, t]
        return torch.einsum("bhd,bhde,bhe->bh", c.k[:, :, j], product.expand_as(h[:, :, 0]), c.q[:, :, i])

    return pairs(c, score) / math.sqrt(c.q.shape[-1])


@oracle("path", "path(rank=3)", against="fla naive_path_attn", gives="output", unit=FLOAT32)
def path_of_fla(e: Encoding, c: Content) -> Tensor:
    w, beta = reflections(e, c)
    q, k, v = (by_token(y) for y in (c.q, c.k, c.v))
    no_gate = torch.zeros_like(beta)
    return by_token(lib.fla_path.naive_path_attn(q, k, v, w, beta, no_gate, c.q.shape[-1] ** -0.5, chunk_size=4))


# CoPE


@oracle("cope", "cope(max_pos=5)")
def cope(e: Encoding, c: Content) -> Tensor:
    """Positions are sums of gates; between whole positions the embedding is interpolated."""
    s, last = dots(c), len(e.e) - 1
    gates = sigmoid(s)

    def score(i: int, j: int) -> Tensor:
        p = torch.clamp(sum(gates[:, :, i, m] for m in range(j, i + 1)), max=last)
        low = torch.floor(p.detach()).clamp(max=last - 1)
        mean = (1 - (p - low))[..., None] * e.e[low.long()] + (p - low)[..., None] * e.e[low.long() + 1]
        return s[:, :, i, j] + torch.einsum("bhd,bhd->bh", c.q[:, :, i], mean)

    return pairs(c, score)


def cope_of_x_transformers(max_pos: int) -> Callable[[Encoding, Content], Tensor]:
    def formula(e: Encoding, c: Content) -> Tensor:
        theirs = lib.x_transformers.CoPE(c.q.shape[-1], c.q.shape[1], max_pos)
        future = torch.ones(c.q.shape[2], c.q.shape[2], dtype=torch.bool).triu(1)
        s = dots(c).masked_fill(future, -1e9)  # the library sums the gates of all keys that are not masked
        return s + functional_call(theirs, {"pos_emb": e.e}, (c.q, s))

    return formula


oracle("cope", against="x-transformers CoPE")(cope_of_x_transformers(64))
oracle("cope(max_pos=5)", against="x-transformers CoPE")(cope_of_x_transformers(5))


# DAPE


def dape(prior: Callable[[Encoding, Content], Tensor]) -> Callable[[Encoding, Content], Tensor]:
    """The network, applied to one pair at a time: 2H numbers in, H out."""

    def formula(e: Encoding, c: Content) -> Tensor:
        s = dots(c)
        b = prior(e.parts[0], c).expand_as(s)

        def bent(i: int, j: int) -> Tensor:
            y = torch.cat([s[:, :, i, j], b[:, :, i, j]], dim=-1) @ e.inner.weight.T + e.inner.bias
            return torch.where(y > 0, y, 0.01 * y) @ e.outer.weight.T

        return s + b + pairs(c, bent)

    return formula


def kerple(e: Encoding, c: Content) -> Tensor:
    r1, r2 = (torch.log(1 + torch.exp(r))[:, None, None] for r in (e.r1, e.r2))
    d = (c.pos[:, None] - c.pos).clamp(min=0)
    return -r1 * torch.log(1 + r2 * d)


def alibi(e: Encoding, c: Content) -> Tensor:
    """Slopes for 3 heads: the two for 2 heads, then the first for 4 heads."""
    m = torch.tensor([2**-4, 2**-8, 2**-2], dtype=torch.float64)
    return -m[:, None, None] * (c.pos[:, None] - c.pos)


oracle("dape", "dape(hidden=5)")(dape(kerple))
oracle("dape(base=alibi)")(dape(alibi))
oracle("dape(base=fox)")(dape(lambda e, c: between(c, torch.log(sigmoid(gate(e, c))))))
