"""The engine for evaluation on CPU: torch's fused kernel over tiles of queries and keys, joined by their log-sum-exp.

What is added to the scores of a block of queries is seldom a full matrix. From some distance on most encodings say the
same of every key (T5's last bucket, a clipped vector, nothing at all): those keys take the kernel without a bias, and
one number per query is added to their log-sum-exp. Nearer keys get a view of a table, or a bias made tile by tile, no
larger than the cache. Keys to which a decaying bias leaves no weight that float32 could hold are not visited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention.biases import distances
from poscli.attention.fused import flash
from poscli.attention.operands import Operands
from poscli.attention.reference import tempered
from poscli.attention.skew import skew, skew_keys, unskew


class Bands(NamedTuple):
    """Rows of descending distances, of those that a tile needs."""

    table_HN: Tensor
    a_HND: Tensor | None
    b_HND: Tensor | None
    c_HNE: Tensor | None


Part = tuple[Tensor, Tensor]  # output [B, H, R, E] over some of the keys, and the log-sum-exp [B, H, R] of their scores

ROWS = 1024  # queries of a block; torch's kernel takes 256 at a time if it is given 768 or more, 64 or 32 otherwise
KEYS = 1024  # keys of a tile whose bias is no view, for one head: with its distances 8 MiB of float32
ALIGNED = 16  # columns of a product, in multiples: 0.50 ms against 0.64 for 1024 by 17 by 2048 and by 2047
FEW = 128  # queries of a block whose weights are needed themselves
ENTRIES = 2**21  # of biases that are made at once: of one head, or of several where a tile is small
STEP = 256  # keys are left out in so many: heads that agree share a tile
NOTHING = -104.0  # exp of it is 0 in float32, denormal numbers included


@dataclass(frozen=True, kw_only=True)
class Terms:
    """All that makes the scores, one entry per head; R rows are queries from `start` on, distances n ascend from 0."""

    scale: float
    first: int  # the token that is the first query
    reach: int
    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSE: Tensor
    table_HN: Tensor
    a_HND: Tensor | None = None  # vectors that relative queries meet, and beside them the table, which meets a 1
    b_HND: Tensor | None = None  # and relative keys
    c_HNE: Tensor | None = None  # and what is added to the values
    relative_q_BHTD: Tensor | None = None
    relative_k_BHSD: Tensor | None = None
    potential_BHS: Tensor | None = None
    scratch: Tensor  # see `product`

    @staticmethod
    def of(x: Operands) -> Terms:
        """The terms of a call, relative queries and keys scaled."""
        encoding, dtype, heads = x.encoding, x.q_BHTD.dtype, x.q_BHTD.shape[1]
        reach = min(encoding.reach or x.keys, x.keys)

        def by_distance(blank: str) -> Tensor | None:
            if blank not in encoding.blanks:
                return None
            found: Tensor = getattr(encoding, blank)(distances(x)).to(dtype)
            return found.expand(heads, *found.shape[1:])

        table = by_distance("distance_bias")
        table = x.q_BHTD.new_zeros(heads, x.keys) if table is None else table
        table = F.pad(table[:, :reach], (0, x.keys - reach), value=hidden(dtype))
        a, b, relative_q = by_distance("relative_keys"), by_distance("relative_queries"), None
        if a is not None:
            a = torch.cat([a, table[..., None]], dim=-1)
            relative_q = F.pad((encoding.relative_query(x.raw_q_BHTD) * encoding.scale).to(dtype), (0, 1), value=1)
        potential = None
        if "potential" in encoding.blanks:
            assert x.features_BHSF is not None
            potential = encoding.potential(x.features_BHSF)
        return Terms(
            scale=encoding.scale,
            first=x.keys - x.queries,
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
            potential_BHS=potential,
            scratch=x.q_BHTD.new_empty(0),
        )

    def only(self, heads: list[int]) -> Terms:
        """Some of the heads."""
        if len(heads) == self.q_BHTD.shape[1]:
            return self
        row = heads == list(range(heads[0], heads[0] + len(heads)))  # then no copy is needed
        pick = slice(heads[0], heads[-1] + 1) if row else heads
        own: dict[str, Any] = {name: x for name, x in vars(self).items() if isinstance(x, Tensor) and "_" in name}
        return replace(self, **{name: x[:, pick] if "_B" in name else x[pick] for name, x in own.items()})

    def bands(self, furthest: int, count: int) -> Bands:
        """What depends on the distance, from `furthest` down; negative distances are hidden."""
        future = slice(min(furthest + 1, count), None)
        table_HN = band(self.table_HN, furthest, count, fill=hidden(self.q_BHTD.dtype))
        a, b, c = (None if x is None else band(x, furthest, count) for x in (self.a_HND, self.b_HND, self.c_HNE))
        if a is not None:
            a[:, future, -1] = table_HN[:, future]
        return Bands(table_HN, a, b, c)

    def product(self, x_BHRD: Tensor, y_HND: Tensor) -> Tensor:
        """X y^T `[B, H, R, N]`, in memory that the next product will use again: new pages would cost as much as it."""
        batch, heads, rows, _ = x_BHRD.shape
        size = batch * heads * rows * y_HND.shape[1]
        if len(self.scratch) < size:
            self.scratch.resize_(size)
        out = self.scratch[:size].view(batch * heads, rows, -1)
        torch.bmm(x_BHRD.flatten(0, 1), y_HND.repeat(batch, 1, 1).mT, out=out)
        return out.view(batch, heads, rows, -1)

    @cached_property
    def constant_from(self) -> int:
        """The distance from which on all that depends on it is the same."""
        of_distance = (self.table_HN, self.a_HND, self.b_HND, self.c_HNE)
        return max(_constant_from(x_HN) for x_HN in of_distance if x_HN is not None)

    def content(self, rows: slice, keys: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a tile."""
        return self.q_BHTD[:, :, rows], self.k_BHSD[:, :, keys], self.v_BHSE[:, :, keys]

    def of_keys(self, rows: slice, keys: slice) -> Tensor | None:
        """Minus the potential of each key `[B, H, 1, C]`, seen from the first query so that float32 can hold it."""
        if self.potential_BHS is None:
            return None
        query = self.potential_BHS[:, :, self.first + rows.start, None]
        return (query - self.potential_BHS[:, :, keys])[:, :, None].to(self.q_BHTD.dtype)

    @property
    def is_view(self) -> bool:
        """Is the bias a function of the distance alone?"""
        return all(x is None for x in (self.a_HND, self.b_HND, self.c_HNE, self.potential_BHS))


def tiles(x: Operands) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that leaves rows of scores alone; no gradient."""
    terms = Terms.of(x)
    weight = Weight.of(terms)
    out = x.v_BHSE.new_empty(*x.q_BHTD.shape[:3], x.v_BHSE.shape[-1])
    for start in range(0, x.queries, ROWS):
        rows = slice(start, min(start + ROWS, x.queries))
        for first_key, heads in weight.begins(rows):
            out[:, heads, rows] = joined(list(parts(terms.only(heads), rows, first_key)))[0]
    return out


@dataclass(frozen=True)
class Weight:
    """Where keys begin to have a weight: a softmax in float32 gives 0 to scores 104 below the largest."""

    terms: Terms
    excess_HN: Tensor | None  # by how much the bias may exceed a query's bias to itself, at a distance or any further
    spread_H: Tensor | None  # by how much content may

    @staticmethod
    def of(t: Terms) -> Weight:
        """Bounds for all queries; relative vectors have none."""
        if t.a_HND is not None or t.b_HND is not None:
            return Weight(t, None, None)
        furthest_first = t.table_HN.flip(1).cummax(1).values
        q, k = (x.norm(dim=-1).amax((0, 2)) for x in (t.q_BHTD, t.k_BHSD))
        return Weight(t, furthest_first.flip(1) - t.table_HN[:, :1], 2 * abs(t.scale) * q * k)

    def begins(self, rows: slice) -> list[tuple[int, list[int]]]:
        """The first key with any weight for these queries, and the heads of which that is true."""
        t = self.terms
        query, heads = t.first + rows.start, t.q_BHTD.shape[1]
        if self.excess_HN is None or self.spread_H is None:
            return [(max(0, query - t.reach + 1), list(range(heads)))]
        most_HS = self.excess_HN[:, : query + 1].flip(1) + self.spread_H[:, None]
        if t.potential_BHS is not None:
            own_BH = t.potential_BHS[:, :, query : t.first + rows.stop].amax(-1, keepdim=True)
            most_HS = most_HS + (own_BH - t.potential_BHS[:, :, : query + 1]).amax(0)
        firsts = ((most_HS >= NOTHING).int().argmax(1) // STEP * STEP).tolist()
        if rows.stop - rows.start < STEP:  # too little work to divide
            return [(min(firsts), list(range(heads)))]
        return [(first, [h for h in range(heads) if firsts[h] == first]) for first in sorted(set(firsts))]


def parts(t: Terms, rows: slice, first_key: int) -> Iterator[Part]:
    """Attention of these queries to the keys from `first_key` on, in groups that the kernel takes at once."""
    query, end, constant_from = t.first + rows.start, t.first + rows.stop, t.constant_from
    near = query if constant_from <= 1 else max(first_key, query - constant_from + 1)
    if near - first_key < (STEP if t.c_HNE is None else 1):
        near = first_key
    if near > first_key:
        yield far(t, rows, slice(first_key, near))
    if constant_from == 0 and near == query:
        yield far(t, rows, slice(query, end), causal=True)
    elif t.is_view:
        yield tile(t, rows, slice(near, end))
    elif t.c_HNE is not None and rows.stop - rows.start > FEW:  # weights are made here: of as few pairs as may be
        few = [slice(start, min(start + FEW, rows.stop)) for start in range(rows.start, rows.stop, FEW)]
        outs, lses = zip(*(joined(list(parts(t, some, near))) for some in few), strict=True)
        yield torch.cat(outs, dim=2), torch.cat(lses, dim=2)
    else:
        for start in range(near, end, KEYS):
            keys = slice(start, min(start + KEYS, end))
            yield tile(t, rows, keys)


def far(t: Terms, rows: slice, keys: slice, causal: bool = False) -> Part:
    """Keys at distances from which on nothing changes: one number per query, and perhaps one per key."""
    of_keys = t.of_keys(rows, keys)
    if t.b_HND is not None and t.relative_k_BHSD is not None:
        met = (t.relative_k_BHSD[:, :, keys] @ t.b_HND[:, -1, :, None]).mT
        of_keys = met if of_keys is None else of_keys + met
    o_BHRE, lse_BHR = flash(*t.content(rows, keys), scale=t.scale, bias=of_keys, causal=causal)
    if t.a_HND is not None and t.relative_q_BHTD is not None:
        lse_BHR = lse_BHR + (t.relative_q_BHTD[:, :, rows] @ t.a_HND[:, -1, :, None])[..., 0]
    else:
        lse_BHR = lse_BHR + t.table_HN[:, -1:]
    return (o_BHRE if t.c_HNE is None else o_BHRE + t.c_HNE[:, -1:]), lse_BHR


def tile(t: Terms, rows: slice, keys: slice) -> Part:
    """Keys whose bias depends on the distance: a skewed view (see skew.py), the queries in reverse."""
    count, columns = rows.stop - rows.start, keys.stop - keys.start
    furthest, distances = t.first + rows.stop - 1 - keys.start, -(-(count + columns - 1) // ALIGNED) * ALIGNED
    bands = t.bands(furthest, distances)
    q, relative_q, of_keys = t.q_BHTD[:, :, rows].flip(2), t.relative_q_BHTD, t.of_keys(rows, keys)
    relative_q = None if relative_q is None else relative_q[:, :, rows].flip(2)
    if t.is_view:
        bias = skew(bands.table_HN[None, :, None], count, columns)
        o_BHRE, lse_BHR = flash(q, t.k_BHSD[:, :, keys], t.v_BHSE[:, :, keys], scale=t.scale, bias=bias)
        return o_BHRE.flip(2), lse_BHR.flip(2)
    o_BHRE = q.new_empty(*q.shape[:3], t.v_BHSE.shape[-1])
    lse_BHR = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
    heads = max(1, ENTRIES // (len(q) * count * distances))
    for head in range(0, q.shape[1], heads):
        h = slice(head, head + heads)
        if relative_q is not None and bands.a_HND is not None:
            bias = skew(t.product(relative_q[:, h], bands.a_HND[h]), count, columns)
        else:
            bias = skew(bands.table_HN[None, h, None], count, columns)
        if bands.b_HND is not None and t.relative_k_BHSD is not None:
            bias = bias + skew_keys(t.relative_k_BHSD[:, h, keys] @ bands.b_HND[h].mT, count)
        if of_keys is not None:
            bias = bias + of_keys[:, h]
        k, v = t.k_BHSD[:, h, keys], t.v_BHSE[:, h, keys]
        if bands.c_HNE is None:
            o_BHRE[:, h], lse_BHR[:, h] = flash(q[:, h], k, v, scale=t.scale, bias=bias)
        else:
            o_BHRE[:, h], lse_BHR[:, h] = with_values(q[:, h] * t.scale, k, v, bias, bands.c_HNE[h])
    return o_BHRE.flip(2), lse_BHR.flip(2)


def with_values(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, c_HNE: Tensor) -> Part:
    """The same where vectors of the distance are added to the values: the weights themselves are needed."""
    s_BHRC = (q @ k.mT).add_(bias)
    lse_BHR = s_BHRC.logsumexp(-1)
    p_BHRC = s_BHRC.sub_(lse_BHR[..., None]).exp_()
    return p_BHRC @ v + unskew(p_BHRC, c_HNE.shape[1]) @ c_HNE, lse_BHR


def band(x_HN: Tensor, furthest: int, count: int, fill: float = 0) -> Tensor:
    """Entries `[H, count, ...]` for the distances from `furthest` down, `fill` for negative ones."""
    nearest = furthest - count + 1
    inside = x_HN[:, max(0, nearest) : furthest + 1].flip(1)
    return F.pad(inside, (*[0, 0] * (x_HN.ndim - 2), 0, max(0, -nearest)), value=fill)


def joined(parts: list[Part]) -> Part:
    """Attention to the keys of all parts."""
    if len(parts) == 1:
        return parts[0]
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    shares = torch.softmax(lses, dim=0).to(outs.dtype)
    return (outs * shares[..., None]).sum(0), lses.logsumexp(0)


def hidden(dtype: torch.dtype) -> float:
    """What hides a key in a bias: -inf without its NaN, should a query see nothing of a tile."""
    return max(-1e30, torch.finfo(dtype).min / 2)


def _constant_from(x_HN: Tensor) -> int:
    """The distance from which on all entries are those of the last."""
    differs = (x_HN != x_HN[:, -1:]).movedim(1, 0).flatten(1).any(1).nonzero()
    return int(differs[-1]) + 1 if len(differs) else 0
