"""Scalable softmax, for any encoding (Nakanishi, 2025)."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, register


@register("ssmax", paper="arXiv:2501.19399", family="wrapper")
class SSMax(Encoding):
    """softmax(s log(n) s_ij), n the number of keys that query i sees and s learned per head and layer.

    The factor keeps attention as sharp over many keys as over few. s starts at 1 / log L, so that a query that sees L
    tokens, the training length, keeps its scores, and a trained model can use the encoding without training s; the
    paper trains s. The factor multiplies every term of the scores, and it is 0 for n = 1.
    """

    wraps = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.s = nn.Parameter(torch.full((shape.heads,), 1 / math.log(max(2, shape.length))))

    def temperature(self, n: Tensor) -> Tensor:
        return self.s[:, None] * n.double().log()
