"""KERPLE, kernelized relative position (Chi et al., 2022)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from poscli.encodings.base import Encoding, Shape
from poscli.encodings.registry import register


@register("kerple-log", paper="arXiv:2205.09921", family="bias")
class KerpleLog(Encoding):
    """s_ij -= r1 log(1 + r2 (i - j)), r1 and r2 > 0 learned per head (as softplus of a free number).

    Both start where the authors start them, uniform in (0, 2) and (0, 1), but evenly spread over the heads
    instead of drawn.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        spread = (torch.arange(shape.heads) + 0.5) / shape.heads
        self.r1 = nn.Parameter(_softplus_inverse(2 * spread))
        self.r2 = nn.Parameter(_softplus_inverse(spread.flip(0)))

    def distance_bias(self, d: Tensor) -> Tensor:
        r1, r2 = softplus(self.r1)[:, None], softplus(self.r2)[:, None]
        return -r1 * torch.log1p(r2 * d)


def _softplus_inverse(y: Tensor) -> Tensor:
    return y + torch.log(-torch.expm1(-y))
