"""Rotary position embedding (Su et al., 2021)."""

from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from poscli.encodings.base import Encoding, Shape
from poscli.encodings.registry import register

Layout = Literal["half", "interleaved"]


@register("rope", paper="arXiv:2104.09864", family="rotary")
class RoPE(Encoding):
    """Pair m of q_i and k_j is rotated by i theta_m and j theta_m, theta_m = base^(-2m/D): scores see only i - j.

    `layout`: pair m is channels (m, m + D/2) in `half` (Llama, GPT-NeoX), (2m, 2m + 1) in `interleaved` (the
    paper, GPT-J); they are one permutation of the channels apart. `fraction` rotates the first fraction of
    the channels only (GPT-NeoX: 0.25).
    """

    def __init__(self, shape: Shape, *, base: float = 10000.0, layout: Layout = "half", fraction: float = 1.0) -> None:
        super().__init__(shape)
        if base <= 1:
            raise ValueError(f"base must be above 1, got {base:g}")
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {fraction:g}")
        self.width = int(shape.head_width * fraction)
        if self.width % 2 or self.width == 0:
            raise ValueError(f"rotations need an even number of channels per head, got {self.width}")
        self.base, self.layout = base, layout

    def theta(self, pos: Tensor) -> Tensor:
        """Angle per position of each pair, `[pairs]` in float64; `pos[-1] + 1` is the current length."""
        return self.base ** -self.exponents(pos.device)

    def exponents(self, device: torch.device) -> Tensor:
        """2m/D of each pair, `[pairs]` in float64."""
        return torch.arange(0, self.width, 2, device=device, dtype=torch.float64) / self.width

    def amplitude(self, pos: Tensor) -> Tensor | float:
        """What cos and sin are multiplied by, a number or `[T, 1]`: 1, unless a variant sharpens attention with it."""
        return 1.0

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.rotate(q_BHTD, self.angles(pos), self.amplitude(pos))

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self.rotate(k_BHSD, self.angles(pos), self.amplitude(pos))

    def angles(self, pos: Tensor) -> Tensor:
        """I theta_m, `[T, pairs]`, in float64: at position 16384 a float32 angle would be off by 0.0005."""
        return pos[:, None].double() * self.theta(pos)

    def rotate(self, x: Tensor, angle: Tensor, amplitude: Tensor | float = 1.0) -> Tensor:
        """Rotate the pairs of `x [..., T, D]` by `angle [T, pairs]`; channels beyond the fraction pass."""
        cos, sin = amplitude * angle.cos(), amplitude * angle.sin()
        if _in_one_kernel(x, cos):
            from poscli.attention.kernels.rotary import rotate

            return rotate(x, cos.float(), sin.float(), self.layout)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        if self.layout == "half":
            a, b = x[..., : self.width].chunk(2, dim=-1)
            turned = [a * cos - b * sin, b * cos + a * sin]
        else:
            a, b = x[..., 0 : self.width : 2], x[..., 1 : self.width : 2]
            turned = [torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)]
        return torch.cat([*turned, x[..., self.width :]], dim=-1)


def _in_one_kernel(x: Tensor, cos: Tensor) -> bool:
    """Does the fused kernel take this? It learns no angles."""
    fits = x.is_cuda and x.ndim == 4 and cos.ndim == 2 and x.dtype != torch.float64
    return fits and not cos.requires_grad and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
