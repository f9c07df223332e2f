"""The relative position bias of Swin Transformer (Liu et al., 2021)."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, at_least, register
from poscli.equation.operands import grid_shape


@register("swin-2d", paper="arXiv:2103.14030", family="grid")
class Swin2D(Encoding):
    """s_ij += table[h, r_i - r_j, c_i - c_j], one learned number per head, distance of rows and distance of columns.

    Swin attends within windows of M x M cells, so its table has (2M - 1)^2 numbers per head. Here keys below the query
    are never seen, which leaves M (2M - 1), and distances beyond M - 1, which Swin does not have, are clipped to it.
    `window` (M) is by default the width of the training grid. The table starts at zero.
    """

    axes = 2

    def __init__(self, shape: Shape, *, window: int | None = None) -> None:
        super().__init__(shape)
        at_least(2, window=window)
        self.window = window or max(2, grid_shape(shape.length)[1])
        self.table = nn.Parameter(torch.zeros(shape.heads, self.window, 2 * self.window - 1))

    def distance_bias(self, d: Tensor) -> Tensor:
        most = self.window - 1
        down, right = d.unbind(-1)
        return self.table[:, down.clamp(max=most).long(), right.clamp(-most, most).long() + most]
