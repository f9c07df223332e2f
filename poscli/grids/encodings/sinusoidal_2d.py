"""Sinusoids of rows and columns on the embedding (Carion et al., 2020, DETR)."""

import torch
from torch import Tensor

from poscli.encodings import Encoding, Shape, above, register


@register("sinusoidal-2d", paper="arXiv:2005.12872", family="grid")
class Sinusoidal2D(Encoding):
    """x_(r,c) + [P_r; P_c], P[k, 2m] = sin(k / base^(2m/V)) and P[k, 2m+1] = cos(k / base^(2m/V)) with V = W/2.

    The first half of the channels encodes the row, the second half the column, as in DETR without its option to scale
    positions to the size of the image. DETR counts rows and columns from 1, here they count from 0: a fixed rotation of
    each pair of channels.
    """

    axes = 2
    shared = True
    relative = False

    def __init__(self, shape: Shape, *, base: float = 10000.0) -> None:
        super().__init__(shape)
        above(1, base=base)
        if shape.width % 4:
            raise ValueError(f"each half of the width needs pairs of channels, so 4 must divide it; got {shape.width}")
        self.base = base

    def table(self, pos: Tensor) -> Tensor:
        """[P_r; P_c] for positions `[T, 2]`: `[T, W]` in float64."""
        half = self.shape.width // 2
        m = torch.arange(0, half, 2, device=pos.device, dtype=torch.float64) / half
        angle = pos[..., None] * self.base**-m  # [T, 2, V/2]
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + self.table(pos).to(x_BTW.dtype)
