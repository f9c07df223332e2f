"""Token-aware phase attention (Wang et al., 2025)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from poscli.encodings import Encoding, Operands, Shape, above, register


@register("tapa", paper="arXiv:2509.12635", family="content")
class TAPA(Encoding):
    """s_ij = q_A . k_A / sqrt(A) cos(2 pi (i - j)^alpha q_P . k_P / sqrt(P)), where q = [q_A; q_P] and k = [k_A; k_P].

    The tokens themselves set how fast a score oscillates with the distance; without a rotation no distance is favoured.
    A head of D numbers gives A = `amplitude` D of them to the amplitude, and the other P to the phase. With alpha below
    1 the phase of a far key changes slowly. Nothing is learned beside the projections. This is the paper's
    equation 12, with its alpha = 0.1 and theta = 0.5 (`amplitude`); no code was found.
    """

    def __init__(self, shape: Shape, *, alpha: float = 0.1, amplitude: float = 0.5) -> None:
        super().__init__(shape)
        above(0, alpha=alpha)
        self.alpha, self.width = alpha, round(amplitude * shape.head_width)
        if not 0 < self.width < shape.head_width:
            raise ValueError(
                f"amplitude must leave a number for amplitude and phase each, of {shape.head_width} numbers per head, "
                f"got {amplitude:g}; 0.5 halves them"
            )

    @property
    def scale(self) -> float:
        return self.width**-0.5

    def similarity(self, x: Operands) -> Tensor:
        split = [self.width, self.shape.head_width - self.width]
        (q_a, q_p), (k_a, k_p) = x.q_BHTD.split(split, dim=-1), x.k_BHSD.split(split, dim=-1)
        exact = torch.promote_types(q_a.dtype, torch.float32)
        turns_TS = x.distances().to(torch.float64) ** self.alpha * (2 * math.pi * split[1] ** -0.5)
        phase_BHTS = (q_p.to(exact) @ k_p.mT.to(exact)) * turns_TS.to(exact)
        return q_a @ k_a.mT * torch.cos(phase_BHTS).to(q_a.dtype)
