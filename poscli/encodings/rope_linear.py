"""Position interpolation (Chen et al., 2023), and the factor that its successors share."""

from typing import Unpack

from torch import Tensor, float64

from poscli.encodings import Length, Shape, at_least, register
from poscli.encodings.rope import RoPE, Rotary


class Scaled(Rotary, total=False):
    """The options of `RoPELinear` but `factor`, which a variant takes as `**rotary` and passes on."""

    original: Length[int] | None


@register("rope-linear", paper="arXiv:2306.15595", family="rotary")
class RoPELinear(RoPE):
    """Rope at positions i / s, s = L'/L: a text of L' tokens is squeezed into the L positions of training.

    `factor` is s. If it is not given, s is the current length divided by L, and at least 1: up to the training length
    the encoding is rope, and beyond it all rotations change as the text grows. `original` is L, if it is not the length
    of this model's training windows but of an earlier training, before the model was trained on longer texts.
    """

    steady_keys = True
    after = ("rope",)
    facts = ("factor = 1 is rope",)

    def __init__(
        self,
        shape: Shape,
        *,
        factor: float | None = None,
        original: Length[int] | None = None,
        **rotary: Unpack[Rotary],
    ) -> None:
        super().__init__(shape, **rotary)
        at_least(1, factor=factor)
        if original is not None and original < 2:
            raise ValueError(f"original must be at least 2 tokens, got {original}")
        self.factor, self.rescales = factor, factor is None
        self.original = shape.length if original is None else original

    def s(self, pos: Tensor) -> Tensor:
        """The factor s, at least 1: `[]` in float64."""
        if self.factor is not None:
            return pos.new_full((), self.factor, dtype=float64)
        return ((pos[-1].double() + 1) / self.original).clamp(min=1)

    def theta(self, pos: Tensor) -> Tensor:
        return super().theta(pos) / self.s(pos)
