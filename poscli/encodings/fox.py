"""The forget gate of the Forgetting Transformer (Lin et al., 2025)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid

from poscli.encodings import Encoding, Shape, register


@register("fox", paper="arXiv:2503.02130", family="content")
class FoX(Encoding):
    """s_ij += sum_{l=j+1..i} log f_l, f_l = sigmoid(w . x_l + b) per head: every token can fade what came before it.

    w starts at 0, so that all tokens start with the same gate, and b at `start`: 5 as in x-transformers, where each
    token keeps 99.3 percent of the weight of what came before it. The authors start at 0, where it keeps half. The sum
    is the difference of two sums from the start of the text, in float64; in float32 it would be off by up to 0.001 at
    16384 tokens.
    """

    feature_width = 1
    facts = ("with w = 0 fox is alibi, its slopes log(1 + e^-b)",)

    def __init__(self, shape: Shape, *, start: float = 5.0) -> None:
        super().__init__(shape)
        self.w = nn.Parameter(torch.zeros(shape.heads, shape.width))
        self.b = nn.Parameter(torch.full((shape.heads,), start))

    def features(self, x_BTW: Tensor) -> Tensor:
        return self.log_gate(linear(x_BTW.to(self.w.dtype), self.w, self.b)).mT[..., None]

    def log_gate(self, y: Tensor) -> Tensor:
        """The logarithm of f for the output y of the projection."""
        return logsigmoid(y)

    def potential(self, f_BHSF: Tensor) -> Tensor:
        return f_BHSF[..., 0].double().cumsum(-1)
