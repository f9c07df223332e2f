"""Attention with linear biases on a grid (Press et al., 2021; Fuller et al., 2023, CROMA)."""

from typing import Literal

from torch import Tensor

from poscli.encodings import Shape, register
from poscli.encodings.alibi import ALiBi


@register("alibi-2d", paper="arXiv:2108.12409; arXiv:2311.00566", family="grid")
class ALiBi2D(ALiBi):
    """s_ij -= m_h |p_i - p_j|: a penalty linear in the distance of two cells, with ALiBi's slopes m_h.

    `distance` is `euclidean`, as in CROMA, or `manhattan`, the distance of rows plus that of columns.
    """

    axes = 2

    def __init__(
        self, shape: Shape, *, distance: Literal["euclidean", "manhattan"] = "euclidean", trainable: bool = False
    ) -> None:
        super().__init__(shape, trainable=trainable)
        self.distance = distance

    def distance_bias(self, d: Tensor) -> Tensor:
        d = d.to(self.slope.dtype)
        return super().distance_bias(d.square().sum(-1).sqrt() if self.distance == "euclidean" else d.abs().sum(-1))
