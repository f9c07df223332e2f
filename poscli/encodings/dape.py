"""DAPE, data-adaptive position encoding (Zheng et al., 2024)."""

from __future__ import annotations

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
PAIRS = 2**16  # whose hidden numbers are held at once: 8 MiB of float32 for 32 of them
LEAST = -1e18  # far below any score; its products are finite still
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
        exact = torch.promote_types(s_BHTS.dtype, torch.float32)
        b_BHTS = tempered(x, self.bias_of_base(x)).to(exact)
        u, v = torch.cat([self.inner.weight, self.inner.bias[:, None]], dim=1), self.outer.weight
        heads = b_BHTS.expand(-1, s_BHTS.shape[1], -1, -1)
        return _Bent.apply(s_BHTS.to(exact), heads, u.to(exact), v.to(exact)).to(s_BHTS.dtype)

    def bias_of_base(self, x: Operands) -> Tensor:
        """The terms of the scores that are b, `[B or 1, H or 1, T, S]`."""
        alone, blanks = replace(x, encoding=self.base), self.base.blanks & set(BIAS)
        if blanks == {"distance_bias"} and x.step is not None:
            table = descending(self.base.distance_bias(distances(x)).to(x.q_BHTD.dtype), x.queries, fill=0)
            return skew(table[None, :, None], x.queries, x.keys).flip(-2)
        terms = [TERMS[blank](alone) for blank in BIAS if blank in blanks]
        total = sum(terms[1:], terms[0])
        return total if total.ndim == 4 else total[None]


class _Bent(torch.autograd.Function):
    """s + v leaky_relu(u [s - b; b; 1]): the hidden numbers of PAIRS at a time, made anew in the backward.

    Pairs are columns outside and rows inside: the layout in which products of so few numbers are quickest.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, b: Tensor, u: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(s, b, u, v)
        out = torch.empty_like(s)
        for at, shared in _parts(s, b):
            hidden = leaky_relu(_pairs(s[at], b[shared]).T @ u.T, SLOPE, inplace=True)
            torch.add(s[at], (v @ hidden.T).view_as(s[at]), out=out[at])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        s, b, u, v = ctx.saved_tensors
        grad_s = torch.empty_like(s)
        grad_b, grad_u, grad_v = (x.new_zeros(x.shape) for x in (b, u, v))
        for at, shared in _parts(s, b):
            pairs, g = _pairs(s[at], b[shared]), grad[at].flatten(1)
            before = pairs.T @ u.T
            grad_v += g @ leaky_relu(before, SLOPE)
            grad_before = torch.ops.aten.leaky_relu_backward(g.T @ v, before, SLOPE, False)
            grad_u += grad_before.T @ pairs.T
            of_c, of_b = (u.T[:-1] @ grad_before.T).view(2, *s[at].shape)
            torch.add(grad[at], of_c, out=grad_s[at])
            grad_b[shared] += of_b - of_c
        return grad_s, grad_b, grad_u, grad_v


Part = tuple[int, slice, slice]  # a text, all heads, some queries


def _parts(s_BHTS: Tensor, b_BHTS: Tensor) -> Iterator[tuple[Part, Part]]:
    """Where to find PAIRS at a time in s, and in b, which texts may share."""
    rows = max(1, PAIRS // s_BHTS.shape[3])
    for start in range(0, s_BHTS.shape[2], rows):
        queries = slice(start, start + rows)
        for n in range(len(s_BHTS)):
            yield (n, slice(None), queries), (n % len(b_BHTS), slice(None), queries)


def _pairs(s_HTS: Tensor, b_HTS: Tensor) -> Tensor:
    """[s - b; b; 1], a column of 2H + 1 numbers per pair of tokens; hidden keys have a finite number for -inf."""
    heads = len(s_HTS)
    pairs = s_HTS.new_ones(2 * heads + 1, *s_HTS.shape[1:])
    torch.sub(s_HTS, b_HTS, out=pairs[:heads]).clamp_(min=LEAST)
    pairs[heads:-1] = b_HTS
    return pairs.flatten(1)
