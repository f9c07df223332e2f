"""Attention with linear biases (Press et al., 2021)."""

import math

import torch
from torch import Tensor, nn

from poscli.encodings.registry import register
from poscli.equation import Encoding, Shape


def slopes(heads: int) -> list[float]:
    """Slopes m_h for any number of heads H, as in the authors' code.

    If H is a power of two, the slopes are 2^(-8/H), 2^(-16/H), ..., 2^-8. Otherwise they are those of the next smaller
    power of two, followed by every second slope of the next larger one.

    >>> [round(math.log2(m), 6) for m in slopes(12)]
    [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -0.5, -1.5, -2.5, -3.5]
    """
    below = 2 ** math.floor(math.log2(heads))
    regular = [2.0 ** (-8 * (n + 1) / below) for n in range(below)]
    between = [2.0 ** (-4 * (n + 1) / below) for n in range(0, 2 * below, 2)]
    return regular + between[: heads - below]


@register("alibi", paper="arXiv:2108.12409", family="bias")
class ALiBi(Encoding):
    """s_ij -= m_h (i - j): a penalty linear in the distance, its slope m_h geometric in the head."""

    shared = True
    slope: Tensor

    def __init__(self, shape: Shape, *, trainable: bool = False) -> None:
        super().__init__(shape)
        slope = torch.tensor(slopes(shape.heads))
        if trainable:
            self.slope = nn.Parameter(slope)
        else:
            self.register_buffer("slope", slope, persistent=False)

    def distance_bias(self, d: Tensor) -> Tensor:
        return -self.slope[:, None] * d
