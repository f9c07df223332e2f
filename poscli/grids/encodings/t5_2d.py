"""T5's relative position buckets for rows and columns (Raffel et al., 2019; Xu et al., 2020, LayoutLMv2)."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, register
from poscli.encodings.t5 import bucket
from poscli.equation.operands import grid_shape


@register("t5-2d", paper="arXiv:1910.10683; arXiv:2012.14740", family="grid")
class T52D(Encoding):
    """s_ij += rows[h, bucket(r_i - r_j)] + columns[h, bucket(c_i - c_j)], two learned tables for all layers.

    Rows have T5's causal buckets. Columns have its bidirectional ones: half of them for keys on the left, half for keys
    on the right. Distances from `far` on share a bucket; by default `far` is the width of the training grid, so that
    every bucket is trained. Tables start at zero.
    """

    axes = 2
    shared = True

    def __init__(self, shape: Shape, *, buckets: int = 16, far: int | None = None) -> None:
        super().__init__(shape)
        far = max(grid_shape(shape.length)[1], buckets // 2 + 1) if far is None else far
        if buckets < 4 or buckets % 2 or far <= buckets // 2:
            raise ValueError(f"needs even buckets >= 4 and far > buckets / 2, got buckets={buckets}, far={far}")
        self.buckets, self.far = buckets, far
        self.rows, self.columns = (nn.Parameter(torch.zeros(shape.heads, buckets)) for _ in range(2))

    def distance_bias(self, d: Tensor) -> Tensor:
        down, right = d.unbind(-1)
        half = self.buckets // 2
        side = bucket(right.abs(), half, self.far) + half * (right < 0)
        return self.rows[:, bucket(down, self.buckets, self.far)] + self.columns[:, side]
