"""DAPE, data-adaptive position encoding (Zheng et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from poscli.attention.biases import distances
from poscli.attention.reference import TERMS, tempered
from poscli.attention.skew import descending, skew
from poscli.encodings.base import Encoding, Shape
from poscli.encodings.over import Over
from poscli.encodings.registry import register

if TYPE_CHECKING:
    from poscli.attention.operands import Operands

BIAS = ("distance_bias", "potential", "bias")  # blanks that b may come from
PAIRS = 2**14  # whose hidden numbers are held at once: 2 MiB of float32 for 32 of them
SLOPE = 0.01  # of a leaky ReLU below 0


@register("dape", paper="arXiv:2405.14722", family="content")
class DAPE(Over):
    """s_ij = c_ij + b_ij + f([c_ij; b_ij]): a network f over the heads bends a bias b by the content scores c.

    f has one layer of `hidden` leaky ReLUs. `base` names the encoding that b is of; c is all else that makes a score,
    q . k above all. The authors' f ends in a number per head that all scores get; softmax cancels it, so f has none.
    """

    facts = ("where f is 0, dape is its base",)

    def __init__(self, shape: Shape, *, base: str = "kerple-log", hidden: int = 32) -> None:
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        super().__init__(shape, base)
        if not self.base.blanks & set(BIAS) or "scores" in self.base.blanks:
            raise ValueError(f"base must be an encoding that adds a bias to the scores, got {base}")
        self.blanks |= {"scores"}
        self.inner = nn.Linear(2 * shape.heads, hidden)
        self.outer = nn.Linear(hidden, shape.heads, bias=False)

    @property
    def base(self) -> Encoding:
        """What b is the bias of."""
        return self.parts[0]  # type: ignore[return-value]

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        b_BHTS = tempered(x, self.bias_of_base(x)).expand_as(s_BHTS)
        c_BHTS = (s_BHTS - b_BHTS).masked_fill(s_BHTS == -math.inf, 0)
        u, bias, v = (w.to(s_BHTS.dtype) for w in (self.inner.weight, self.inner.bias, self.outer.weight))
        return s_BHTS + _Network.apply(c_BHTS, b_BHTS, u, bias, v)

    def bias_of_base(self, x: Operands) -> Tensor:
        """The terms of the scores that are b, `[B or 1, H or 1, T, S]`."""
        alone, blanks = replace(x, encoding=self.base), self.base.blanks & set(BIAS)
        if blanks == {"distance_bias"} and x.step is not None:
            table = descending(self.base.distance_bias(distances(x)).to(x.q_BHTD.dtype), x.queries, fill=0)
            return skew(table[None, :, None], x.queries, x.keys).flip(-2)
        terms = [TERMS[blank](alone) for blank in BIAS if blank in blanks]
        return sum(terms[1:], terms[0])


class _Network(torch.autograd.Function):
    """v leaky_relu(u [c; b] + bias) at every pair: the hidden numbers of PAIRS at a time, made anew in the backward.

    Pairs are columns outside and rows inside: the layout in which products of so few numbers are quickest.
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, b: Tensor, u: Tensor, bias: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(c, b, u, bias, v)
        out = torch.empty_like(c)
        for part in _parts(c):
            hidden = leaky_relu(torch.addmm(bias, _pairs(c, b, part).T, u.T), inplace=True)
            out[part] = (v @ hidden.T).view_as(c[part])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        c, b, u, bias, v = ctx.saved_tensors
        grad_c, grad_b = torch.empty_like(c), torch.empty_like(c)
        grad_u, grad_bias, grad_v = (torch.zeros_like(w) for w in (u, bias, v))
        for part in _parts(c):
            pairs, g = _pairs(c, b, part), grad[part].flatten(1)
            before = torch.addmm(bias, pairs.T, u.T)
            grad_v += g @ leaky_relu(before)
            grad_before = torch.ops.aten.leaky_relu_backward(g.T @ v, before, SLOPE, False)
            grad_u += grad_before.T @ pairs.T
            grad_bias += grad_before.sum(0)
            grad_c[part], grad_b[part] = (u.T @ grad_before.T).view(2, *c[part].shape)
        return grad_c, grad_b, grad_u, grad_bias, grad_v


def _parts(c_BHTS: Tensor) -> Iterator[tuple[int, slice, slice]]:
    rows = max(1, PAIRS // c_BHTS.shape[3])
    for n in range(len(c_BHTS)):
        for start in range(0, c_BHTS.shape[2], rows):
            yield n, slice(None), slice(start, start + rows)


def _pairs(c_BHTS: Tensor, b_BHTS: Tensor, part: tuple[int, slice, slice]) -> Tensor:
    """[c; b], a column of 2H numbers per pair of tokens."""
    return torch.cat([c_BHTS[part], b_BHTS[part]]).flatten(1)
