"""ReRoPE: rotary distances clipped at a window (Su, 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from poscli.attention.operands import snapped
from poscli.encodings.base import Shape
from poscli.encodings.registry import register
from poscli.encodings.rope import Layout, RoPE

if TYPE_CHECKING:
    from poscli.attention.operands import Operands


@register("rerope", paper="Su Jianlin, 2023, kexue.fm/archives/9708", family="rotary")
class ReRoPE(RoPE):
    """q_i R(min(i-j, w)) k_j in place of q_i R(i-j) k_j: whatever is further away than the window is seen at w.

    w is `window`, the training length L unless given. Two products of queries and keys: one rotated as ever, and one
    with queries rotated by w and keys not at all; they stand side by side in one wider head until `similarity` picks.
    The author's code also multiplies scores by max(1, log n / log L): that is a wrapper here, and joins with +.
    """

    after = ("rope",)
    facts = ("rerope(window=N) is rope on inputs of up to N + 1 tokens",)

    def __init__(
        self,
        shape: Shape,
        *,
        window: int | None = None,
        base: float = 10000.0,
        layout: Layout = "half",
        fraction: float = 1.0,
    ) -> None:
        super().__init__(shape, base=base, layout=layout, fraction=fraction)
        self.window = shape.length if window is None else window
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")

    def far_queries(self, pos: Tensor) -> Tensor:
        """Positions `[T]` that stand for those of queries, from the window on."""
        return torch.full_like(pos, self.window)

    def far_keys(self, pos: Tensor) -> Tensor:
        """Positions `[S]` that stand for those of keys."""
        return torch.zeros_like(pos)

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.twice(q_BHTD, pos, self.far_queries(pos))

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self.twice(k_BHSD, pos, self.far_keys(pos))

    def twice(self, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """Rotated to both positions, side by side; what others have put beside the channels of the head follows."""
        own, rest = x.tensor_split([self.shape.head_width], dim=-1)
        return torch.cat([self.rotate(own, self.angles(near)), self.rotate(own, self.angles(far)), rest], dim=-1)

    def similarity(self, x: Operands) -> Tensor:
        """Both products only where a window begins for some query of a block: keys before are far, those after near."""
        ends = [self.shape.head_width, 2 * self.shape.head_width]
        (near_q, far_q, rest_q), (near_k, far_k, rest_k) = (y.tensor_split(ends, dim=-1) for y in (x.q_BHTD, x.k_BHSD))
        near = torch.cat([near_q, rest_q], dim=-1), torch.cat([near_k, rest_k], dim=-1).mT
        far = torch.cat([far_q, rest_q], dim=-1), torch.cat([far_k, rest_k], dim=-1).mT
        outside = leading(snapped(x.pos_T.amin() - x.pos_S) >= self.window)
        inside = x.keys - leading((snapped(x.pos_T.amax() - x.pos_S) < self.window).flip(0))
        d = snapped(x.pos_T[:, None] - x.pos_S[outside:inside])
        near_s, far_s = (q @ k[..., outside:inside] for q, k in (near, far))
        met = torch.where(d < self.window, near_s, far_s)
        return torch.cat([far[0] @ far[1][..., :outside], met, near[0] @ near[1][..., inside:]], dim=-1)


def leading(true: Tensor) -> int:
    """How many of the first entries are true, up to one that is not."""
    return int(true.long().cumprod(0).sum())
