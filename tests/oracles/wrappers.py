"""Oracles of wrappers: windows, sinks, other positions, sharper scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oracles import Content, attention, distances, dots, oracle
from oracles.absolute import sinusoids
from oracles.biases import slopes
from oracles.rotary import ntk, products, scale_of
from poscli.encodings import Encoding


def counts(c: Content) -> Tensor:
    """The number of tokens that each query sees, `[T, 1]`, whatever their positions."""
    return torch.arange(1, len(c.pos) + 1, dtype=torch.float64)[:, None]


def alibi(c: Content, pos: Tensor) -> Tensor:
    """-m_h (k_i - k_j) `[H, T, T]`."""
    m = torch.tensor(slopes(c.q.shape[1]), dtype=torch.float64)
    return -m[:, None, None] * (pos[:, None] - pos)


def rotated(c: Content, pos: Tensor) -> Tensor:
    """Re sum_m q_m conj(k_m) exp(i (k_i - k_j) theta_m) / sqrt(D), pair m being channels m and m + D/2."""
    width = c.q.shape[-1]
    q, k = (torch.complex(*x.chunk(2, dim=-1)) for x in (c.q, c.k))
    theta = 10000.0 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    turn = torch.polar(torch.ones(()).double(), (pos[:, None] - pos)[..., None] * theta)
    return torch.einsum("bhim,bhjm,ijm->bhij", q, k.conj(), turn).real / math.sqrt(width)


# window


def hidden(c: Content, width: int) -> Tensor:
    order = torch.arange(len(c.pos))
    return torch.where(order[:, None] - order < width, 0.0, -math.inf)


@oracle("window(9)", "window", against="the definition")
def window(e: Encoding, c: Content) -> Tensor:
    return dots(c) + hidden(c, e.width)


@oracle("alibi+window(5)", against="the definition")
def window_alibi(e: Encoding, c: Content) -> Tensor:
    return dots(c) + alibi(c, c.pos) + hidden(c, 5)


@oracle("alibi+window(5)+randomized(320)", against="the definition")
def window_by_order(e: Encoding, c: Content) -> Tensor:
    """Queries see the last five tokens, however far apart their positions are."""
    return dots(c) + alibi(c, drawn(e, c, 320)) + hidden(c, 5)


# sink


@oracle("sink(3)+window(5)", "sink(3)", against="the definition")
def sink(e: Encoding, c: Content) -> Tensor:
    """Every query sees the first 3 tokens, counted in order, whatever their positions."""
    if e.reach is None:
        return dots(c)
    order = torch.arange(len(c.pos))
    return dots(c) + torch.where(order < 3, 0.0, hidden(c, 5))


# interpolated


@oracle("sinusoidal+interpolated(3)", gives="embedding")
def interpolated_sinusoidal(e: Encoding, c: Content) -> Tensor:
    return c.x + sinusoids(c.pos / 3, c.x.shape[-1])


@oracle("rope+interpolated(4)")
def interpolated_rope(e: Encoding, c: Content) -> Tensor:
    return rotated(c, c.pos / 4)


@oracle("alibi+interpolated")
def interpolated_to_the_training_length(e: Encoding, c: Content) -> Tensor:
    """Positions times L / L' for an input of L' > L tokens."""
    longer = max(1.0, float(c.pos[-1] + 1) / e.shape.length)
    return dots(c) + alibi(c, c.pos / longer)


@oracle("interpolated(2.5)")
def interpolated_alone(e: Encoding, c: Content) -> Tensor:
    return dots(c)


# randomized


def drawn(e: Encoding, c: Content, largest: int) -> Tensor:
    """The positions that poscli drew, checked to be n different positions of [0, max), sorted."""
    index = c.pos.round().long()
    every = e.positions(torch.arange(int(index[-1]) + 1))
    assert len(every) == index[-1] + 1
    assert int(every[0]) >= 0
    assert int(every[-1]) < largest
    assert (every.diff() > 0).all()
    noise = (c.pos - index) / index.clamp(min=1)  # the rounding noise of the given positions
    return every[index] * (1 + noise)


@oracle("alibi+randomized(320)")
def randomized_alibi(e: Encoding, c: Content) -> Tensor:
    return dots(c) + alibi(c, drawn(e, c, 320))


@oracle("rope+randomized(400)")
def randomized_rope(e: Encoding, c: Content) -> Tensor:
    return rotated(c, drawn(e, c, 400))


@oracle("shaw+randomized(40)", gives="output")
def randomized_shaw(e: Encoding, c: Content) -> Tensor:
    """Relative vectors at uneven distances."""
    pos, shaw = drawn(e, c, 40), e.parts[0]
    w = (pos[:, None] - pos).round().long().clamp(0, 16)
    s = dots(c) + torch.einsum("bhid,ijd->bhij", c.q, shaw.a_k[w]) / math.sqrt(c.q.shape[-1])
    future = torch.ones(len(pos), len(pos), dtype=torch.bool).triu(1)
    p = torch.softmax(s.masked_fill(future, -math.inf), dim=-1)
    return attention(s, c) + torch.einsum("bhij,ijd->bhid", p, shaw.a_v[w])


@oracle("randomized")
def randomized_alone(e: Encoding, c: Content) -> Tensor:
    drawn(e, c, 16 * e.shape.length)
    return dots(c)


# ssmax, logn, temper


@oracle("ssmax")
def ssmax(e: Encoding, c: Content) -> Tensor:
    """Scores times s log n."""
    return e.s[:, None, None] * counts(c).log() * dots(c)


@oracle("rope+ssmax")
def ssmax_rope(e: Encoding, c: Content) -> Tensor:
    return e.parts[1].s[:, None, None] * counts(c).log() * rotated(c, c.pos)


@oracle("shaw(clip=4, values=false)+ssmax")
def ssmax_shaw(e: Encoding, c: Content) -> Tensor:
    w = distances(c).round().long().clamp(0, 4)
    met = torch.einsum("bhid,ijd->bhij", c.q, e.parts[0].a_k[w]) / math.sqrt(c.q.shape[-1])
    return e.parts[1].s[:, None, None] * counts(c).log() * (dots(c) + met)


@oracle("alibi+window(5)+ssmax")
def ssmax_under_a_window(e: Encoding, c: Content) -> Tensor:
    """The number n of visible keys is at most the width of the window."""
    n = counts(c).clamp(max=5)
    return e.parts[2].s[:, None, None] * n.log() * (dots(c) + alibi(c, c.pos)) + hidden(c, 5)


@oracle("logn", "logn(length=4)", against="the author's formula")
def logn(e: Encoding, c: Content) -> Tensor:
    return dots(c) * sharper(c, e.length)


@oracle("alibi+logn(5)", against="the author's formula")
def logn_alibi(e: Encoding, c: Content) -> Tensor:
    return (dots(c) + alibi(c, c.pos)) * sharper(c, 5)


@oracle("rope+logn(5)+ssmax", against="the authors' formulas")
def logn_and_ssmax(e: Encoding, c: Content) -> Tensor:
    """The factors of both encodings multiply."""
    return rotated(c, c.pos) * sharper(c, 5) * e.parts[2].s[:, None, None] * counts(c).log()


def sharper(c: Content, length: int) -> Tensor:
    """max(1, log_L n) `[T, 1]`."""
    return torch.tensor([[max(1.0, math.log(n, length))] for n in range(1, len(c.pos) + 1)], dtype=torch.float64)


def tempered(c: Content, constant: float, length: int) -> Tensor:
    """The factor beta = 1 + c ln s `[T, 1]`, s the number of visible keys over L, and 1 where that is less."""
    s = torch.maximum(counts(c) / length, torch.ones(()).double())
    return 1 + constant * torch.log(s)


@oracle("temper")
def temper_within_training(e: Encoding, c: Content) -> Tensor:
    """No query sees more than L keys, whatever their positions."""
    assert len(c.pos) <= e.shape.length
    return dots(c)


@oracle("temper(length=4)", "temper(c=0.412, length=4)")
def temper(e: Encoding, c: Content) -> Tensor:
    return dots(c) * tempered(c, 0.412, 4)


@oracle("rope-ntk+temper(c=0.103, length=5)")
def temper_ntk(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(scale_of(c))) * tempered(c, 0.103, 5)


@oracle("alibi+temper(c=2, length=1)")
def temper_alibi(e: Encoding, c: Content) -> Tensor:
    return (dots(c) + alibi(c, c.pos)) * tempered(c, 2.0, 1)
