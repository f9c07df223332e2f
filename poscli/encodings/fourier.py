"""A Fourier series of the distance as a bias."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, at_least, register


@register("fourier", paper="no paper, a bias designed by hand", family="bias")
class Fourier(Encoding):
    """s_ij += sum_{n=1}^{terms} a_n cos(n x) + b_n sin(n x), x = pi (i - j) / L, a_n and b_n learned per head.

    The period is 2L, so that distances differ within the training length; past L the series repeats itself, and
    distance 2L gets the bias of distance 0. It starts as the series of a linear penalty that falls by 16 h/H from
    distance 0 to L, h = 1, ..., H: a_n = 16 h/H 4 / (pi n)^2 for odd n, all other coefficients 0.
    """

    def __init__(self, shape: Shape, *, terms: int = 8) -> None:
        super().__init__(shape)
        at_least(1, terms=terms)
        n = torch.arange(1, terms + 1)
        fall = 16 * torch.arange(1, shape.heads + 1) / shape.heads
        self.a = nn.Parameter((n % 2 * 4 / (math.pi * n) ** 2)[:, None] * fall)
        self.b = nn.Parameter(torch.zeros(terms, shape.heads))

    def distance_bias(self, d: Tensor) -> Tensor:
        x = math.pi / self.shape.length * d.double()
        bias = torch.zeros_like(self.a[0][:, None] * d)
        for n, (a_n, b_n) in enumerate(zip(self.a, self.b, strict=True), start=1):
            cos, sin = torch.cos(n * x).to(a_n.dtype), torch.sin(n * x).to(a_n.dtype)
            bias = bias + a_n[:, None] * cos + b_n[:, None] * sin
        return bias
