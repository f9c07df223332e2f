"""ReRoPE: rotary distances clipped at a window (Su, 2023)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from poscli.encodings.registry import register
from poscli.encodings.rope import RoPE, Rotary
from poscli.equation import Shape
from poscli.equation.operands import Operands, snapped


@register("rerope", paper="Su Jianlin, 2023, kexue.fm/archives/9708", family="rotary")
class ReRoPE(RoPE):
    """q_i R(min(i-j, w)) k_j in place of q_i R(i-j) k_j: a key farther away than the window is seen at distance w.

    w is `window`, the training length L unless given; the author's patch sets it to 512 where L is 4096. Queries and
    keys are rotated twice, once to their own positions and once to w and 0; both versions stand side by side in a head
    of twice the width, and `similarity` picks one product per pair. The author's patch also multiplies queries by
    max(1, log n / log L); here that is the encoding `logn`, joined with +.
    """

    after = ("rope",)
    facts = ("rerope(window=N) is rope on inputs of up to N + 1 tokens",)

    def __init__(self, shape: Shape, *, window: int | None = None, **rotary: Unpack[Rotary]) -> None:
        super().__init__(shape, **rotary)
        self.window = shape.length if window is None else window
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")

    def far_queries(self, pos: Tensor) -> Tensor:
        """Positions `[T]` of queries in their scores with keys at the window's distance or farther."""
        return torch.full_like(pos, self.window)

    def far_keys(self, pos: Tensor) -> Tensor:
        """Positions `[S]` of keys in scores with queries at the window's distance or farther."""
        return torch.zeros_like(pos)

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.near_and_far(q_BHTD, pos, self.far_queries(pos))

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self.near_and_far(k_BHSD, pos, self.far_keys(pos))

    def near_and_far(self, x: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """`x [.., T, D]` rotated to both positions, side by side: `[.., T, 2 D]`."""
        return torch.cat([self.fast_rotate(x, self.angles(near)), self.fast_rotate(x, self.angles(far))], dim=-1)

    def similarity(self, x: Operands) -> Tensor:
        (near_q, far_q), (near_k, far_k) = x.q_BHTD.chunk(2, dim=-1), x.k_BHSD.chunk(2, dim=-1)
        d_TS = snapped(x.pos_T[:, None] - x.pos_S)
        return torch.where(d_TS < self.window, near_q @ near_k.mT, far_q @ far_k.mT)

    def fast_similarity(self, x: Operands) -> Tensor:
        """`similarity`, with both products only for keys that are inside some queries' windows and outside others'."""
        (near_q, far_q), (near_k, far_k) = x.q_BHTD.chunk(2, dim=-1), x.k_BHSD.chunk(2, dim=-1)
        start = count_leading(snapped(x.pos_T.amin() - x.pos_S) >= self.window)
        stop = x.keys - count_leading((snapped(x.pos_T.amax() - x.pos_S) < self.window).flip(0))
        d = snapped(x.pos_T[:, None] - x.pos_S[start:stop])
        near_s, far_s = near_q @ near_k[..., start:stop, :].mT, far_q @ far_k[..., start:stop, :].mT
        mixed = torch.where(d < self.window, near_s, far_s)
        return torch.cat([far_q @ far_k[..., :start, :].mT, mixed, near_q @ near_k[..., stop:, :].mT], dim=-1)


def count_leading(true: Tensor) -> int:
    """The number of entries of a boolean vector before the first false one."""
    return int(true.long().cumprod(0).sum())
