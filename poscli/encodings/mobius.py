"""Moebius RoPE: some heads have anti-periodic frequencies (Bae, 2026)."""

import math
from typing import Unpack

import torch
from torch import Tensor

from poscli.encodings import Length, Shape, at_least, register
from poscli.encodings.rope import RoPE, Rotary


@register("mobius", paper="arXiv:2607.21405 (known second hand)", family="rotary")
class Mobius(RoPE):
    """Rope, with theta_m = pi (2m + 1) / N in a quarter of the heads, N = L: N tokens turn each of their pairs by -1.

    In these heads the two ends of a training window, N tokens apart, meet with the opposite sign, R(N) = -I, and the
    angles repeat after 2 N, so that scores beyond L see no distance that training did not show, up to the sign. The
    other heads are rope's. `share` is the share of the heads, rounded up, and they are the first ones; N is the
    training length L unless `length` is given. The paper is known from its abstract and from two accounts of it, which
    state the formula and the quarter of the heads; which heads of which layers they are could not be checked.
    """

    steady_keys = True
    facts = ("mobius(share=0) is rope", "mobius(share=1) repeats after 2 L tokens")

    def __init__(
        self, shape: Shape, *, share: float = 0.25, length: Length[int] | None = None, **rotary: Unpack[Rotary]
    ) -> None:
        super().__init__(shape, **rotary)
        if not 0 <= share <= 1:
            raise ValueError(f"share must be between 0 and 1, got {share:g}")
        self.twisted = math.ceil(round(share * shape.heads, 6))  # rounded: 0.7 * 10 is a little more than 7
        self.n = shape.length if length is None else length
        at_least(1, length=self.n)

    def theta(self, pos: Tensor) -> Tensor:
        """The frequencies of every head, `[H, 1, pairs]` in float64."""
        rope = super().theta(pos)
        m = torch.arange(len(rope), dtype=rope.dtype, device=rope.device)
        anti_periodic = math.pi * (2 * m + 1) / self.n
        return torch.stack([anti_periodic] * self.twisted + [rope] * (self.shape.heads - self.twisted))[:, None]
