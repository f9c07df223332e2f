"""Relative vectors of a finite span, met by a query of their own (Inkling, Thinking Machines, 2026)."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("finite-span", paper="no paper, Inkling in transformers (modeling_inkling.py)", family="relative")
class FiniteSpan(Encoding):
    """s_ij += r_i . P[i-j] for i - j < span, 0 beyond; r_i = W x_i per head; all times 1 + alpha log max(1, n / floor).

    P has a vector of width `rank` for each distance, learned per layer and shared by its heads; n is the number of keys
    that query i sees, and `floor` the training length unless it is given. No term depends on a distance of `span` or
    more, so nothing new is seen beyond L. As in transformers, where rank is 16, span 1024 (the window in layers that
    have one), and in the published models alpha 0.1 and floor 128000; x-transformers has the term as
    RelativeProjPositionalBias, without the factor. P starts at zero here, so that distances that training never shows
    add nothing, and in both libraries at random with a standard deviation of 0.02. `alpha=0` is without the factor.
    """

    facts = ("it starts as none",)

    def __init__(
        self,
        shape: Shape,
        *,
        span: Length[int] = 128,
        rank: int = 16,
        alpha: float = 0.0,
        floor: Length[int] | None = None,
    ) -> None:
        super().__init__(shape)
        self.span, self.alpha, self.floor = span, alpha, shape.length if floor is None else floor
        at_least(1, span=span, rank=rank, floor=self.floor)
        at_least(0, alpha=alpha)
        self.feature_width = rank
        self.w = nn.Parameter(torch.randn(shape.heads * rank, shape.width) * shape.width**-0.5)
        self.p = nn.Parameter(torch.zeros(span, rank))
        if not alpha:
            self.leave("temperature")

    def features(self, x_BTW: Tensor) -> Tensor:
        """The queries r of the relative vectors, `[B, H, T, rank]`."""
        return linear(x_BTW, self.w.to(x_BTW.dtype)).unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)

    def relative_query(self, q_BHTD: Tensor, f_BHTF: Tensor | None) -> Tensor:
        assert f_BHTF is not None
        return f_BHTF / self.scale  # scores of relative vectors are multiplied by the scale, and this term is not

    def relative_keys(self, d: Tensor) -> Tensor:
        near = self.p[d.clamp(max=self.span - 1).long()]
        return near.masked_fill(d[:, None] >= self.span, 0)[None]

    def temperature(self, n: Tensor) -> Tensor:
        return (1 + self.alpha * (n.double().log() - math.log(self.floor)).clamp(min=0))[None]
