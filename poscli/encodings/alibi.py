"""Attention with linear biases (Press et al., 2021)."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Length, Shape, above, register


def slopes(heads: int, most: float = 8.0) -> list[float]:
    """Slopes m_h for any number of heads H, as in the authors' code, where `most` is 8.

    If H is a power of two, the slopes are 2^(-most/H), 2^(-2 most/H), ..., 2^-most. Otherwise they are those of the
    next smaller power of two, followed by every second slope of the next larger one.

    >>> [round(math.log2(m), 6) for m in slopes(12)]
    [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -0.5, -1.5, -2.5, -3.5]
    """
    below = 2 ** math.floor(math.log2(heads))
    regular = [2.0 ** (-most * (n + 1) / below) for n in range(below)]
    between = [2.0 ** (-most * (n + 1) / (2 * below)) for n in range(0, 2 * below, 2)]
    return regular + between[: heads - below]


@register("alibi", paper="arXiv:2108.12409", family="bias")
class ALiBi(Encoding):
    """s_ij -= m_h (i - j): a penalty linear in the distance, its slope m_h geometric in the head.

    The smallest slope is 2^-`most` (MPT's alibi_bias_max). `scale` multiplies all slopes: a trained model can be
    evaluated with other slopes (`--as 'alibi(scale=0.25)'`). `far` multiplies them so that the smallest is `scale` /
    `far`: at this distance, 2^most unless given, its head subtracts `scale`. With `before_scale` the penalty is
    subtracted before q_i . k_j is divided by sqrt(D), as in Falcon, so that slopes are m_h / sqrt(D). (transformers
    computes Falcon's m_h j in bfloat16: its scores differ by up to 3/256 of m_h j / sqrt(D), unless all slopes are
    powers of two and j is at most 256.)
    """

    shared = True
    proportions: ClassVar = {"far": 256 / 1024}  # the authors' largest model was trained on 1024 tokens
    slope: Tensor

    def __init__(
        self,
        shape: Shape,
        *,
        trainable: bool = False,
        most: float = 8.0,
        scale: float = 1.0,
        before_scale: bool = False,
        far: Length[float] | None = None,
    ) -> None:
        super().__init__(shape)
        above(0, most=most, scale=scale, far=far)
        self.factor = scale * (self.scale if before_scale else 1.0) * (1.0 if far is None else 2**most / far)
        slope = torch.tensor(slopes(shape.heads, most))
        if trainable:
            self.slope = nn.Parameter(slope)
        else:
            self.register_buffer("slope", slope, persistent=False)

    def distance_bias(self, d: Tensor) -> Tensor:
        return -(self.factor * self.slope)[:, None] * d
