"""STRING: far keys are seen at nearer distances, which training has shown more often (An et al., 2024)."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from poscli.encodings import Length, Shape, at_least, register
from poscli.encodings.remapped import NearAndFar
from poscli.encodings.rope import Rotary


@register("string", paper="arXiv:2410.18745", family="rotary")
class STRING(NearAndFar):
    """Rope at distance i - j below S, and at i - j - S + W from there on.

    S is `shift`, a third of the training length L unless given; the paper suggests L/7 to L/2. W, `local`, keeps the
    keys beyond S from being taken for the nearest ones. The paper sets it to 128 and asks for 32 or more and much less
    than S; unless given it is 128, and at most S/4. No distance is new up to L + S - W tokens, so that a model reads at
    most 2 L - W tokens without new distances, by S = L. The authors' code also multiplies cos and sin by 0.1 ln 2 + 1,
    which the paper does not mention and this class leaves out. Run beside this class, their code counts the key at
    distance S twice where it reads a whole text, and once where it decodes, as here.
    """

    facts = ("local = shift is rope", "string(shift=N) is rope on inputs of up to N tokens")

    def __init__(
        self,
        shape: Shape,
        *,
        shift: Length[int] | None = None,
        local: Length[int] | None = None,
        **rotary: Unpack[Rotary],
    ) -> None:
        super().__init__(shape, **rotary)
        self.window = max(1, shape.length // 3) if shift is None else shift
        at_least(1, shift=shift)
        self.local = min(128, self.window // 4) if local is None else local
        if not 0 <= self.local <= self.window:
            raise ValueError(f"local must be between 0 and the shift {self.window}, got {local}")

    def far_queries(self, pos: Tensor) -> Tensor:
        return pos - self.window + self.local

    def far_keys(self, pos: Tensor) -> Tensor:
        return pos
