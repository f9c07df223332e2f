"""A Gaussian of the distance as a bias."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, at_least, register


@register("gaussian", paper="no paper, a bias designed by hand", family="bias")
class Gaussian(Encoding):
    """s_ij += sum_{n=1}^{terms} a_n exp(-x^2 / 2), x = (i - j) / w_n: heights a_n and widths w_n > 0 learned per head.

    It tends to 0 at large distances, past L too. Heights start at log(L) / terms, so that one near token can outweigh
    L others. Widths are learned as logarithms and start spread geometrically from 1 to L/2 over heads and terms.
    """

    def __init__(self, shape: Shape, *, terms: int = 1) -> None:
        super().__init__(shape)
        at_least(1, terms=terms)
        count = terms * shape.heads
        spread = ((torch.arange(count) + 0.5) / count).view(shape.heads, terms).T
        self.a = nn.Parameter(torch.full((terms, shape.heads), math.log(shape.length) / terms))
        self.log_w = nn.Parameter(spread * math.log(max(shape.length / 2, 2)))

    def fall(self, x: Tensor) -> Tensor:
        """The shape of one term: 1 at x = 0, falling to 0."""
        return torch.exp(-(x**2) / 2)

    def distance_bias(self, d: Tensor) -> Tensor:
        w = self.log_w.exp()
        bias = torch.zeros_like(w[0][:, None] * d)
        for a_n, w_n in zip(self.a, w, strict=True):
            bias = bias + a_n[:, None] * self.fall(d / w_n[:, None])
        return bias
