"""Oracles of joins `a+b`: the attention equation for several encodings on one layer, in float64 and without engines.

`attention_of` puts the parts of parts.py together: maps act in order, terms are added, factors multiplied. Nothing here
is registered as the oracle of a single encoding. `test_joins.py` makes the list of joins.

B batch, H heads, T tokens, D head width, W model width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from oracles import Content
from oracles.parts import Part


def embedded(parts: Sequence[Part], c: Content) -> Tensor:
    """The input of the first layer, `[B, T, W]`."""
    pos = placed(parts, c)
    return reduce(lambda x, part: part.embed(x, pos) if part.embed else x, parts, c.x)


def attention_of(parts: Sequence[Part], c: Content) -> Tensor:
    """Attention output `[B, H, T, D]`."""
    c = replace(c, pos=placed(parts, c))
    seen, n = visible(parts, len(c.pos))
    factor = reduce(torch.mul, (part.temperature(n) for part in parts if part.temperature), torch.ones_like(n))
    s = (scores(parts, c) * factor).masked_fill(~seen, -math.inf)
    for part in parts:
        if part.scores:
            s = part.scores(s, c, factor).masked_fill(~seen, -math.inf)
    weights = next((part.weights for part in parts if part.weights), lambda s: torch.softmax(s, dim=-1))
    p = reduce(torch.mul, (part.factors(c) for part in parts if part.factors), weights(s))
    o = torch.einsum("bhij,bhjd->bhid", p, c.v)
    for part in parts:
        if part.values:
            o = o + torch.einsum("bhij,ijd->bhid", p, part.values(c))
    return o


def placed(parts: Sequence[Part], c: Content) -> Tensor:
    """Positions as the encodings see them."""
    return reduce(lambda pos, part: part.positions(pos) if part.positions else pos, parts, c.pos)


def visible(parts: Sequence[Part], tokens: int) -> tuple[Tensor, Tensor]:
    """`[T, T]`, true where query i sees key j, and the number of keys that each query sees, `[T, 1]`, pair by pair."""
    width = min((part.width for part in parts if part.width), default=tokens)
    sinks = max(part.sinks for part in parts)
    seen = [[j <= i and (i - j < width or j < sinks) for j in range(tokens)] for i in range(tokens)]
    return torch.tensor(seen), torch.tensor([[float(sum(row))] for row in seen], dtype=torch.float64)


def scores(parts: Sequence[Part], c: Content) -> Tensor:
    """Scores of all pairs, before the temperature."""
    q, k = c.q, c.k
    for part in parts:
        q = part.content_query(q) if part.content_query else q
    for part in parts:
        q, k = part.query(q, c.pos) if part.query else q, part.key(k, c.pos) if part.key else k
    turned = replace(c, q=q, k=k)
    own = next((part.similarity for part in parts if part.similarity), None)
    s = own(turned) if own else torch.einsum("bhid,bhjd->bhij", q, k)
    s = sum((part.vectors(c) for part in parts if part.vectors), s)
    s = s * next((part.scale for part in parts if part.scale), c.q.shape[-1] ** -0.5)
    return sum((part.bias(c) for part in parts if part.bias), s)
