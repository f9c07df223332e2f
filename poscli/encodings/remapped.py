"""Rope at other distances than i - j, which its variants for long texts choose for every pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from poscli.encodings import Operands
from poscli.encodings.rope import RoPE
from poscli.equation.operands import snapped
from poscli.native.call import Part, Parts


class RemappedRoPE(RoPE):
    """Rope with several versions of each query and key at positions of their own, of which every pair uses one.

    A subclass says where each version stands, and `chosen` says which version a pair uses. The rotated versions stand
    side by side in a wider head, and `similarity` picks one product per pair.
    """

    after = ("rope",)
    versions: ClassVar[int] = 2

    def query_positions(self, pos: Tensor) -> Sequence[Tensor]:
        """The positions `[T]` of the queries in each version."""
        raise NotImplementedError

    def key_positions(self, pos: Tensor) -> Sequence[Tensor]:
        """The positions `[S]` of the keys in each version."""
        raise NotImplementedError

    def chosen(self, i: Tensor, j: Tensor) -> Tensor:
        """The number of the version that a query at i and a key at j use, int64; it never decreases with i."""
        raise NotImplementedError

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self.side_by_side(q_BHTD, self.query_positions(pos))

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self.side_by_side(k_BHSD, self.key_positions(pos))

    def side_by_side(self, x: Tensor, positions: Sequence[Tensor]) -> Tensor:
        """`x [.., T, D]` rotated to the positions of each of n versions: `[.., T, n D]`."""
        return torch.cat([self.rotate(x, self.angles(pos)) for pos in positions], dim=-1)

    def split(self, x: Operands) -> list[tuple[Tensor, Tensor]]:
        """The queries and keys of each version."""
        q_BHTD, k_BHSD = (y.chunk(self.versions, dim=-1) for y in (x.q_BHTD, x.k_BHSD))
        return list(zip(q_BHTD, k_BHSD, strict=True))

    def similarity(self, x: Operands) -> Tensor:
        products = [q_BHTD @ k_BHSD.mT for q_BHTD, k_BHSD in self.split(x)]
        return _picked(products, self.chosen(x.pos_T[:, None], x.pos_S))

    def fast_similarity(self, x: Operands) -> Tensor:
        """`similarity`, with only the products that some pair of a key and a query of the block uses."""
        lowest_S, highest_S = (self.chosen(i, x.pos_S) for i in x.pos_T.aminmax())
        # Neighbouring keys with the same products are multiplied at once.
        ranges, counts = torch.unique_consecutive(torch.stack([lowest_S, highest_S]), dim=1, return_counts=True)
        split, parts, start = self.split(x), [], 0
        for (low, high), count in zip(ranges.T.tolist(), counts.tolist(), strict=True):
            keys = slice(start, start := start + count)
            products = [q_BHTD @ k_BHSD[..., keys, :].mT for q_BHTD, k_BHSD in split[low : high + 1]]
            mixed = len(products) > 1
            parts.append(
                _picked(products, self.chosen(x.pos_T[:, None], x.pos_S[keys]) - low) if mixed else products[0]
            )
        return torch.cat(parts, dim=-1)


def _picked(products: Sequence[Tensor], number_TS: Tensor) -> Tensor:
    """Of several tensors `[.., T, S]` the one of each pair's number."""
    picked = products[0]
    for number, product in enumerate(products[1:], start=1):
        picked = torch.where(number_TS < number, picked, product)
    return picked


class NearAndFar(RemappedRoPE):
    """Rope within a window, and at other distances from there on.

    `window` is the first distance i - j that counts as far. The queries and keys of near pairs stand at their own
    positions; a subclass says where those of far pairs stand.
    """

    window: int

    def far_queries(self, pos: Tensor) -> Tensor:
        """Positions `[T]` of queries in their scores with keys at the window's distance or farther."""
        raise NotImplementedError

    def far_keys(self, pos: Tensor) -> Tensor:
        """Positions `[S]` of keys in scores with queries at the window's distance or farther."""
        raise NotImplementedError

    def query_positions(self, pos: Tensor) -> Sequence[Tensor]:
        return pos, self.far_queries(pos)

    def key_positions(self, pos: Tensor) -> Sequence[Tensor]:
        return pos, self.far_keys(pos)

    def chosen(self, i: Tensor, j: Tensor) -> Tensor:
        return (snapped(i - j) >= self.window).long()

    def kernel_form(self, x: Operands) -> Parts | None:
        """Near pairs lie in a window; query i sees far keys as if the key i - window were its own."""
        if x.step != 1:
            return None
        (near_q, near_k), (far_q, far_k) = self.split(x)
        parts = [Part(near_q, near_k, reach=self.window)]
        if x.keys > self.window:
            first = max(0, self.window - (x.keys - x.queries))  # the first query with a far key
            parts.append(Part(far_q[:, :, first:], far_k[:, :, : x.keys - self.window], first))
        return Parts(parts)
