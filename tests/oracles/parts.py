"""Every encoding as a part of a layer, in float64, from its paper: what it does to positions, queries and keys, scores,
weights and values. joins.py puts the parts of one layer together.

B batch, H heads, T tokens, D head width, W model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oracles import Content, biases, content, relative, rotary_other
from oracles.absolute import row, sinusoids
from poscli.encodings import Encoding

Turn = Callable[[Tensor, Tensor], Tensor]  # queries or keys [B, H, T, D], and positions [T]
Term = Callable[[Content], Tensor]  # [B or 1, H, T, T]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one encoding does; a field that is None does nothing."""

    positions: Callable[[Tensor], Tensor] | None = None
    embed: Callable[[Tensor, Tensor], Tensor] | None = None  # the input of the first layer [B, T, W], and positions
    content_query: Callable[[Tensor], Tensor] | None = None
    query: Turn | None = None
    key: Turn | None = None
    similarity: Term | None = None  # in place of q . k, from queries and keys that are turned
    scale: float | None = None  # the factor on q . k and on `vectors`
    vectors: Term | None = None  # terms with relative vectors, from queries and keys as projected
    bias: Term | None = None
    temperature: Callable[[Tensor], Tensor] | None = None  # [H, T, 1], of the number of visible keys [T, 1]
    width: int | None = None  # of a window
    sinks: int = 0
    scores: Callable[[Tensor, Content, Tensor], Tensor] | None = None  # of scores, -inf if hidden, and temperature
    weights: Callable[[Tensor], Tensor] | None = None  # in place of the softmax
    factors: Term | None = None  # on the weights
    values: Term | None = None  # vectors [T, T, D] added to the values


def parts_of(e: Encoding) -> list[Part]:
    """The parts of a layer's encoding, in the order of its spec."""
    leaves = [e] if e.name in PARTS else list(e.parts)
    return [PARTS[leaf.name](leaf) for leaf in leaves]


def apart(c: Content) -> Tensor:
    """Distances `[T, T]`, rounded down to a row of a table; 0 in the future. 5/3 - 2/3 is 1, however it rounds."""
    return torch.floor(c.pos[:, None] - c.pos + 1e-9).long().clamp(min=0)


def without_products(formula: Callable[[Encoding, Content], Tensor], e: Encoding) -> Term:
    """The term that a formula for whole scores adds to q . k / sqrt(D)."""
    return lambda c: formula(e, c) - torch.einsum("bhid,bhjd->bhij", c.q, c.k) / math.sqrt(c.q.shape[-1])


# Positions and embeddings


def interpolated(e: Encoding) -> Part:
    return Part(positions=lambda pos: pos / e.factor)


def randomized(e: Encoding) -> Part:
    """The positions are arbitrary, so they are taken from poscli; oracles/wrappers.py checks what they must be."""
    return Part(positions=lambda pos: e.positions(torch.arange(len(pos))).double())


def sinusoidal(e: Encoding) -> Part:
    def embed(x: Tensor, pos: Tensor) -> Tensor:
        p = sinusoids(pos, x.shape[-1])
        return x * p if e.combine == "multiply" else x + p

    return Part(embed=embed)


def learned(e: Encoding) -> Part:
    return Part(embed=lambda x, pos: x + torch.stack([row(e.table, k) for k in pos]))


# Queries and keys


def turned(x: Tensor, pos: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """Pairs (m, m + D/2) of the first D channels as complex numbers, times e^(i k theta_m); other channels stay."""
    z = torch.complex(x[..., : width // 2], x[..., width // 2 : width])
    theta = torch.tensor([base ** (-2 * m / width) for m in range(width // 2)], dtype=torch.float64)
    z = z * torch.exp(1j * pos[:, None] * theta)
    return torch.cat([z.real, z.imag, x[..., width:]], dim=-1)


def rope(e: Encoding) -> Part:
    def turn(x: Tensor, pos: Tensor) -> Tensor:
        return turned(x, pos, e.shape.head_width)

    return Part(query=turn, key=turn)


def grape(e: Encoding) -> Part:
    """Pairs of channels of B^T q and B^T k, turned by frequencies of their own."""
    width = e.shape.head_width

    def turn(x: Tensor, pos: Tensor) -> Tensor:
        basis = torch.matrix_exp(e.a - e.a.transpose(1, 2))
        in_planes = torch.einsum("hdc,bhtd->bhtc", basis, x[..., :width])
        z = torch.complex(in_planes[..., : width // 2], in_planes[..., width // 2 :])
        theta = torch.stack([10000.0 ** (-2 * m / width) * torch.exp(f) for m, f in enumerate(e.log_factor)])
        z = z * torch.exp(1j * pos[:, None] * theta)
        return torch.cat([z.real, z.imag, x[..., width:]], dim=-1)

    return Part(query=turn, key=turn)


def pope(e: Encoding) -> Part:
    width = e.shape.head_width
    theta = torch.tensor([10000.0 ** (-n / width) for n in range(width)], dtype=torch.float64)

    def polar(x: Tensor, phase: Tensor) -> Tensor:
        mu = torch.log(1 + torch.exp(x[..., :width]))
        return torch.cat([mu * torch.cos(phase), mu * torch.sin(phase), x[..., width:]], dim=-1)

    def key(k: Tensor, pos: Tensor) -> Tensor:
        delta = torch.minimum(torch.maximum(e.delta, torch.tensor(-2 * math.pi)), torch.tensor(0.0))
        return polar(k, pos[:, None] * theta + delta)

    return Part(query=lambda q, pos: polar(q, pos[:, None] * theta), key=key)


def tupe(e: Encoding) -> Part:
    """Sinusoids, mapped to queries and keys of their own beside the content; T5's buckets of the distance."""

    def beside(x: Tensor, pos: Tensor, u: Tensor) -> Tensor:
        p = torch.einsum("hdw,tw->htd", u, sinusoids(pos, u.shape[-1]))
        return torch.cat([x, p.expand(len(x), -1, -1, -1)], dim=-1)

    def bias(c: Content) -> Tensor:
        return e.b.table[:, torch.tensor([[relative.t5_bucket(int(d)) for d in row] for row in apart(c)])]

    return Part(
        query=lambda q, pos: beside(q, pos, e.u_q),
        key=lambda k, pos: beside(k, pos, e.u_k),
        scale=(2 * e.shape.head_width) ** -0.5,
        bias=bias,
    )


def path(e: Encoding) -> Part:
    return Part(similarity=lambda c: content.path(e, c) * math.sqrt(c.q.shape[-1]))


def rerope(e: Encoding) -> Part:
    def similarity(c: Content) -> Tensor:
        d = torch.minimum(c.pos[:, None] - c.pos, torch.tensor(float(e.window)))
        return rotary_other.at_distance(c, d) * math.sqrt(c.q.shape[-1])

    return Part(similarity=similarity)


# Relative vectors


def transformer_xl(e: Encoding) -> Part:
    def vectors(c: Content) -> Tensor:
        r = torch.einsum("hdw,wij->hijd", e.w_r, relative.sinusoid(c.pos[:, None] - c.pos, e.w_r.shape[-1]))
        return torch.einsum("bhid,hijd->bhij", c.q + e.v, r)

    return Part(content_query=lambda q: q + e.u, vectors=vectors)


def shaw(e: Encoding) -> Part:
    def rows(table: Tensor, c: Content) -> Tensor:
        return table[apart(c).clamp(max=e.clip)]

    return Part(
        vectors=lambda c: torch.einsum("bhid,ijd->bhij", c.q, rows(e.a_k, c)),
        values=lambda c: rows(e.a_v, c),
    )


def deberta(e: Encoding) -> Part:
    def vectors(c: Content) -> Tensor:
        k = len(e.p) // 2
        of_keys, of_queries = (torch.einsum("hdw,rw->hrd", w, e.p) for w in (e.w_k, e.w_q))
        there = [[relative.delta(int(d), k) for d in row] for row in apart(c)]
        back = [[relative.delta(-int(d), k) for d in row] for row in apart(c)]
        met_by_q = torch.einsum("bhid,hijd->bhij", c.q, of_keys[:, torch.tensor(there)])
        return met_by_q + torch.einsum("bhjd,hijd->bhij", c.k, of_queries[:, torch.tensor(back)])

    return Part(vectors=vectors, scale=(3 * e.shape.head_width) ** -0.5)


# Biases


def added(formula: Callable[[Encoding, Content], Tensor]) -> Callable[[Encoding], Part]:
    """The part of an encoding whose formula adds a bias to q . k / sqrt(D)."""
    return lambda e: Part(bias=without_products(formula, e))


def faded(e: Encoding, c: Content, log_gate: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum of log f_l over j < l <= i."""
    f = log_gate(torch.einsum("btw,hw->bht", c.x, e.w) + e.b[:, None])
    order = torch.arange(f.shape[-1])
    between = (order > order[:, None, None].transpose(0, 1)) & (order <= order[:, None, None])  # [i, j, l]
    return torch.einsum("bhl,ijl->bhij", f, between.double())


def fox(e: Encoding) -> Part:
    return Part(bias=lambda c: faded(e, c, lambda y: torch.log(content.sigmoid(y))))


def cable(e: Encoding) -> Part:
    return Part(bias=lambda c: faded(e, c, lambda y: -torch.log(1 + torch.exp(y))))


def grape_additive(e: Encoding) -> Part:
    return Part(bias=lambda c: rotary_other.path_integral(e, c, e.probe))


# Wrappers


def ssmax(e: Encoding) -> Part:
    return Part(temperature=lambda n: e.s[:, None, None] * torch.log(n))


def logn(e: Encoding) -> Part:
    return Part(temperature=lambda n: torch.maximum(torch.ones(()).double(), torch.log(n) / math.log(e.length)))


def temper(e: Encoding) -> Part:
    return Part(temperature=lambda n: 1 + e.c * torch.log(torch.maximum(torch.ones(()).double(), n / e.length)))


def window(e: Encoding) -> Part:
    return Part(width=e.width)


def sink(e: Encoding) -> Part:
    return Part(sinks=e.count)


# Rows of scores


def cope(e: Encoding) -> Part:
    """Scores s_ij + q_i . e[p_ij], p_ij = sum_{l=j..i} sigmoid(s_il), e interpolated; hidden keys have no gate."""

    def scores(s: Tensor, c: Content, factor: Tensor) -> Tensor:
        last, count = len(e.e) - 1, s.shape[-1]
        gates = torch.where(s > -math.inf, content.sigmoid(s.clamp(min=-700)), 0)
        order = torch.arange(count)
        p = torch.clamp(torch.einsum("bhil,jl->bhij", gates, (order[:, None] <= order).double()), max=last)
        low = torch.floor(p.detach()).clamp(max=last - 1)
        mean = (1 - (p - low))[..., None] * e.e[low.long()] + (p - low)[..., None] * e.e[low.long() + 1]
        return s + torch.einsum("bhid,bhijd->bhij", c.q, mean)

    return Part(scores=scores)


def dape(e: Encoding) -> Part:
    """S + f([s - b; b]) with one network for all pairs, b the base's bias times the temperature."""
    (base,) = parts_of(e.parts[0])

    def scores(s: Tensor, c: Content, factor: Tensor) -> Tensor:
        hidden = s == -math.inf
        s = s.masked_fill(hidden, 0)  # the mask is put back afterwards
        b = (base.bias(c) * factor).expand_as(s)
        y = torch.einsum("bnij,mn->bmij", torch.cat([s - b, b], dim=1), e.inner.weight) + e.inner.bias[:, None, None]
        return s + torch.einsum("bmij,hm->bhij", torch.where(y > 0, y, 0.01 * y), e.outer.weight)

    return replace(base, scores=scores)


def stick_breaking(e: Encoding) -> Part:
    """From the query back, each key breaks its share off what is left of a stick of length 1."""

    def weights(s: Tensor) -> Tensor:
        share, left = torch.where(s > -math.inf, content.sigmoid(s.clamp(min=-700)), 0), torch.ones_like(s[..., 0])
        taken = []
        for j in reversed(range(s.shape[-1])):
            taken.append(left * share[..., j])
            left = left * (1 - share[..., j])
        return torch.stack(taken[::-1], dim=-1)

    return Part(weights=weights)


def urpe(e: Encoding) -> Part:
    (base,) = parts_of(e.parts[0])

    def factors(c: Content) -> Tensor:
        toeplitz = e.parts[1].c
        return toeplitz[:, apart(c).clamp(max=toeplitz.shape[1] - 1)]

    return replace(base, factors=factors)


PARTS: dict[str, Callable[[Encoding], Part]] = {
    "none": lambda e: Part(),
    "interpolated": interpolated,
    "randomized": randomized,
    "sinusoidal": sinusoidal,
    "learned": learned,
    "rope": rope,
    "grape": grape,
    "pope": pope,
    "tupe": tupe,
    "path": path,
    "rerope": rerope,
    "transformer-xl": transformer_xl,
    "xlnet": transformer_xl,
    "shaw": shaw,
    "deberta": deberta,
    "alibi": added(biases.alibi),
    "kerple-log": added(biases.kerple_log),
    "t5": lambda e: added(biases.t5(e.buckets, e.far))(e),
    "fire": added(biases.fire),
    "query-bias": added(biases.query_bias),
    "fox": fox,
    "cable": cable,
    "grape-additive": grape_additive,
    "ssmax": ssmax,
    "logn": logn,
    "temper": temper,
    "window": window,
    "sink": sink,
    "cope": cope,
    "dape": dape,
    "stick-breaking": stick_breaking,
    "urpe": urpe,
}
