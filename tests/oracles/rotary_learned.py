"""Oracles of rotary encodings whose frequencies are learned, differ between heads, or stay in distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oracles.layer import Part, part
from oracles.rotary import L, powers, turned
from poscli.encodings import Encoding


def by_head(x: Tensor, pos: Tensor, theta: list[list[Tensor]], layout: str) -> Tensor:
    """Head h of x `[B, H, T, D]` turned by pos theta[h][m]."""
    return torch.stack(
        [turned(x[:, h], pos[:, None] * torch.stack(theta[h]), layout) for h in range(x.shape[1])], dim=1
    )


def turning(e: Encoding, theta: list[list[Tensor]]) -> Part:
    def turn(x: Tensor, pos: Tensor) -> Tensor:
        return by_head(x, pos, theta, e.layout)

    return Part(query=turn, key=turn)


def stretched(e: Encoding) -> list[list[Tensor]]:
    """theta_m e^alpha_m of every head, as base^(-2m/D + alpha_m / ln base)."""
    rows = e.alpha.reshape(-1, e.alpha.shape[-1])
    rows = rows if len(rows) > 1 else rows.expand(e.shape.heads, -1)
    base = torch.tensor(e.base, dtype=torch.float64)
    return [
        [base ** (-2 * m / e.width + alpha / math.log(e.base)) for m, alpha in enumerate(row.unbind())] for row in rows
    ]


@part(
    "lerope", "lerope(per=layer, base=50, fraction=0.5)", "lerope(per=head)",
    "lerope(per=head, base=50, layout=interleaved)",
)  # fmt: skip
def lerope(e: Encoding) -> Part:
    return turning(e, stretched(e))


@part("adarope", "adarope(scaling=false)", "adarope(base=50, layout=interleaved, fraction=0.75)",
      against="rope's formula with learned frequencies, and a factor in log n")  # fmt: skip
def adarope(e: Encoding) -> Part:
    part = turning(e, stretched(e))
    if e.beta is None:
        return part

    def temperature(n: Tensor) -> Tensor:
        return torch.stack([1 + beta * torch.log(n) / math.log(L) for beta in e.beta])

    return Part(query=part.query, key=part.key, temperature=temperature)


@part("rope-id(p=0, c=0)", against="attention without positions")
@part(
    "rope-id",
    "rope-id(fast=2)",
    "rope-id(p=0.6, fast=3, turns=1.5, c=0.7, layout=interleaved)",
    "rope-id(c=0)",
    "rope-id(length=4, fast=1.5)",
    "rope+rope-id(length=5)",
    against="the formula as reported",
)
def rope_id(e: Encoding) -> Part:
    """Periods from `fast` tokens to L / turns in equal ratios; the other pairs stand still."""
    pairs = e.width // 2
    count = next(count for count in range(pairs + 1) if count >= e.p * pairs)
    longest = e.length / e.turns
    shortest = min(e.fast, longest)
    theta = []
    for m in range(pairs):
        period = shortest * (longest / shortest) ** (m / max(1, count - 1)) if m < count else math.inf
        theta.append(torch.tensor(2 * math.pi / period, dtype=torch.float64))
    part = turning(e, [theta] * e.shape.heads)

    def temperature(n: Tensor) -> Tensor:
        """YaRN's factor, which queries and keys both have."""
        factor = torch.tensor([1 + e.c * math.log(max(1.0, float(keys) / e.length)) for keys in n], dtype=torch.float64)
        return (factor * factor)[None, :, None]

    return Part(query=part.query, key=part.key, temperature=temperature)


@part("mobius(share=0)", against="the paper's formula of rope")
@part("mobius", "mobius(share=0.5, length=7, base=50, layout=interleaved)", "mobius(share=1, fraction=0.5)")
def mobius(e: Encoding) -> Part:
    """theta_m = pi (2m + 1) / N in the first heads: a quarter of three is one, and half of them are two."""
    pairs = e.width // 2
    twisted = [torch.tensor(math.pi * (2 * m + 1) / e.n, dtype=torch.float64) for m in range(pairs)]
    rope = powers(e.base, e.width)
    return turning(e, [twisted if h < e.twisted else rope for h in range(e.shape.heads)])
