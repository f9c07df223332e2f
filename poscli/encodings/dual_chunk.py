"""Dual Chunk Attention: distances that stay within those of training, by chunks (An et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

import torch
from torch import Tensor

from poscli.encodings import Length, Operands, Shape, register
from poscli.encodings.remapped import RemappedRoPE
from poscli.encodings.rope import Rotary
from poscli.equation.operands import snapped
from poscli.native.call import Part, Parts


@register("dual-chunk", paper="arXiv:2402.17463", family="rotary")
class DualChunk(RemappedRoPE):
    """Rope with keys at j mod s, and queries at i mod s for keys of the same chunk, at c - 1 for those of other chunks.

    Chunks have s tokens, and c is the training length L, so that no distance is new at any length. For keys of the
    chunk just before its own, query i stands at s + (i mod s) if i mod s is below w, so that the nearest w keys are at
    their distances in the text also across the border, and else at c - 1. s is `chunk`, 3/4 of L unless given, and w is
    `local`, c - s unless given. In the authors' code c is 3/4 of L, and queries stand at c, not at c - 1. s is 11/16
    of L in one version of it; in another, s is 5/8 and cos and sin are multiplied by 1 + 0.05 ln(T/L), T the length of
    the longest text so far.
    """

    versions = 3  # for keys of the same chunk, of the one before, and of those before that
    relative = False  # chunks are counted from the start of a text
    facts = ("dual-chunk(chunk=N) is rope on inputs of up to N tokens",)

    def __init__(
        self,
        shape: Shape,
        *,
        chunk: Length[int] | None = None,
        local: Length[int] | None = None,
        **rotary: Unpack[Rotary],
    ) -> None:
        super().__init__(shape, **rotary)
        self.last = shape.length - 1  # c - 1
        self.chunk = max(1, 3 * shape.length // 4) if chunk is None else chunk
        if not 1 <= self.chunk <= shape.length:
            raise ValueError(f"chunk must be between 1 and the training length {shape.length}, got {chunk}")
        self.local = shape.length - self.chunk if local is None else local
        if not 0 <= self.local <= shape.length - self.chunk:
            raise ValueError(
                f"local must be between 0 and what the chunk leaves of the training length, "
                f"{shape.length - self.chunk}, got {local}"
            )

    def query_positions(self, pos: Tensor) -> Sequence[Tensor]:
        within, last = self.within(pos), torch.full_like(pos, self.last)
        return within, torch.where(within < self.local, self.chunk + within, last), last

    def key_positions(self, pos: Tensor) -> Sequence[Tensor]:
        return (self.within(pos),) * 3

    def chosen(self, i: Tensor, j: Tensor) -> Tensor:
        return (self.number(i) - self.number(j)).clamp(0, 2)

    def kernel_form(self, x: Operands) -> Parts | None:
        return Parts(self.parts_of(x)) if x.step == 1 else None

    def parts_of(self, x: Operands) -> Iterator[Part]:
        """For the queries of each chunk, the keys of the chunk, of the one before, and of those before that."""
        (q, k), (previous_q, previous_k), (far_q, far_k) = self.split(x)
        past, s = x.keys - x.queries, self.chunk
        for start in range(past // s * s, x.keys, s):
            stop, first = min(start + s, x.keys), max(0, start - past)
            at = slice(first, stop - past)
            yield Part(q[:, :, at], k[:, :, start:stop], first, start)
            if start:
                before = start - s
                yield Part(previous_q[:, :, at], previous_k[:, :, before:start], first, before, every=True)
            if start > s:
                yield Part(far_q[:, :, at], far_k[:, :, : start - s], first, every=True)

    def number(self, pos: Tensor) -> Tensor:
        """The numbers of the chunks of some positions, int64."""
        return snapped(pos).div(self.chunk, rounding_mode="floor").long()

    def within(self, pos: Tensor) -> Tensor:
        """Positions within the chunks."""
        return pos - self.number(pos) * self.chunk
