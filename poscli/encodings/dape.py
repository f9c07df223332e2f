"""DAPE, data-adaptive position encoding (Zheng et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from poscli.attention.biases import even_distances
from poscli.attention.skew import descending, skew
from poscli.encodings import Encoding, Operands, Shape, at_least, register
from poscli.encodings.based import Based
from poscli.equation.blanks import of_tier
from poscli.equation.reference import TERMS, tempered
from poscli.native.call import Mixing

BIAS = ("distance_bias", "potential", "bias")  # blanks of the base that make b
SCORE_OF_HIDDEN_KEYS = -1e18  # in place of -inf: far below any score, and its products stay finite
NEGATIVE_SLOPE = 0.01  # of the leaky ReLU


@register("dape", paper="arXiv:2405.14722", family="content")
class DAPE(Based):
    """s_ij = c_ij + b_ij + f([c_ij; b_ij]): a network f over the heads adapts a bias b to the content scores c.

    f has one layer of `hidden` leaky ReLUs. `base` names the encoding whose bias is b; c is the rest of the score, with
    q . k above all. The authors' f ends in a bias per head, the same for all scores of a row; the softmax cancels it,
    so f has none here.
    """

    facts = ("where f is 0, dape is its base",)

    def __init__(self, shape: Shape, *, base: str = "kerple-log", hidden: int = 32) -> None:
        at_least(1, hidden=hidden)
        super().__init__(shape, base)
        if not self.base.blanks & set(BIAS) or "scores" in self.base.blanks:
            raise ValueError(f"base must be an encoding that adds a bias to the scores, got {base}")
        self.blanks |= {"scores"}
        self.inner = nn.Linear(2 * shape.heads, hidden)
        self.outer = nn.Linear(hidden, shape.heads, bias=False)

    @property
    def base(self) -> Encoding:
        """The encoding whose bias is b."""
        return self.parts[0]

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        exact = torch.promote_types(s_BHTS.dtype, torch.float32)
        s = s_BHTS.to(exact).clamp(min=SCORE_OF_HIDDEN_KEYS)
        b = tempered(x, self.bias_of_base(x)).to(exact).expand_as(s)
        c_and_b = torch.cat([s - b, b], dim=1).movedim(1, -1)
        f = self.outer(leaky_relu(self.inner(c_and_b.to(self.inner.weight.dtype)), NEGATIVE_SLOPE))
        return (s + f.movedim(-1, 1)).to(s_BHTS.dtype)

    def bias_of_base(self, x: Operands) -> Tensor:
        """The bias b, `[B or 1, H or 1, T, S]`."""
        terms = [TERMS[blank](self.base, x) for blank in BIAS if blank in self.base.blanks]
        total = sum(terms[1:], terms[0])
        return total if total.ndim == 4 else total[None]

    def fast_scores(self, s_BHTS: Tensor, x: Operands, *, pairs_per_chunk: int = 2**16) -> Tensor:
        """`scores`, with the hidden numbers of `pairs_per_chunk` pairs at once: 8 MiB of float32 for 32 of them."""
        exact = torch.promote_types(s_BHTS.dtype, torch.float32)
        b = tempered(x, self.fast_bias_of_base(x)).to(exact).expand(-1, s_BHTS.shape[1], -1, -1)
        u, v = torch.cat([self.inner.weight, self.inner.bias[:, None]], dim=1), self.outer.weight
        return _Network.apply(s_BHTS.to(exact), b, u.to(exact), v.to(exact), pairs_per_chunk).to(s_BHTS.dtype)

    def fast_bias_of_base(self, x: Operands) -> Tensor:
        """`bias_of_base`, as a view of a table where b depends on even distances alone."""
        blanks = self.base.blanks & set(BIAS)
        if blanks == {"distance_bias"} and x.step is not None:
            table = descending(self.base.distance_bias(even_distances(x)).to(x.q_BHTD.dtype), x.queries, fill=0)
            return skew(table[None, :, None], x.queries, x.keys).flip(-2)
        return self.bias_of_base(x)

    @property
    def has_kernel_form(self) -> bool:
        blanks = self.base.blanks
        return blanks & set(BIAS) == {"distance_bias"} and not of_tier(blanks, "row")

    @property
    def kernel_form_has_gradient(self) -> bool:
        return self.has_kernel_form

    def kernel_form(self, x: Operands) -> Mixing:
        """The kernels add b to the scores first, so c_ij = s_ij - b_ij."""
        of_c, of_b = self.inner.weight.chunk(2, dim=1)
        b_HN = self.base.distance_bias(even_distances(x)).to(of_c.dtype).expand(x.q_BHTD.shape[1], -1)
        of_distance = (of_b - of_c) @ b_HN + self.inner.bias[:, None]
        return Mixing(of_c, descending(of_distance, x.queries, fill=0), self.outer.weight, NEGATIVE_SLOPE)


class _Network(torch.autograd.Function):
    """s + v leaky_relu(u [s - b; b; 1]), chunk by chunk; the backward pass computes the hidden numbers again.

    Pairs of tokens are columns for the element-wise work and rows for the products, the fastest layout of each.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, b: Tensor, u: Tensor, v: Tensor, pairs_per_chunk: int) -> Tensor:
        ctx.save_for_backward(s, b, u, v)
        ctx.pairs_per_chunk = pairs_per_chunk
        out = torch.empty_like(s)
        for of_s, of_b in _chunks(s, b, pairs_per_chunk):
            hidden = leaky_relu(_inputs(s[of_s], b[of_b]).T @ u.T, NEGATIVE_SLOPE, inplace=True)
            torch.add(s[of_s], (v @ hidden.T).view_as(s[of_s]), out=out[of_s])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        s, b, u, v = ctx.saved_tensors
        grad_s = torch.empty_like(s)
        grad_b, grad_u, grad_v = (x.new_zeros(x.shape) for x in (b, u, v))
        for of_s, of_b in _chunks(s, b, ctx.pairs_per_chunk):
            inputs, g = _inputs(s[of_s], b[of_b]), grad[of_s].flatten(1)
            before = inputs.T @ u.T
            grad_v += g @ leaky_relu(before, NEGATIVE_SLOPE)
            grad_before = torch.ops.aten.leaky_relu_backward(g.T @ v, before, NEGATIVE_SLOPE, False)
            grad_u += grad_before.T @ inputs.T
            grad_c, grad_of_b = (u.T[:-1] @ grad_before.T).view(2, *s[of_s].shape)
            torch.add(grad[of_s], grad_c, out=grad_s[of_s])
            grad_b[of_b] += grad_of_b - grad_c
        return grad_s, grad_b, grad_u, grad_v, None


Index = tuple[int, slice, slice]  # one text, all heads, some queries


def _chunks(s_BHTS: Tensor, b_BHTS: Tensor, pairs_per_chunk: int) -> Iterator[tuple[Index, Index]]:
    """The index of each chunk in s and in b, whose texts may share one entry."""
    rows = max(1, pairs_per_chunk // s_BHTS.shape[3])
    for start in range(0, s_BHTS.shape[2], rows):
        queries = slice(start, start + rows)
        for n in range(len(s_BHTS)):
            yield (n, slice(None), queries), (n % len(b_BHTS), slice(None), queries)


def _inputs(s_HTS: Tensor, b_HTS: Tensor) -> Tensor:
    """[s - b; b; 1], a column of 2H + 1 numbers per pair of tokens; hidden keys have a finite number for -inf."""
    heads = len(s_HTS)
    inputs = s_HTS.new_ones(2 * heads + 1, *s_HTS.shape[1:])
    torch.sub(s_HTS, b_HTS, out=inputs[:heads]).clamp_(min=SCORE_OF_HIDDEN_KEYS)
    inputs[heads:-1] = b_HTS
    return inputs.flatten(1)
