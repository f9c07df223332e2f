"""A convolution kernel as a bias: one number for each of the smallest distances, 0 beyond."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("convolution", paper="no paper, a bias designed by hand", family="bias")
class Convolution(Encoding):
    """s_ij += kernel[h, i - j] for i - j < width, 0 beyond: a causal kernel per head, learned.

    The kernel starts at zero. Inputs longer than the training windows get no new bias, since it is 0 beyond the kernel.
    """

    facts = ("clipped(clip=width) less its last number, a constant per head that the softmax cancels",)

    def __init__(self, shape: Shape, *, width: Length[int] = 16) -> None:
        super().__init__(shape)
        at_least(1, width=width)
        self.width = width
        self.kernel = nn.Parameter(torch.zeros(shape.heads, width))

    def distance_bias(self, d: Tensor) -> Tensor:
        return F.pad(self.kernel, (0, 1))[:, d.clamp(max=self.width).long()]
