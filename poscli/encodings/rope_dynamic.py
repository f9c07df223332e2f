"""Dynamic NTK-aware scaled rope (emozilla, 2023)."""

from typing import Unpack

from torch import Tensor

from poscli.encodings import Shape, at_least, register
from poscli.encodings.rope_linear import Scaled
from poscli.encodings.rope_ntk import RoPENTK


@register("rope-dynamic", paper="emozilla, Dynamically Scaled RoPE, 2023", family="rotary")
class RoPEDynamic(RoPENTK):
    """Rope with base' = base (f L'/L - (f-1))^(D/(D-2)) once the current length L' is above the training length L.

    `factor` is f. The output for a token changes as the text after it grows. Keys are cached before their rotation, so
    in decoding one base rotates all of them; but a cached key of a deeper layer was computed when the text was shorter.
    """

    facts = ("factor = 1 is rope-ntk without a factor",)

    def __init__(self, shape: Shape, *, factor: float = 2.0, **rotary: Unpack[Scaled]) -> None:
        super().__init__(shape, **rotary)
        at_least(1, factor=factor)
        self.f = factor

    def s(self, pos: Tensor) -> Tensor:
        return self.f * super().s(pos) - (self.f - 1)
