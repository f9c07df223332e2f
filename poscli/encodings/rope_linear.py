"""Position interpolation (Chen et al., 2023), and the factor that its successors share."""

from typing import Unpack

from torch import Tensor, float64

from poscli.encodings.registry import register
from poscli.encodings.rope import RoPE, Rotary
from poscli.equation import Shape


@register("rope-linear", paper="arXiv:2306.15595", family="rotary")
class RoPELinear(RoPE):
    """Rope at positions i / s, s = L'/L: a text of L' tokens is squeezed into the L positions of training.

    `factor` is s. If it is not given, s is the current length divided by L, and at least 1: up to the training length
    the encoding is rope, and beyond it all rotations change as the text grows.
    """

    after = ("rope",)
    facts = ("factor = 1 is rope",)

    def __init__(self, shape: Shape, *, factor: float | None = None, **rotary: Unpack[Rotary]) -> None:
        super().__init__(shape, **rotary)
        if factor is not None and factor < 1:
            raise ValueError(f"factor must be at least 1, got {factor:g}")
        self.factor, self.rescales = factor, factor is None

    def s(self, pos: Tensor) -> Tensor:
        """The factor s, at least 1: `[]` in float64."""
        if self.factor is not None:
            return pos.new_full((), self.factor, dtype=float64)
        return ((pos[-1].double() + 1) / self.shape.length).clamp(min=1)

    def theta(self, pos: Tensor) -> Tensor:
        return super().theta(pos) / self.s(pos)
