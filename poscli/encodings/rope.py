"""Rotary position embedding (Su et al., 2021)."""

from typing import Literal, TypedDict

import torch
from torch import Tensor

from poscli.encodings import Encoding, Shape, above, register

Layout = Literal["half", "interleaved"]


class Rotary(TypedDict, total=False):
    """The options of `RoPE`, which a variant takes as `**rotary` and passes on."""

    base: float
    layout: Layout
    fraction: float


@register("rope", paper="arXiv:2104.09864", family="rotary")
class RoPE(Encoding):
    """Pair m of q_i and k_j is rotated by i theta_m and j theta_m, theta_m = base^(-2m/D): scores see only i - j.

    `layout` says which channels are pair m: (m, m + D/2) for `half` (Llama, GPT-NeoX), (2m, 2m + 1) for `interleaved`
    (the paper, GPT-J). The two layouts differ by a permutation of the channels. `fraction` rotates the first fraction
    of the channels only (GPT-NeoX: 0.25).
    """

    steady_keys = True

    def __init__(self, shape: Shape, *, base: float = 10000.0, layout: Layout = "half", fraction: float = 1.0) -> None:
        super().__init__(shape)
        above(1, base=base)
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {fraction:g}")
        self.width = int(shape.head_width * fraction)
        if self.width % 2 or self.width == 0:
            raise ValueError(f"rotations need an even number of channels per head, got {self.width}")
        self.base, self.layout = base, layout

    def theta(self, pos: Tensor) -> Tensor:
        """Angle per position of each pair, `[pairs]` in float64; the current length is `pos[-1] + 1`."""
        return self.base ** -self.exponents(pos.device)

    def exponents(self, device: torch.device) -> Tensor:
        """2m/D of each pair, `[pairs]` in float64."""
        return torch.arange(0, self.width, 2, device=device, dtype=torch.float64) / self.width

    def amplitude(self, pos: Tensor) -> Tensor | float:
        """The factor on cos and sin, a number or `[T, 1]`; variants that sharpen attention override it."""
        return 1.0

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.rotate(q_BHTD, self.angles(pos), self.amplitude(pos))

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self.rotate(k_BHSD, self.angles(pos), self.amplitude(pos))

    def angles(self, pos: Tensor) -> Tensor:
        """The angles i theta_m, `[T, pairs]`, in float64: at position 16384 a float32 angle would be off by 0.0005."""
        return pos[:, None].double() * self.theta(pos)

    def rotate(self, x: Tensor, angle: Tensor, amplitude: Tensor | float = 1.0) -> Tensor:
        """Rotate the pairs of `x [..., T, D]` by `angle [T, pairs]`; channels beyond the fraction are unchanged."""
        cos, sin = (amplitude * angle.cos()).to(x.dtype), (amplitude * angle.sin()).to(x.dtype)
        if self.layout == "half":
            a, b = x[..., : self.width].chunk(2, dim=-1)
            rotated = [a * cos - b * sin, b * cos + a * sin]
        else:
            a, b = x[..., 0 : self.width : 2], x[..., 1 : self.width : 2]
            rotated = [torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)]
        return torch.cat([*rotated, x[..., self.width :]], dim=-1)
