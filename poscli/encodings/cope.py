"""Contextual position encoding (Golovneva et al., 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from poscli.encodings.base import Encoding, Shape
from poscli.encodings.registry import register

if TYPE_CHECKING:
    from poscli.attention.operands import Operands

KEYS = 128  # whose gates are summed at once


@register("cope", paper="arXiv:2405.18719", family="content")
class CoPE(Encoding):
    """s_ij += q_i . e[p_ij], p_ij = sum_{l=j..i} sigmoid(s_il): a key's position is how many gates lie between.

    e is a learned table of `max_pos` vectors per layer, interpolated linearly between whole positions; positions
    beyond it share its last row. Hidden keys must not count, so the mask comes before the gates.
    """

    def __init__(self, shape: Shape, *, max_pos: int = 64) -> None:
        super().__init__(shape)
        if max_pos < 2:
            raise ValueError(f"max_pos must be at least 2, got {max_pos}")
        self.e = nn.Parameter(torch.zeros(max_pos, shape.head_width))

    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        last, exact = len(self.e) - 1, torch.promote_types(s_BHTS.dtype, torch.float32)  # bfloat16 has 63, not 63.1
        z = (x.raw_q_BHTD @ self.e.T.to(x.raw_q_BHTD.dtype)).to(exact)  # q_i . e[n] for every n: [B, H, T, max_pos]
        rise = z.diff(append=z[..., -1:])
        parts: list[Tensor] = []
        passed = z.new_zeros(*s_BHTS.shape[:-1], 1)
        for s in reversed(s_BHTS.split(KEYS, dim=-1)):
            if parts and passed.amin() >= last:  # every key before stands at the last position, for every query
                break
            p = torch.sigmoid(s.to(exact)).flip(-1).cumsum(-1).flip(-1) + passed
            passed, p = p[..., :1], p.clamp(max=last)
            floor = p.long()
            term = torch.addcmul(z.gather(-1, floor), rise.gather(-1, floor), p.frac())
            parts.append(s + term.to(s.dtype))
        far = s_BHTS[..., : s_BHTS.shape[-1] - sum(s.shape[-1] for s in parts)]
        return torch.cat([far + z[..., -1:].to(far.dtype), *parts[::-1]], dim=-1)
