"""Relative position representations (Shaw et al., 2018)."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Length, Shape, at_least, register


@register("shaw", paper="arXiv:1803.02155", family="relative")
class Shaw(Encoding):
    """s_ij = q_i . (k_j + a_K[min(i-j, clip)]) / sqrt(D),  o_i = sum_j p_ij (v_j + a_V[min(i-j, clip)]).

    One vector of width D per distance is learned per layer and shared by its heads; the paper's base model, whose clip
    this is, has them per head, and its big model as here. `values=False` leaves a_V out, which costs nothing in the
    paper's own ablation. Vectors start at zero.
    """

    def __init__(self, shape: Shape, *, clip: Length[int] = 16, values: bool = True) -> None:
        super().__init__(shape)
        at_least(1, clip=clip)
        self.clip = clip
        self.a_k = nn.Parameter(torch.zeros(clip + 1, shape.head_width))
        if values:
            self.a_v = nn.Parameter(torch.zeros(clip + 1, shape.head_width))
        else:
            self.leave("relative_values")

    def relative_keys(self, d: Tensor) -> Tensor:
        return self.a_k[d.clamp(max=self.clip).long()][None]

    def relative_values(self, d: Tensor) -> Tensor:
        return self.a_v[d.clamp(max=self.clip).long()][None]
