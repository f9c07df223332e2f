"""Continuous position bias: a small network of the distance (Liu et al., 2021, Swin Transformer V2)."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, at_least, register


@register("cpb", paper="arXiv:2111.09883", family="bias")
class CPB(Encoding):
    """s_ij += MLP_h(log(1 + i - j)), or MLP_h((i - j) / L) with `log=False`: one hidden layer of ReLUs.

    The last layer has no bias, as in the authors' code, because the softmax cancels it. The authors have 512 hidden
    units for two coordinates, and their code squashes the output to (0, 16), beside a cosine attention that is bounded
    too. Here the output is not bounded, as in the paper's formula. Past L it grows linearly in the network's input,
    and therefore slowly if the input is a logarithm.
    """

    def __init__(self, shape: Shape, *, log: bool = True, hidden: int = 32) -> None:
        super().__init__(shape)
        at_least(1, hidden=hidden)
        self.log = log
        self.first, self.last = nn.Linear(1, hidden), nn.Linear(hidden, shape.heads, bias=False)

    def distance_bias(self, d: Tensor) -> Tensor:
        # distances are divided by L, because undivided ones would give biases in the hundreds at the start
        x = torch.log1p(d.double()) if self.log else d.double() / self.shape.length
        return self.last.weight @ torch.relu(self.first(x[:, None].to(self.last.weight.dtype))).T
