"""Rope without its slowest frequencies (Barbero et al., 2024)."""

from typing import Unpack

from torch import Tensor

from poscli.encodings import Shape, at_least, register
from poscli.encodings.rope import RoPE, Rotary


@register("p-rope", paper="arXiv:2410.06205", family="rotary")
class PRoPE(RoPE):
    """Rope with theta_m = base^(-2m/D) for the first floor(p D/2) pairs, 0 for the others: those see content only.

    The exponents still divide by the full D, so the slowest frequencies are removed and the others are those of rope.
    (`fraction`, by contrast, rotates fewer channels by the whole range of frequencies.) `factor` divides all angles, as
    in rope-linear.
    """

    steady_keys = True
    after = ("rope",)
    facts = ("p = 1 is rope", "p = 0 is none")

    def __init__(self, shape: Shape, *, p: float = 0.75, factor: float = 1.0, **rotary: Unpack[Rotary]) -> None:
        super().__init__(shape, **rotary)
        if not 0 <= p <= 1:
            raise ValueError(f"p must be between 0 and 1, got {p:g}")
        at_least(1, factor=factor)
        self.p, self.factor = p, factor

    def theta(self, pos: Tensor) -> Tensor:
        theta = super().theta(pos) / self.factor
        theta[int(self.p * self.width // 2) :] = 0
        return theta
