"""ReRoPE: rotary distances clipped at a window (Su, 2023)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from poscli.encodings import Length, Shape, at_least, register
from poscli.encodings.remapped import NearAndFar
from poscli.encodings.rope import Rotary


@register("rerope", paper="Su Jianlin, 2023, kexue.fm/archives/9708", family="rotary")
class ReRoPE(NearAndFar):
    """q_i R(min(i-j, w)) k_j in place of q_i R(i-j) k_j: a key farther away than the window is seen at distance w.

    w is `window`, the training length L unless given; the author's patch sets it to 512 where L is 4096. The author's
    patch also multiplies queries by max(1, log n / log L); here that is the encoding `logn`, joined with +.
    """

    facts = ("rerope(window=N) is rope on inputs of up to N + 1 tokens",)

    def __init__(self, shape: Shape, *, window: Length[int] | None = None, **rotary: Unpack[Rotary]) -> None:
        super().__init__(shape, **rotary)
        self.window = shape.length if window is None else window
        at_least(1, window=self.window)

    def far_queries(self, pos: Tensor) -> Tensor:
        return torch.full_like(pos, self.window)

    def far_keys(self, pos: Tensor) -> Tensor:
        return torch.zeros_like(pos)
