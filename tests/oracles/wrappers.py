"""Oracles of wrappers: windows, sinks, other positions, sharper scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oracles.layer import Part, part
from poscli.encodings import Encoding

ONE = torch.ones((), dtype=torch.float64)


@part("window(9)", "window", "alibi+window(5)", "alibi+window(5)+randomized(320)", against="the definition")
def window(e: Encoding) -> Part:
    """Queries see the last tokens, however far apart their positions are."""
    return Part(width=e.width)


@part("sink(3)", "sink(3)+window(5)", against="the definition")
def sink(e: Encoding) -> Part:
    """Every query sees the first tokens, counted in order, whatever their positions."""
    return Part(sinks=e.count)


@part("interpolated(2.5)", "rope+interpolated(4)", "alibi+interpolated")
def interpolated(e: Encoding) -> Part:
    """Positions divided by a factor, or times L / L' for an input of L' > L tokens."""
    return Part(positions=lambda pos: pos / (e.factor or max(1.0, float(pos[-1] + 1) / e.shape.length)))


@part("randomized", "alibi+randomized(320)", "rope+randomized(400)")
def randomized(e: Encoding) -> Part:
    """The positions that poscli drew, checked to be n different positions of [0, max), sorted."""

    def positions(pos: Tensor) -> Tensor:
        index = pos.round().long()
        drawn = e.positions(torch.arange(int(index[-1]) + 1))
        assert len(drawn) == index[-1] + 1
        assert int(drawn[0]) >= 0
        assert int(drawn[-1]) < e.max
        assert (drawn.diff() > 0).all()
        noise = (pos - index) / index.clamp(min=1)  # the rounding noise of the given positions
        return drawn[index] * (1 + noise)

    return Part(positions=positions)


@part("ssmax", "rope+ssmax", "shaw(clip=4, values=false)+ssmax", "alibi+window(5)+ssmax")
def ssmax(e: Encoding) -> Part:
    """Scores times s log n, n the number of visible keys."""
    return Part(temperature=lambda n: e.s[:, None, None] * torch.log(n))


@part("logn", "logn(length=4)", "alibi+logn(5)", "rope+logn(5)+ssmax", against="the author's formula")
def logn(e: Encoding) -> Part:
    """Scores times max(1, log_L n)."""
    return Part(temperature=lambda n: torch.maximum(ONE, torch.log(n) / math.log(e.length)))


@part(
    *("temper", "temper(length=4)", "temper(c=0.412, length=4)", "rope-ntk+temper(c=0.103, length=5)"),
    "alibi+temper(c=2, length=1)",
)
def temper(e: Encoding) -> Part:
    """Scores times 1 + c ln s, s the number of visible keys over L, and 1 where that is less."""
    return Part(temperature=lambda n: 1 + e.c * torch.log(torch.maximum(ONE, n / e.length)))
