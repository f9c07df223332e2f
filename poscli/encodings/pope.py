"""PoPE, polar coordinate position embedding (Gopalakrishnan et al., 2025)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from poscli.encodings import Encoding, Shape, above, register


@register("pope", paper="arXiv:2509.10534", family="rotary")
class PoPE(Encoding):
    """sum_c softplus(q_ic) softplus(k_jc) cos((j - i) theta_c + delta_c) in place of q_i . k_j, theta_c = base^(-c/D).

    In each of the D channels the magnitude comes from the content and the phase from the position. The cos and sin
    parts make queries and keys twice as wide; the factor on their product stays 1/sqrt(D). delta in [-2 pi, 0] is
    learned per head and channel. It starts at 0, which the paper finds to extrapolate best, or is drawn uniformly
    (`start=uniform`).
    """

    steady_keys = True

    def __init__(self, shape: Shape, *, base: float = 10000.0, start: Literal["zero", "uniform"] = "zero") -> None:
        super().__init__(shape)
        above(1, base=base)
        self.base = base
        size = (shape.heads, 1, shape.head_width)
        self.delta = nn.Parameter(torch.zeros(size) if start == "zero" else -2 * math.pi * torch.rand(size))

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.polar(q_BHTD, self.phases(pos))

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self.polar(k_BHSD, self.phases(pos) + self.delta.double().clamp(-2 * math.pi, 0))

    def phases(self, pos: Tensor) -> Tensor:
        """The phases i theta_c, `[T, D]` in float64."""
        c = torch.arange(self.shape.head_width, device=pos.device, dtype=torch.float64)
        return pos[:, None] * self.base ** (-c / self.shape.head_width)

    def polar(self, x: Tensor, phase: Tensor) -> Tensor:
        """The cos and sin parts of the D channels, and channels that another encoding has appended, as they are."""
        content, appended = x.tensor_split([self.shape.head_width], dim=-1)
        mu = softplus(content)
        return torch.cat([mu * phase.cos().to(x.dtype), mu * phase.sin().to(x.dtype), appended], dim=-1)
