"""kerple-log whose heads all begin where a text's distances say, not spread over the authors' ranges."""

import math

from torch import nn

from poscli.encodings import Shape, above
from poscli.encodings.kerple import KerpleLog


class DesignedKerple(KerpleLog):
    """s_ij -= r1 log(1 + r2 (i - j)), learned per head from r1 = `falls` and r2 = 1 / `near` on, both above 0.

    `falls` is the exponent with which copies get rarer, and one in ten of them lies within `near` tokens.
    """

    def __init__(self, shape: Shape, *, falls: float = 1.0, near: float = 16.0) -> None:
        super().__init__(shape)
        above(0, falls=falls, near=near)
        for parameter, start in ((self.r1, falls), (self.r2, 1 / near)):
            nn.init.constant_(parameter, math.log(math.expm1(start)))  # softplus of this is `start`
