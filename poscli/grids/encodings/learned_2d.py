"""Learned tables of rows and columns on the embedding (Dosovitskiy et al., 2020, appendix D.4)."""

from typing import Literal

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, Unsupported, register
from poscli.encodings.hierarchical import between
from poscli.equation.operands import grid_shape


@register("learned-2d", paper="arXiv:2010.11929", family="grid")
class Learned2D(Encoding):
    """x_(r,c) + [rows[r]; columns[c]]: learned vectors of W/2 numbers for each row and column of the training grid.

    The tables have no entry beyond that grid, and `beyond` says what happens there: `refuse` is an error, `interpolate`
    scales the rows and columns of a larger grid into the tables, as vision transformers do for larger images.
    """

    axes = 2
    shared = True
    relative = False

    def __init__(self, shape: Shape, *, beyond: Literal["refuse", "interpolate"] = "refuse") -> None:
        super().__init__(shape)
        if shape.width % 2:
            raise ValueError(f"half of the channels encode the row, so the width must be even; got {shape.width}")
        self.rescales = beyond == "interpolate"
        rows, columns = grid_shape(shape.length)
        self.rows, self.columns = (nn.Parameter(torch.randn(n, shape.width // 2)) for n in (rows, columns))

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        if self.rescales and pos[0].any():
            what = "the embedding depends on the size of the whole grid, which cached decoding does not know"
            raise Unsupported(f"{what}: use another encoding")
        parts = [self._found(table, k) for table, k in zip((self.rows, self.columns), pos.unbind(-1), strict=True)]
        return x_BTW + torch.cat(parts, dim=-1).to(x_BTW.dtype)

    def _found(self, table: Tensor, k: Tensor) -> Tensor:
        """The vectors `[T, W/2]` of the rows or the columns k `[T]`."""
        last, furthest = len(table) - 1, int(k.max())
        if furthest <= last:
            return between(lambda n: table[n], k)
        if not self.rescales:
            what = f"learned-2d has {len(table)} entries per side; row or column {furthest} has none"
            raise Unsupported(f"{what}: use learned-2d(beyond=interpolate)")
        return between(lambda n: table[n.clamp(max=last)], k.double() * last / furthest)
