"""One layer of attention, in float64 and without engines: what each encoding does there, and what several do together.

An encoding is declared once, as a `Part`: its formula is then the oracle of the specs that the declaration names, and
its part of every combination `a+b`. `attention_of` puts parts together: maps act in order, terms are added, factors
multiplied.

B batch, H heads, T tokens, D head width, W model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor

from oracles import Content, every, oracle
from poscli.encodings import Encoding

Turn = Callable[[Tensor, Tensor], Tensor]  # queries or keys [B, H, T, D], and positions [T]
Term = Callable[[Content], Tensor]  # [B or 1, H, T, T]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one encoding does; a field that is None does nothing."""

    positions: Callable[[Tensor], Tensor] | None = None
    embed: Callable[[Tensor, Tensor], Tensor] | None = None  # the input of the first layer [B, T, W], and positions
    mix: Callable[[Tensor], Tensor] | None = None  # the input of each layer, [B, T, W]
    content_query: Callable[[Tensor], Tensor] | None = None
    query: Turn | None = None
    key: Turn | None = None
    phase: Callable[[Content], Tensor] | None = None  # angles [B, H, T, P] by which queries and keys are turned last
    similarity: Term | None = None  # in place of q . k, from queries and keys that are turned
    scale: float | None = None  # the factor on q . k and on `vectors`
    vectors: Term | None = None  # terms with relative vectors, from queries and keys as projected
    bias: Term | None = None
    temperature: Callable[[Tensor], Tensor] | None = None  # [H, T, 1], of the number of visible keys [T, 1]
    width: int | None = None  # of a window
    sinks: int = 0
    scores: Callable[[Tensor, Content, Tensor], Tensor] | None = None  # of scores, -inf if hidden, and temperature
    null: Tensor | None = None  # [H], the score of one more key, the first of all, whose value is 0
    weights: Callable[[Tensor], Tensor] | None = None  # in place of the softmax
    factors: Term | None = None  # on the weights
    values: Term | None = None  # vectors [T, T, D] added to the values


MakeT = TypeVar("MakeT", bound=Callable[[Encoding], Part])
PARTS: dict[str, Callable[[Encoding], Part]] = {}  # by the name of the encoding


def part(*specs: str, against: str = "the paper's formula", gives: str = "output") -> Callable[[MakeT], MakeT]:
    """Declare what encodings do, as the oracle of some specs; those without + name the encodings."""

    def add(make: MakeT) -> MakeT:
        PARTS.update((spec.partition("(")[0], make) for spec in specs if "+" not in spec)
        whole = {"embedding": embedded, "mixture": mixed}.get(gives, attention_of)
        oracle(*specs, against=against, gives=gives)(lambda e, c: whole(parts_of(e), c))
        return make

    return add


def bias(*specs: str, against: str = "the paper's formula") -> Callable[..., Callable[[Encoding, Content], Tensor]]:
    """Declare an encoding by the term `[B or 1, H, T, T]` that it adds to the scores; it is arbitrary in the future."""

    def add(term: Callable[[Encoding, Content], Tensor]) -> Callable[[Encoding, Content], Tensor]:
        part(*specs, against=against)(lambda e: Part(bias=lambda c: term(e, c)))
        return term

    return add


def parts_of(e: Encoding) -> list[Part]:
    """The parts of a layer's encoding, in the order of its spec."""
    every()  # each module of this package declares parts
    leaves = [e] if e.name in PARTS else list(e.parts)
    return [PARTS[leaf.name](leaf) for leaf in leaves]


def embedded(parts: Sequence[Part], c: Content) -> Tensor:
    """The input of the first layer, `[B, T, W]`."""
    pos = placed(parts, c)
    return reduce(lambda x, part: part.embed(x, pos) if part.embed else x, parts, c.x)


def mixed(parts: Sequence[Part], c: Content) -> Tensor:
    """What the projections see of a layer's input, `[B, T, W]`."""
    return reduce(lambda x, part: part.mix(x) if part.mix else x, parts, c.x)


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
    nulls = [part.null[:, None, None].expand(*s.shape[:-1], 1) for part in parts if part.null is not None]
    p = weights(torch.cat([*nulls, s], dim=-1))[..., len(nulls) :]
    p = reduce(torch.mul, (part.factors(c) for part in parts if part.factors), p)
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
    for part in parts:
        q, k = (turned(x, part.phase(c)) for x in (q, k)) if part.phase else (q, k)
    both = replace(c, q=q, k=k)
    similarity = next((part.similarity for part in parts if part.similarity), None)
    s = similarity(both) if similarity else torch.einsum("bhid,bhjd->bhij", q, k)
    s = sum((part.vectors(c) for part in parts if part.vectors), s)
    s = s * next((part.scale for part in parts if part.scale), c.q.shape[-1] ** -0.5)
    return sum((part.bias(c) for part in parts if part.bias), s)


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Channels m and m + P of `[B, H, T, D]` as a complex number, times e^(i angle m), `[B, H, T, P]`."""
    a, b, rest = x.tensor_split([angle.shape[-1], 2 * angle.shape[-1]], dim=-1)
    z = torch.complex(a, b) * torch.exp(1j * angle)
    return torch.cat([z.real, z.imag, rest], dim=-1)


def steps(c: Content) -> Tensor:
    """Distances `[T, T]` as whole numbers, rounded down to a row of a table; 0 in the future.

    Rounding, or noise in the positions, keeps no distance from its row: 5/3 - 2/3 is 1.
    """
    return torch.floor(c.pos[:, None] - c.pos + 1e-3).long().clamp(min=0)


def by_step(number: Callable[[int], int], c: Content) -> Tensor:
    """A whole number for each distance, `[T, T]`, from a function of one distance."""
    return torch.tensor([[number(d) for d in row] for row in steps(c).tolist()])


def pairwise(entry: Callable[[int, int], Tensor], c: Content) -> Tensor:
    """`[B, H, T, T]` from a function of query i and key j that gives `[B, H]`; zero in the future."""
    tokens, zero = range(len(c.pos)), torch.zeros(c.q.shape[:2], dtype=torch.float64)
    return torch.stack([torch.stack([entry(i, j) if j <= i else zero for j in tokens], -1) for i in tokens], -2)
