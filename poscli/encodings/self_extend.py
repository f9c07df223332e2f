"""Self-Extend: grouped positions beyond a neighbour window (Jin et al., 2024)."""

from itertools import count
from typing import Unpack

from torch import Tensor

from poscli.encodings import Length, Shape, at_least, register
from poscli.encodings.remapped import NearAndFar
from poscli.encodings.rope import Rotary


@register("self-extend", paper="arXiv:2401.01325", family="rotary")
class SelfExtend(NearAndFar):
    """Rope at distance i - j below w_n, and at floor(i/G) - floor(j/G) + w_n - floor(w_n/G) from there on.

    w_n is `window`, half of the training length L unless given; the authors' example sets it to 1024 where L is 4096,
    with groups of 32. G is `group`. Without a `group` it is the smallest G that keeps every distance of the current
    length below L, so that no angle is new. The authors' code has w_n/G without a floor, but for decoding with
    flash_attn; the paper has the floor, and so has this class.
    """

    facts = ("self-extend(group=1) is rope",)

    def __init__(
        self, shape: Shape, *, window: Length[int] | None = None, group: int | None = None, **rotary: Unpack[Rotary]
    ) -> None:
        super().__init__(shape, **rotary)
        self.window = window = shape.length // 2 if window is None else window
        at_least(1, window=window, group=group)
        if group is None and window >= shape.length:
            raise ValueError(f"window must be below the training length {shape.length}, got {window}; or give a group")
        self.group, self.rescales = group, group is None
        self.relative = group == 1  # groups are counted from the start of a text

    def size(self, pos: Tensor) -> int:
        """G for an input that ends at the last of the positions."""
        if self.group is not None:
            return self.group
        last, w, length = int(pos[-1]), self.window, self.shape.length
        return next(g for g in count(1) if last // g + w - w // g < length)

    def far_queries(self, pos: Tensor) -> Tensor:
        g = self.size(pos)
        return pos.div(g, rounding_mode="floor") + self.window - self.window // g

    def far_keys(self, pos: Tensor) -> Tensor:
        return pos.div(self.size(pos), rounding_mode="floor")
