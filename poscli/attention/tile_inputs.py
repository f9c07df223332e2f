"""The inputs of the engine `tiles` (tiled.py), and the first key that a block of queries must visit.

Shapes: B batch, T queries, S keys, H heads, D and E head widths of keys and values, R queries of a block, C keys of a
tile, N distances of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention.biases import even_distances
from poscli.equation import Encoding, Operands
from poscli.equation.reference import tempered

# exp of any smaller number is 0 in float32, denormal numbers included.
SMALLEST_EXPONENT_FLOAT32 = -104.0


class DistanceBand(NamedTuple):
    """The terms of the distances that one tile needs, in descending order: table, a, b and c of `TileInputs`."""

    table_HN: Tensor
    a_HND: Tensor | None
    b_HND: Tensor | None
    c_HNE: Tensor | None


@dataclass(frozen=True, kw_only=True)
class TileInputs:
    """Inputs of one attention call, stored per head so that any tile is a slice.

    The terms of the distance have one entry for each distance 0, 1, ... from the last query to the first key.
    """

    scale: float
    past: int  # tokens from the first key to the first query
    reach: int  # tokens that a query sees, itself among them
    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSE: Tensor
    table_HN: Tensor  # the distance bias
    # Vectors that relative queries meet. The table is appended as a last channel, and a 1 to every relative query.
    a_HND: Tensor | None = None
    b_HND: Tensor | None = None  # vectors that relative keys meet
    c_HNE: Tensor | None = None  # vectors added to the values
    relative_q_BHTD: Tensor | None = None
    relative_k_BHSD: Tensor | None = None
    potential_BHS: Tensor | None = None  # of the tokens from the first key to the last query
    scratch: Tensor  # memory shared by the results of `product`

    @staticmethod
    def of(encoding: Encoding, x: Operands, later: int = 0, potential_BHS: Tensor | None = None) -> TileInputs:
        """The inputs of a call; relative queries and keys are scaled already.

        The last query stands `later` tokens after the last key. The potential of all tokens from the first key to the
        last query is computed from the features, unless it is given.
        """
        dtype, heads, tokens = x.q_BHTD.dtype, x.q_BHTD.shape[1], x.keys + later
        reach = min(x.reach or tokens, tokens)

        def by_distance(blank: str) -> Tensor | None:
            if blank not in encoding.blanks:
                return None
            found: Tensor = getattr(encoding, blank)(even_distances(x, tokens)).to(dtype)
            return found.expand(heads, *found.shape[1:])

        table = by_distance("distance_bias")
        table = x.q_BHTD.new_zeros(heads, tokens) if table is None else table
        table = F.pad(table[:, :reach], (0, tokens - reach), value=hidden_bias(dtype))
        a, b, relative_q = by_distance("relative_keys"), by_distance("relative_queries"), None
        if a is not None:
            a = torch.cat([a, table[..., None]], dim=-1)
            relative_q = F.pad((encoding.relative_query(x.raw_q_BHTD) * encoding.scale).to(dtype), (0, 1), value=1)
        if potential_BHS is None:
            potential_BHS = potential_of(encoding, x.features_BHSF)
        return TileInputs(
            scale=encoding.scale,
            past=tokens - x.queries,
            reach=reach,
            q_BHTD=tempered(x, x.q_BHTD),
            k_BHSD=x.k_BHSD,
            v_BHSE=x.v_BHSE,
            table_HN=table,
            a_HND=a,
            b_HND=b,
            c_HNE=by_distance("relative_values"),
            relative_q_BHTD=relative_q,
            relative_k_BHSD=None if b is None else (x.raw_k_BHSD * encoding.scale).to(dtype),
            potential_BHS=potential_BHS,
            scratch=x.q_BHTD.new_empty(0),
        )

    def of_heads(self, heads: list[int]) -> TileInputs:
        """The inputs of some of the heads, as views where the heads are consecutive."""
        if len(heads) == self.q_BHTD.shape[1]:
            return self
        consecutive = heads == list(range(heads[0], heads[0] + len(heads)))
        pick = slice(heads[0], heads[-1] + 1) if consecutive else heads
        # The suffix of a field's name is its shape: the tensors with a suffix are stored per head.
        per_head = {name: x for name, x in vars(self).items() if isinstance(x, Tensor) and "_" in name}
        picked: dict[str, Any] = {name: x[:, pick] if "_B" in name else x[pick] for name, x in per_head.items()}
        return replace(self, **picked)

    def band(self, furthest: int, count: int) -> DistanceBand:
        """The terms of `count` distances, from `furthest` down; negative distances are hidden by the table."""
        future = slice(min(furthest + 1, count), None)
        table_HN = _descending(self.table_HN, furthest, count, fill=hidden_bias(self.q_BHTD.dtype))
        vectors = (self.a_HND, self.b_HND, self.c_HNE)
        a, b, c = (None if x is None else _descending(x, furthest, count) for x in vectors)
        if a is not None:
            a[:, future, -1] = table_HN[:, future]
        return DistanceBand(table_HN, a, b, c)

    def product(self, x_BHRD: Tensor, y_HND: Tensor) -> Tensor:
        """X y^T, `[B, H, R, N]`, valid until the next call, which overwrites it.

        The memory is reused because the first use of newly allocated pages would cost as much time as the product.
        """
        batch, heads, rows, _ = x_BHRD.shape
        size = batch * heads * rows * y_HND.shape[1]
        if len(self.scratch) < size:
            self.scratch.resize_(size)
        out = self.scratch[:size].view(batch * heads, rows, -1)
        torch.bmm(x_BHRD.flatten(0, 1), y_HND.repeat(batch, 1, 1).mT, out=out)
        return out.view(batch, heads, rows, -1)

    @cached_property
    def constant_from(self) -> int:
        """The first distance from which on no term of the distance changes any more."""
        of_distance = (self.table_HN, self.a_HND, self.b_HND, self.c_HNE)
        return max(_constant_from(x_HN) for x_HN in of_distance if x_HN is not None)

    def content(self, queries: slice, keys: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a tile."""
        return self.q_BHTD[:, :, queries], self.k_BHSD[:, :, keys], self.v_BHSE[:, :, keys]

    def key_bias(self, queries: slice, keys: slice) -> Tensor | None:
        """Minus the potential of each key, `[B, H, 1, C]`; None without a potential.

        The potential of the first query is added, which keeps the numbers small enough for float32. The softmax
        cancels whatever is constant along a row.
        """
        if self.potential_BHS is None:
            return None
        of_query = self.potential_BHS[:, :, self.past + queries.start, None]
        return (of_query - self.potential_BHS[:, :, keys])[:, :, None].to(self.q_BHTD.dtype)

    def potential_drop(self, queries: slice, later: slice) -> Tensor:
        """Potential of the first of the queries minus that of the first of the later ones, `[B, H, 1]`."""
        assert self.potential_BHS is not None
        c_BHT = self.potential_BHS[:, :, self.past :]
        return (c_BHT[:, :, queries.start, None] - c_BHT[:, :, later.start, None]).to(self.q_BHTD.dtype)

    @property
    def keys(self) -> int:
        """The number of keys."""
        return self.k_BHSD.shape[2]

    @property
    def is_view(self) -> bool:
        """True if the bias depends on the distance alone, so that it is a view of the table."""
        return all(x is None for x in (self.a_HND, self.b_HND, self.c_HNE, self.potential_BHS))


@dataclass(frozen=True)
class ScoreBounds:
    """Upper bounds on how far the score of a key can exceed the score that a query gives to its own token.

    A key whose bound is below -104 has the softmax weight 0 in float32, so it need not be visited. Relative vectors
    have no such bounds: both fields are None.
    """

    inputs: TileInputs
    bias_HN: Tensor | None  # the bound for the distance bias, over a distance and all larger ones
    content_H: Tensor | None  # the bound for scale * q . k

    @staticmethod
    def of(t: TileInputs, own_norm_H: Tensor | None = None) -> ScoreBounds:
        """The bounds for all queries of a call.

        `own_norm_H` is the largest norm of the keys of the queries' own tokens, needed if those keys are not given.
        """
        if t.a_HND is not None or t.b_HND is not None:
            return ScoreBounds(t, None, None)
        furthest_first = t.table_HN.flip(1).cummax(1).values
        q, k = norms(t.q_BHTD), norms(t.k_BHSD)
        content = abs(t.scale) * q * (k + (k if own_norm_H is None else own_norm_H))
        return ScoreBounds(t, furthest_first.flip(1) - t.table_HN[:, :1], content)

    def first_keys(self, queries: slice, multiple: int) -> list[tuple[int, list[int]]]:
        """The first key whose weight can be non-zero for any of these queries, with the heads that start there.

        The first keys are rounded down to a multiple, so that heads can share a tile. Where every weight is zero, the
        first key is at most the number of keys.
        """
        t = self.inputs
        query, heads = t.past + queries.start, t.q_BHTD.shape[1]
        if self.bias_HN is None or self.content_H is None:
            return [(max(0, query - t.reach + 1), list(range(heads)))]
        bound_HS = self.bias_HN[:, : query + 1].flip(1) + self.content_H[:, None]
        if t.potential_BHS is not None:
            own_BH = t.potential_BHS[:, :, query : t.past + queries.stop].amax(-1, keepdim=True)
            bound_HS = bound_HS + (own_BH - t.potential_BHS[:, :, : query + 1]).amax(0)
        seen_HS = F.pad(bound_HS[:, : t.keys] >= SMALLEST_EXPONENT_FLOAT32, (0, 1), value=True)
        firsts = (seen_HS.int().argmax(1) // multiple * multiple).tolist()
        if queries.stop - queries.start < multiple:  # too few queries for separate calls to pay
            return [(min(firsts), list(range(heads)))]
        return [(first, [h for h in range(heads) if firsts[h] == first]) for first in sorted(set(firsts))]


def potential_of(encoding: Encoding, features_BHSF: Tensor | None) -> Tensor | None:
    """The potential of every token, `[B, H, S]`; None for an encoding without one."""
    if "potential" not in encoding.blanks:
        return None
    assert features_BHSF is not None
    return encoding.potential(features_BHSF)


def norms(x_BHSD: Tensor) -> Tensor:
    """The largest norm of a query or key of each head, `[H]`."""
    return x_BHSD.norm(dim=-1).amax((0, 2))


def hidden_bias(dtype: torch.dtype) -> float:
    """The bias of a hidden key: finite, as -inf would give NaN for a query that sees no key of a tile."""
    return max(-1e30, torch.finfo(dtype).min / 2)


def _descending(x_HN: Tensor, furthest: int, count: int, fill: float = 0) -> Tensor:
    """Entries `[H, count, ...]` for the distances from `furthest` down; `fill` for negative distances."""
    nearest = furthest - count + 1
    inside = x_HN[:, max(0, nearest) : furthest + 1].flip(1)
    return F.pad(inside, (*[0, 0] * (x_HN.ndim - 2), 0, max(0, -nearest)), value=fill)


def _constant_from(x_HN: Tensor) -> int:
    """The first distance from which on every entry equals the last one."""
    differs = (x_HN != x_HN[:, -1:]).movedim(1, 0).flatten(1).any(1).nonzero()
    return int(differs[-1]) + 1 if len(differs) else 0
