"""Jet-Long: positions in groups whose size follows the length, beyond a near window (Tang et al., 2026)."""

from typing import ClassVar, Unpack

from torch import Tensor

from poscli.encodings import Length, Shape, at_least, register
from poscli.encodings.remapped import NearAndFar
from poscli.encodings.rope import Rotary


@register("jet-long", paper="arXiv:2607.07740", family="rotary")
class JetLong(NearAndFar):
    """Rope at distance i - j up to w_0, and at floor(i/G) - floor(j/G) from there on, G = ceil(L'/L).

    L' is the current length: up to the training length L this is rope, and beyond it no distance is new. w_0 is `near`,
    the authors' 2048 unless given, and at most L/2; they evaluate models with L = 32768. Unlike self-extend's, the
    distances of far keys have no offset, so that keys just beyond w_0 are seen at about w_0/G. So does the authors'
    code, where the softmax is over near and far scores together; a variant there (`jetlong_freq`) scales slow
    frequencies instead of positions. Of the paper itself only the abstract was read.
    """

    facts = ("jet-long is rope on inputs of up to L tokens",)
    relative = False  # groups are counted from the start of a text
    proportions: ClassVar = {"near": 2048 / 32768}

    def __init__(self, shape: Shape, *, near: Length[int] | None = None, **rotary: Unpack[Rotary]) -> None:
        super().__init__(shape, **rotary)
        self.near = near = min(2048, shape.length // 2) if near is None else near
        at_least(0, near=near)
        if near >= shape.length:
            raise ValueError(f"near must be below the training length {shape.length}, got {near}")
        self.window = near + 1  # the first distance that is far
        self.rescales = True

    def grouped(self, pos: Tensor) -> Tensor:
        """floor(i/G), below L, for an input that ends at the last of the positions."""
        g = int(pos[-1]) // self.shape.length + 1
        return pos.div(g, rounding_mode="floor") if g > 1 else pos

    def far_queries(self, pos: Tensor) -> Tensor:
        return self.grouped(pos)

    def far_keys(self, pos: Tensor) -> Tensor:
        return self.grouped(pos)
