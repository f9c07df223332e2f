"""CABLE, context-aware biases for length extrapolation (Veisi et al., 2025)."""

from torch import Tensor
from torch.nn.functional import softplus

from poscli.encodings import Shape, register
from poscli.encodings.fox import FoX


@register("cable", paper="arXiv:2503.08067", family="content")
class CABLE(FoX):
    """s_ij -= sum_{l=j+1..i} softplus(w . x_l + b) per head: each token sets the distance to everything before it.

    Because -softplus(y) = log sigmoid(-y), this is the gate of `fox` with w and b of opposite sign. The two differ at
    the start, where b is 0 here, a distance of log 2 per token. This is the paper's first version, whose code has no
    factor 1/sqrt(D) on q . k; the factor stays here, as in every other encoding. The later version has relu in place of
    softplus, and multiplies the sum by softplus(w' . x_i), which the query's token sets.
    """

    facts = ("cable is fox with the signs of w and b flipped: cable(start=-5) starts as fox does",)

    def __init__(self, shape: Shape, *, start: float = 0.0) -> None:
        super().__init__(shape, start=start)

    def log_gate(self, y: Tensor) -> Tensor:
        return -softplus(y)
