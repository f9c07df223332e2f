"""The engine `tiles`, for evaluation on CPU: torch's fused kernel over tiles of queries and keys.

The results of several tiles are merged by their log-sum-exp. A block of queries seldom needs a dense bias:

- Beyond some distance the terms of most encodings are constant (the last bucket of T5, a clipped vector, nothing at
  all). Those far keys take the kernel without a bias, and one number per query is added to their log-sum-exp.
- Nearer keys get a view of the table, or a bias computed tile by tile, small enough for the cache.
- Keys whose decaying bias leaves them the weight 0 in float32 are skipped (`ScoreBounds`, which native.py uses, too).

Shapes: B batch, T queries (the last T of the S tokens), S keys, H heads, D and E head widths of keys and values, R
queries of a block, C keys of a tile, N distances of a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention import sdpa
from poscli.attention.biases import added_to_keys, at_even_distances, constant_from, gentle_rows, is_narrow, potentials
from poscli.attention.place import BlockSizes, Place, added_refused, blanks_refused
from poscli.attention.sdpa import cpu_flash_attention
from poscli.attention.skew import skew, skew_keys, unskew
from poscli.equation import Encoding, Operands
from poscli.equation.blanks import of_tier
from poscli.equation.reference import tempered

# exp of any smaller number is 0 in float32, denormal numbers included.
SMALLEST_EXPONENT_FLOAT32 = -104.0
LEAST_QUERIES = 32  # of a block where a potential changes fast
# Columns of a product are padded to this multiple: 1024 x 17 x 2048 took 0.50 ms, 1024 x 17 x 2047 took 0.64.
COLUMN_MULTIPLE = 16
# Attention to some of the keys: the output [B, H, R, E], and the log-sum-exp [B, H, R] of the scores.
Partial = tuple[Tensor, Tensor]


def refuses(encoding: Encoding, place: Place) -> str:
    """Why tiles do not compute an encoding; '' if they do."""
    if "reach" in encoding.blanks:
        return "other engines leave out the keys beyond a window, too, in fewer calls"
    if reason := blanks_refused(encoding, "tiles") or added_refused(encoding):
        return reason
    if "potential" in encoding.blanks and is_narrow(place.dtype):
        return "one number per key for the potential needs the digits of float32"
    return ""


def run(encoding: Encoding, x: Operands, sizes: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused; no gradient."""
    if x.keys <= sizes.tile_keys and not of_tier(encoding.blanks, "relative"):  # one tile, and nothing to leave out
        return sdpa.run(encoding, x, sizes)
    inputs = TileInputs.of(encoding, x)
    bounds = ScoreBounds.of(inputs)
    out = x.v_BHSE.new_empty(*x.q_BHTD.shape[:3], x.v_BHSE.shape[-1])
    c_BHS, rows = inputs.potential_BHS, sizes.tile_queries
    rows = rows if c_BHS is None else gentle_rows(c_BHS[..., inputs.past :], rows, min(rows, LEAST_QUERIES))
    for start in range(0, x.queries, rows):
        queries = slice(start, min(start + rows, x.queries))
        for first_key, heads in bounds.first_keys(queries, sizes.skip_multiple):
            out[:, heads, queries] = merged(list(partials(inputs.of_heads(heads), queries, first_key, sizes)))[0]
    return out


def merged(parts: list[Partial]) -> Partial:
    """Attention to the keys of all parts, which are disjoint: outputs weighted by the softmax of their log-sum-exps."""
    if len(parts) == 1:
        return parts[0]
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    shares = torch.softmax(lses, dim=0).to(outs.dtype)
    return (outs * shares[..., None]).sum(0), lses.logsumexp(0)


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
    potential_BHS: Tensor | None = None
    scratch: Tensor  # memory shared by the results of `product`

    @staticmethod
    def of(encoding: Encoding, x: Operands, potential_BHS: Tensor | None = None) -> TileInputs:
        """The inputs of a call. What a window hides is not in them; relative queries and keys are scaled already.

        The potential is computed unless it is given.
        """
        dtype, heads, keys = x.q_BHTD.dtype, x.q_BHTD.shape[1], x.keys

        def by_distance(blank: str) -> Tensor | None:
            if blank not in encoding.blanks:
                return None
            numbers = at_even_distances(encoding, blank, x).to(dtype)
            return numbers.expand(heads, *numbers.shape[1:])

        table = by_distance("distance_bias")
        table = x.q_BHTD.new_zeros(heads, keys) if table is None else table
        a, b, relative_q = by_distance("relative_keys"), by_distance("relative_queries"), None
        if a is not None:
            a = torch.cat([a, table[..., None]], dim=-1)
            met = encoding.relative_query(x.raw_q_BHTD, x.features_of_queries) * encoding.scale
            relative_q = F.pad(met.to(dtype), (0, 1), value=1)
        return TileInputs(
            scale=encoding.scale,
            past=keys - x.queries,
            q_BHTD=tempered(x, x.q_BHTD),
            k_BHSD=x.k_BHSD,
            v_BHSE=x.v_BHSE,
            table_HN=table,
            a_HND=a,
            b_HND=b,
            c_HNE=by_distance("relative_values"),
            relative_q_BHTD=relative_q,
            relative_k_BHSD=None if b is None else (x.raw_k_BHSD * encoding.scale).to(dtype),
            potential_BHS=potentials(encoding, x) if potential_BHS is None else potential_BHS,
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
        return constant_from(x for x in (self.table_HN, self.a_HND, self.b_HND, self.c_HNE) if x is not None)

    def content(self, queries: slice, keys: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of a tile."""
        return self.q_BHTD[:, :, queries], self.k_BHSD[:, :, keys], self.v_BHSE[:, :, keys]

    def key_bias(self, queries: slice, keys: slice) -> Tensor | None:
        """What a potential adds to the score of each key, `[B, H, 1, C]`; None without a potential."""
        if self.potential_BHS is None:
            return None
        return added_to_keys(self.potential_BHS, self.past + queries.start, keys, self.q_BHTD.dtype)

    @property
    def is_view(self) -> bool:
        """True if the bias depends on the distance alone, so that it is a view of the table."""
        return all(x is None for x in (self.a_HND, self.b_HND, self.c_HNE, self.potential_BHS))


def partials(t: TileInputs, queries: slice, first_key: int, sizes: BlockSizes) -> Iterator[Partial]:
    """Attention of a block of queries to the keys from `first_key` on, over disjoint ranges of keys."""
    query, end, constant_from = t.past + queries.start, t.past + queries.stop, t.constant_from
    near = max(first_key, query - max(1, constant_from) + 1)
    if t.c_HNE is None and near - first_key < sizes.skip_multiple:  # too few far keys for a call of their own
        near = first_key
    if near > first_key:
        yield far_keys(t, queries, slice(first_key, near))
    if constant_from == 0 and near == query:
        yield far_keys(t, queries, slice(query, end), causal=True)
    elif t.is_view:
        yield near_keys(t, queries, slice(near, end), sizes)
    elif t.c_HNE is not None and queries.stop - queries.start > sizes.weighted_queries:
        # Relative values need dense weights: fewer queries at a time see fewer hidden keys.
        few = sizes.weighted_queries
        groups = [slice(start, min(start + few, queries.stop)) for start in range(queries.start, queries.stop, few)]
        outs, lses = zip(*(merged(list(partials(t, group, near, sizes))) for group in groups), strict=True)
        if (c_BHS := t.potential_BHS) is not None:
            # `key_bias` begins at the first query of a group, and that of the far keys at the first of the block.
            drops = (c_BHS[:, :, query, None] - c_BHS[:, :, t.past + group.start, None] for group in groups)
            lses = tuple(lse + drop.to(t.q_BHTD.dtype) for lse, drop in zip(lses, drops, strict=True))
        yield torch.cat(outs, dim=2), torch.cat(lses, dim=2)
    else:
        for start in range(near, end, sizes.tile_keys):
            yield near_keys(t, queries, slice(start, min(start + sizes.tile_keys, end)), sizes)


def far_keys(t: TileInputs, queries: slice, keys: slice, causal: bool = False) -> Partial:
    """Attention to keys at distances where all terms are constant: the bias is a number per query plus one per key."""
    of_keys = t.key_bias(queries, keys)
    if t.b_HND is not None and t.relative_k_BHSD is not None:
        met = (t.relative_k_BHSD[:, :, keys] @ t.b_HND[:, -1, :, None]).mT
        of_keys = met if of_keys is None else of_keys + met
    o_BHRE, lse_BHR = cpu_flash_attention(*t.content(queries, keys), scale=t.scale, bias=of_keys, causal=causal)
    if t.a_HND is not None and t.relative_q_BHTD is not None:
        lse_BHR = lse_BHR + (t.relative_q_BHTD[:, :, queries] @ t.a_HND[:, -1, :, None])[..., 0]
    else:
        lse_BHR = lse_BHR + t.table_HN[:, -1:]
    return (o_BHRE if t.c_HNE is None else o_BHRE + t.c_HNE[:, -1:]), lse_BHR


def near_keys(t: TileInputs, queries: slice, keys: slice, sizes: BlockSizes) -> Partial:
    """Attention to keys whose bias depends on the distance, with the queries in reverse order as skew.py needs them.

    A bias that is not a view of the table is materialised for some heads at a time, at most `tile_entries` numbers.
    """
    count, columns = queries.stop - queries.start, keys.stop - keys.start
    furthest = t.past + queries.stop - 1 - keys.start
    band = t.band(furthest, -(-(count + columns - 1) // COLUMN_MULTIPLE) * COLUMN_MULTIPLE)
    q, k, v = t.content(queries, keys)
    q = q.flip(2)
    if t.is_view:
        bias = skew(band.table_HN[None, :, None], count, columns)
        o_BHRE, lse_BHR = cpu_flash_attention(q, k, v, scale=t.scale, bias=bias)
        return o_BHRE.flip(2), lse_BHR.flip(2)
    relative_q = None if t.relative_q_BHTD is None else t.relative_q_BHTD[:, :, queries].flip(2)
    of_keys = t.key_bias(queries, keys)
    o_BHRE = q.new_empty(*q.shape[:3], v.shape[-1])
    lse_BHR = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
    heads = max(1, sizes.tile_entries // (len(q) * count * band.table_HN.shape[1]))
    for head in range(0, q.shape[1], heads):
        h = slice(head, head + heads)
        if relative_q is not None and band.a_HND is not None:
            bias = skew(t.product(relative_q[:, h], band.a_HND[h]), count, columns)
        else:
            bias = skew(band.table_HN[None, h, None], count, columns)
        if band.b_HND is not None and t.relative_k_BHSD is not None:
            bias = bias + skew_keys(t.relative_k_BHSD[:, h, keys] @ band.b_HND[h].mT, count)
        if of_keys is not None:
            bias = bias + of_keys[:, h]
        if band.c_HNE is None:
            o_BHRE[:, h], lse_BHR[:, h] = cpu_flash_attention(q[:, h], k[:, h], v[:, h], scale=t.scale, bias=bias)
        else:  # the vectors c[i-j] that are added to the values need the weights
            s_BHRC = ((q[:, h] * t.scale) @ k[:, h].mT).add_(bias)
            lse_BHR[:, h] = s_BHRC.logsumexp(-1)
            p_BHRC = s_BHRC.sub_(lse_BHR[:, h][..., None]).exp_()
            o_BHRE[:, h] = p_BHRC @ v[:, h] + unskew(p_BHRC, band.c_HNE.shape[1]) @ band.c_HNE[h]
    return o_BHRE.flip(2), lse_BHR.flip(2)


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
    def of(t: TileInputs) -> ScoreBounds:
        """The bounds for all queries of a call."""
        if t.a_HND is not None or t.b_HND is not None:
            return ScoreBounds(t, None, None)
        furthest_first = t.table_HN.flip(1).cummax(1).values
        q, k = (x.norm(dim=-1).amax((0, 2)) for x in (t.q_BHTD, t.k_BHSD))
        return ScoreBounds(t, furthest_first.flip(1) - t.table_HN[:, :1], abs(t.scale) * q * (k + k))

    def first_keys(self, queries: slice, multiple: int) -> list[tuple[int, list[int]]]:
        """The first key whose weight can be non-zero for any of these queries, with the heads that start there.

        The first keys are rounded down to a multiple, so that heads can share a tile.
        """
        t = self.inputs
        query, heads = t.past + queries.start, t.q_BHTD.shape[1]
        if self.bias_HN is None or self.content_H is None:
            return [(0, list(range(heads)))]
        bound_HS = self.bias_HN[:, : query + 1].flip(1) + self.content_H[:, None]
        if t.potential_BHS is not None:
            own_BH = t.potential_BHS[:, :, query : t.past + queries.stop].amax(-1, keepdim=True)
            bound_HS = bound_HS + (own_BH - t.potential_BHS[:, :, : query + 1]).amax(0)
        firsts = ((bound_HS >= SMALLEST_EXPONENT_FLOAT32).int().argmax(1) // multiple * multiple).tolist()
        if queries.stop - queries.start < multiple:  # too few queries for separate calls to pay
            return [(min(firsts), list(range(heads)))]
        return [(first, [h for h in range(heads) if firsts[h] == first]) for first in sorted(set(firsts))]

    def first_keys_of_blocks(self, rows: int) -> Tensor:
        """Keys before which no weight is non-zero, for every head and block of `rows` queries, `[H, blocks]`.

        Of the distance bias and the potential, each is bounded beside the largest value of the other.
        """
        t = self.inputs
        assert self.bias_HN is not None
        assert self.content_H is not None
        count = t.q_BHTD.shape[2]
        query_N = t.past + torch.arange(0, count, rows, device=self.bias_HN.device)  # the first of each block
        spare_HN = (self.content_H[:, None] - SMALLEST_EXPONENT_FLOAT32).double().expand(-1, len(query_N))
        by_potential = torch.zeros_like(query_N)
        if (c_BHS := t.potential_BHS) is not None:
            own_BHN = F.pad(c_BHS[..., t.past :].double(), (0, -count % rows), value=-math.inf)
            own_BHN = own_BHN.unflatten(-1, (-1, rows)).amax(-1)
            rise_BHS = (-c_BHS).double().nan_to_num(math.inf, math.inf, -math.inf).cummax(-1).values
            least_BHN = -(own_BHN + spare_HN + self.bias_HN[:, :1])
            by_potential = torch.searchsorted(rise_BHS, least_BHN.nan_to_num(-math.inf, math.inf, -math.inf)).amin(0)
            spare_HN = spare_HN + (own_BHN + rise_BHS[..., query_N]).amax(0)
        falls_HN = -self.bias_HN.double().contiguous()
        spare_HN = spare_HN.nan_to_num(math.inf, math.inf, -math.inf).contiguous()
        by_distance = query_N + 1 - torch.searchsorted(falls_HN, spare_HN, right=True)
        return torch.maximum(by_potential, by_distance).clamp(min=0).minimum(query_N)


def hidden_bias(dtype: torch.dtype) -> float:
    """The bias of a hidden key: finite, as -inf would give NaN for a query that sees no key of a tile."""
    return max(-1e30, torch.finfo(dtype).min / 2)


def _descending(x_HN: Tensor, furthest: int, count: int, fill: float = 0) -> Tensor:
    """Entries `[H, count, ...]` for the distances from `furthest` down; `fill` for negative distances."""
    nearest = furthest - count + 1
    inside = x_HN[:, max(0, nearest) : furthest + 1].flip(1)
    return F.pad(inside, (*[0, 0] * (x_HN.ndim - 2), 0, max(0, -nearest)), value=fill)
