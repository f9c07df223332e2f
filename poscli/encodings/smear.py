"""Smeared tokens, for any encoding: the Canon layer before attention (Allen-Zhu, 2025)."""

from typing import Any

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, at_least, register


@register("smear", paper="arXiv:2512.17351", family="wrapper")
class Smear(Encoding):
    """x_i <- x_i + sum_{k<n} w_k x_{i-k}, w_k learned per channel: each token shows what the last n tokens are.

    x is the layer's input after the norm, which q, k, v and features are projected from. This is Canon-A of the
    authors' code, which was read: n is 4 (`tokens`), there is no activation, and w is drawn uniformly from
    +-1/sqrt(n). Their layers B, C and D, after the projections and in the MLP, are left out. `smear` alone knows the
    order of near tokens and no more, so `smear` beside another encoding shows how much of that encoding's gain is order
    among neighbours.
    """

    facts = ("with w = 0, none",)

    def __init__(self, shape: Shape, *, tokens: int = 4) -> None:
        super().__init__(shape)
        at_least(1, tokens=tokens)
        self.mixed_tokens = tokens
        self.w = nn.Parameter(torch.empty(tokens, shape.width).uniform_(-1, 1) * tokens**-0.5)

    def mix(self, x_BTW: Tensor) -> Tensor:
        mixed: Tensor = Mixture.apply(x_BTW, self.w.to(x_BTW.dtype))
        return mixed


class Mixture(torch.autograd.Function):
    """x_i + sum_{k<n} w_k x_{i-k}, with a backward pass that takes a third of the time of autograd's."""

    @staticmethod
    def forward(ctx: Any, x_BTW: Tensor, w_NW: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTW, w_NW)
        y_BTW = x_BTW * (1 + w_NW[0])
        for k, w_W in enumerate(w_NW[1 : x_BTW.shape[1]], start=1):
            y_BTW[:, k:].addcmul_(x_BTW[:, :-k], w_W)
        return y_BTW

    @staticmethod
    def backward(ctx: Any, grad_BTW: Tensor) -> tuple[Tensor, Tensor]:
        x_BTW, w_NW = ctx.saved_tensors
        of_x, of_w, count = grad_BTW * (1 + w_NW[0]), torch.zeros_like(w_NW), x_BTW.shape[1]
        for k, w_W in enumerate(w_NW[:count]):
            if k:
                of_x[:, :-k].addcmul_(grad_BTW[:, k:], w_W)
            of_w[k] = (grad_BTW[:, k:] * x_BTW[:, : count - k]).sum((0, 1))
        return of_x, of_w
