"""YaRN: interpolation by parts, and a temperature (Peng et al., 2023)."""

import math
from typing import Literal, Unpack

from torch import Tensor, float64

from poscli.encodings import Shape, above, register
from poscli.encodings.rope import RoPE
from poscli.encodings.rope_linear import RoPELinear, Scaled


@register("yarn", paper="arXiv:2309.00071", family="rotary")
class YaRN(RoPELinear):
    """Rope with theta_m (gamma_m + (1 - gamma_m) / s), s = L'/L, and cos and sin times 0.1 ln s + 1.

    gamma is 1 for pairs that turn more than `beta_fast` times within L, 0 for pairs that turn less than `beta_slow`
    times, and linear in m between, with whole m at both ends, as in the authors' code, or with the exact m if
    `truncate` is false (gpt-oss). In the paper's equation gamma is linear in the number of turns, L theta_m / 2 pi
    (`ramp=turns`), which interpolates more pairs. The factor on cos and sin multiplies queries and keys, so scores grow
    by its square, the paper's 1/t; `attention` replaces it. `factor` is s; if it is not given, s follows the current
    length. L is the training length, or `original`.
    """

    steady_keys = True

    def __init__(
        self,
        shape: Shape,
        *,
        factor: float | None = None,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        ramp: Literal["pairs", "turns"] = "pairs",
        truncate: bool = True,
        attention: float | None = None,
        **rotary: Unpack[Scaled],
    ) -> None:
        super().__init__(shape, factor=factor, **rotary)
        if not 0 < beta_slow < beta_fast:
            raise ValueError(f"needs 0 < beta_slow < beta_fast, got {beta_slow:g} and {beta_fast:g}")
        above(0, attention=attention)
        self.beta_fast, self.beta_slow, self.ramp = beta_fast, beta_slow, ramp
        self.truncate, self.attention = truncate, attention

    def theta(self, pos: Tensor) -> Tensor:
        theta = RoPE.theta(self, pos)
        gamma = self.by_turns(theta) if self.ramp == "turns" else self.by_pairs(theta)
        return theta * (gamma + (1 - gamma) / self.s(pos))

    def by_turns(self, theta: Tensor) -> Tensor:
        turns = self.original * theta / (2 * math.pi)
        return ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)

    def by_pairs(self, theta: Tensor) -> Tensor:
        fast, slow = (
            self.width * math.log(self.original / (2 * math.pi * beta)) / (2 * math.log(self.base))
            for beta in (self.beta_fast, self.beta_slow)
        )  # m of the pair that turns beta times within L
        if self.truncate:
            fast, slow = math.floor(fast), math.ceil(slow)
        first, last = max(fast, 0), min(slow, self.width - 1)
        m = self.exponents(theta.device) * self.width / 2
        return 1 - ((m - first) / max(last - first, 1e-3)).clamp(0, 1)

    def amplitude(self, pos: Tensor) -> Tensor:
        if self.attention is not None:
            return pos.new_full((), self.attention, dtype=float64)
        return 0.1 * self.s(pos).log() + 1
