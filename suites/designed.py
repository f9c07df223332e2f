"""kerple-log that begins at what a text's distances say, instead of at random."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from poscli.encodings import Encoding, Shape


class DesignedKerple(Encoding):
    """s_ij -= r1 log(1 + r2 (i - j)), learned per head from r1 = `falls` and r2 = 1 / `near` on.

    `falls` is the exponent with which copies get rarer, and one in ten of them lies within `near` tokens.
    """

    def __init__(self, shape: Shape, *, falls: float = 1.0, near: float = 16.0) -> None:
        super().__init__(shape)
        before = [math.log(math.expm1(value)) for value in (falls, 1 / near)]  # softplus
        self.r1, self.r2 = (nn.Parameter(torch.full((shape.heads,), value)) for value in before)

    def distance_bias(self, d: Tensor) -> Tensor:
        r1, r2 = softplus(self.r1)[:, None], softplus(self.r2)[:, None]
        return -r1 * torch.log1p(r2 * d)
