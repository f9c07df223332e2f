"""Llama 3.1's scaled rope (Grattafiori et al., 2024)."""

import math
from typing import Unpack

from torch import Tensor

from poscli.encodings import Shape, register
from poscli.encodings.rope import RoPE
from poscli.encodings.rope_linear import RoPELinear, Scaled


@register("llama3", paper="arXiv:2407.21783", family="rotary")
class Llama3(RoPELinear):
    """Rope with theta_m for wavelengths 2 pi / theta_m below L / `high`, theta_m / s above L / `low`, a blend between.

    The blend is linear in L divided by the wavelength. The formula is that of the released code; L is the training
    length, or `original` (8192 in Llama 3.1). `factor` is s (8 in Llama 3.1); if it is not given, s follows the current
    length.
    """

    steady_keys = True
    facts = ("is yarn(beta_slow=low, beta_fast=high, ramp=turns) without its temperature",)

    def __init__(
        self,
        shape: Shape,
        *,
        factor: float | None = None,
        low: float = 1.0,
        high: float = 4.0,
        **rotary: Unpack[Scaled],
    ) -> None:
        super().__init__(shape, factor=factor, **rotary)
        if not 0 < low < high:
            raise ValueError(f"needs 0 < low < high, got {low:g} and {high:g}")
        self.low, self.high = low, high

    def theta(self, pos: Tensor) -> Tensor:
        theta = RoPE.theta(self, pos)
        wavelength = 2 * math.pi / theta
        smooth = ((self.original / wavelength - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - smooth) * theta / self.s(pos) + smooth * theta
