"""A learned table of n rows for n^2 positions: each position is split into two rows (Su Jianlin, 2020)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, Unsupported, register


def decompose(p: Tensor, k: Tensor, alpha: float) -> Tensor:
    """Rows q `[T, W]` for whole positions `[T]`, from a table p `[n, W]`; Unsupported from n^2 on."""
    n = len(p)
    if (last := int(k[-1])) >= n**2:
        raise Unsupported(f"{n} rows reach {n**2} positions, not position {last}; use learned(beyond=interpolate)")
    i, j = p[k // n], p[k % n]
    return j + alpha / (1 - alpha) * (i - p[0])  # a u_i + (1-a) u_j, in an order that returns p_j exactly for i = 1


def between(rows: Callable[[Tensor], Tensor], pos: Tensor) -> Tensor:
    """Rows `[T, W]` at positions `[T]`, interpolated linearly between whole positions."""
    if not pos.is_floating_point():
        return rows(pos)
    low, high = rows(pos.floor().long()), rows(pos.ceil().long())
    return low + (pos - pos.floor())[:, None].to(low.dtype) * (high - low)


@register("hierarchical", paper="Su Jianlin, 2020 (kexue.fm/archives/7947)", family="absolute")
class Hierarchical(Encoding):
    """x_k + q_k, q_{(i-1)n+j} = a u_i + (1-a) u_j, u_i = (p_i - a p_1) / (1-a): p is a learned table of n = L rows.

    This equals p_j + a/(1-a) (p_i - p_1): the first n positions use the table itself, and n^2 positions need no new
    weights. `alpha` (a) lies between 0 and 1. At 0 the rows repeat, and at 0.5 positions (i, j) and (j, i) are equal.
    Rows of positions between whole numbers are interpolated.
    """

    shared = True
    relative = False
    after = ("learned",)
    facts = ("up to the training length it is learned",)

    def __init__(self, shape: Shape, *, alpha: float = 0.4) -> None:
        super().__init__(shape)
        if not 0 < alpha < 1 or alpha == 0.5:
            raise ValueError(f"alpha must lie between 0 and 1 and not be 0.5, got {alpha:g}")
        self.alpha = alpha
        self.table = nn.Parameter(torch.randn(shape.length, shape.width))

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + between(lambda k: decompose(self.table, k, self.alpha), pos).to(x_BTW.dtype)
