"""A polynomial of the distance as a bias."""

import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape, at_least, register


@register("polynomial", paper="no paper, a bias designed by hand", family="bias")
class Polynomial(Encoding):
    """s_ij += sum_{n=1}^{degree} a_n x^n, x = min(i - j, L) / L, the a_n learned per head.

    Past the training length L it stays at its value at L, because a polynomial fitted up to L means nothing beyond. It
    starts as a linear penalty that reaches -16 h/H at L, h = 1, ..., H. The softmax would cancel a term a_0.
    """

    facts = ("degree=1 is alibi(trainable=true) as far as L",)

    def __init__(self, shape: Shape, *, degree: int = 3) -> None:
        super().__init__(shape)
        at_least(1, degree=degree)
        a = torch.zeros(degree, shape.heads)
        a[0] = -16 * torch.arange(1, shape.heads + 1) / shape.heads
        self.a = nn.Parameter(a)

    def distance_bias(self, d: Tensor) -> Tensor:
        x = (d.clamp(max=self.shape.length).double() / self.shape.length).to(self.a.dtype)
        bias = torch.zeros_like(x)
        for a_n in self.a.flip(0):  # Horner's rule
            bias = (bias + a_n[:, None]) * x
        return bias
