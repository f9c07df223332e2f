"""CoPE, clipped rope: the lowest frequencies fade out (Li et al., 2026)."""

import math
from typing import Unpack

import torch
from torch import Tensor

from poscli.encodings import Shape, register
from poscli.encodings.rope import RoPE, Rotary


@register("rope-clip", paper="arXiv:2602.05258", family="rotary")
class RoPEClip(RoPE):
    """Rope with w_m theta_m: w_m = (1 + cos(pi k / (n - 1))) / 2 for the last n pairs, k = 0 .. n - 1, else w_m = 1.

    The slowest pair does not turn any more, and the one where clipping sets in turns as before. n is `clip`; if it is
    not given, all pairs are clipped whose period 2 pi / theta_m exceeds the training length L, because longer texts
    turn them to angles that training never showed. For Llama 3 these are the last 29 of 64, and the authors prefer 20.
    The paper writes w as a function of theta; in the authors' code, and here, it is one of the pair's number. (`p-rope`
    is the hard clipping that the paper compares with.)
    """

    after = ("rope",)
    facts = ("clip = 0 and clip = 1 are rope", "clip = 2 stops the slowest pair, as p-rope does")

    def __init__(self, shape: Shape, *, clip: int | None = None, **rotary: Unpack[Rotary]) -> None:
        super().__init__(shape, **rotary)
        if clip is not None and not 0 <= clip <= self.width // 2:
            raise ValueError(f"clip must be between 0 and the {self.width // 2} pairs that rotate, got {clip}")
        self.clip = clip

    def theta(self, pos: Tensor) -> Tensor:
        theta = super().theta(pos)
        n = int((2 * math.pi / theta > self.shape.length).sum()) if self.clip is None else self.clip
        w = (1 + torch.linspace(0, math.pi, n, dtype=theta.dtype, device=theta.device).cos()) / 2
        return torch.cat([theta[: len(theta) - n], w * theta[len(theta) - n :]])
