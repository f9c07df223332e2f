"""A learned bias per distance, clipped: Swin's relative position bias (Liu et al., 2021) along a line."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("clipped", paper="arXiv:2103.14030", family="bias")
class Clipped(Encoding):
    """s_ij += table[h, min(i - j, clip)]: one learned number per head for each of the nearest distances.

    Distances beyond `clip` share the last number. Swin's windows are so small that it needs no clipping. The table
    starts at zero; Swin starts it at random, with a standard deviation of 0.02.
    """

    def __init__(self, shape: Shape, *, clip: Length[int] = 16) -> None:
        super().__init__(shape)
        at_least(1, clip=clip)
        self.clip = clip
        self.table = nn.Parameter(torch.zeros(shape.heads, clip + 1))

    def distance_bias(self, d: Tensor) -> Tensor:
        return self.table[:, d.clamp(max=self.clip).long()]
