"""Sandwich: the inner product of two sinusoidal rows as a bias (Chi et al., 2022)."""

import torch
from torch import Tensor

from poscli.encodings import Encoding, Shape, above, register


@register("sandwich", paper="arXiv:2212.10356", family="bias")
class Sandwich(Encoding):
    """s_ij += (p_i . p_j - D'/2) / (8h/H), p_i . p_j = sum_{m < D'/2} cos((i - j) / base^(2m/D')), h = 1, ..., H.

    Nothing is learned. p_i is a sinusoidal row of `width` D', a hyperparameter of its own (128 for the authors). The
    value D'/2 at distance 0 is subtracted, so that the term is a penalty from 0 on; the softmax cancels this constant.
    """

    shared = True
    facts = ("the inner product of two sinusoidal rows of width D', over 8h/H",)

    def __init__(self, shape: Shape, *, width: int = 128, base: float = 10000.0) -> None:
        super().__init__(shape)
        if width < 2 or width % 2:
            raise ValueError(f"width must be even and at least 2, got {width}")
        above(1, base=base)
        self.width, self.base = width, base

    def distance_bias(self, d: Tensor) -> Tensor:
        m = torch.arange(0, self.width, 2, device=d.device, dtype=torch.float64) / self.width
        common = torch.cos(d[:, None] * self.base**-m).sum(-1) - self.width / 2
        h = torch.arange(1, self.shape.heads + 1, device=d.device, dtype=torch.float64)[:, None]
        return common / (8 * h / self.shape.heads)
