"""RoPE-ID: half of the channels turn, and fast enough to stay in distribution (Wertheimer et al., 2026)."""

import math

import torch
from torch import Tensor

from poscli.encodings import Length, Shape, above, register
from poscli.encodings.rope import Layout, RoPE


@register("rope-id", paper="arXiv:2603.18017 (known second hand)", family="rotary")
class RoPEID(RoPE):
    """Rope on half of the pairs, theta_m from 2 pi / 32 down to 4 pi / L, and scores times (1 + 0.1 ln max(1, n/L))^2.

    The pairs that turn complete at least two turns within the training length L, so that longer texts show no new
    angles; the others see content only, which keeps queries and keys apart at any length. `p` is the share of the pairs
    that turn, the first ones. `fast` is the number of tokens per turn of the fastest pair, `turns` the number of turns
    within L of the slowest; between them theta is spaced as in rope. Where L / turns is below `fast`, all of them turn
    at that speed. n is the number of keys that query i sees, and `c` the 0.1 of the temperature, which multiplies every
    term of the scores; 0 leaves it out. L is the training length unless `length` is given. The paper is known from its
    abstract, its reviews and an account of it, which state the two ends of theta, and that the temperature follows
    YaRN: the spacing of theta, the square of the factor, as in YaRN, and one n per query are assumptions.
    """

    steady_keys = True
    facts = ("rope-id(p=0, c=0) is none",)

    def __init__(
        self,
        shape: Shape,
        *,
        p: float = 0.5,
        fast: Length[float] = 32.0,
        turns: float = 2.0,
        c: float = 0.1,
        length: Length[int] | None = None,
        layout: Layout = "half",
    ) -> None:
        super().__init__(shape, layout=layout)
        if not 0 <= p <= 1:
            raise ValueError(f"p must be between 0 and 1, got {p:g}")
        self.length = shape.length if length is None else length
        above(0, fast=fast, turns=turns, length=self.length)
        if c < 0:
            raise ValueError(f"c cannot be negative, got {c:g}")
        self.p, self.fast, self.turns, self.c = p, fast, turns, c
        if c == 0:
            self.leave("temperature")

    def theta(self, pos: Tensor) -> Tensor:
        pairs, slowest = self.width // 2, 2 * math.pi * self.turns / self.length
        fastest = max(2 * math.pi / self.fast, slowest)
        down = torch.linspace(0, 1, math.ceil(self.p * pairs), dtype=torch.float64, device=pos.device)
        turning = fastest ** (1 - down) * slowest**down
        return torch.cat([turning, turning.new_zeros(pairs - len(turning))])

    def temperature(self, n: Tensor) -> Tensor:
        return (1 + self.c * (n.double() / self.length).clamp(min=1).log())[None] ** 2
