"""The engine `tiles`, for evaluation on CPU: torch's fused kernel over tiles of queries and keys.

The results of several tiles are merged by their log-sum-exp. A block of queries seldom needs a dense bias:

- Beyond some distance the terms of most encodings are constant (the last bucket of T5, a clipped vector, nothing at
  all). Those far keys take the kernel without a bias, and one number per query is added to their log-sum-exp.
- Nearer keys get a view of the table, or a bias computed tile by tile, small enough for the cache.
- Keys whose decaying bias leaves them the weight 0 in float32 are skipped (`ScoreBounds`).

Shapes: B batch, H heads, R queries of a block, C keys of a tile, D and E head widths of keys and values, N distances
of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from poscli.attention import sdpa
from poscli.attention.biases import biases
from poscli.attention.fused import cpu_flash_attention
from poscli.attention.place import ON_GRID_REFUSED, Place, blanks_refused
from poscli.attention.sizes import BlockSizes
from poscli.attention.skew import skew, skew_keys, unskew
from poscli.attention.tile_inputs import DistanceBand, ScoreBounds, TileInputs
from poscli.equation import Encoding, Operands
from poscli.equation.blanks import of_tier

# Attention to some of the keys: the output [B, H, R, E], and the log-sum-exp [B, H, R] of the scores.
Partial = tuple[Tensor, Tensor]


def refuses(encoding: Encoding, _: Place) -> str:
    """Why tiles do not compute an encoding; '' if they do."""
    if "reach" in encoding.blanks:
        return "other engines leave out the keys beyond a window, too, in fewer calls"
    if reason := blanks_refused(encoding, "tiles"):
        return reason
    if encoding.axes == 2 and biases(encoding) - {"reach", "potential"}:
        return ON_GRID_REFUSED
    if "temperature" in encoding.blanks and biases(encoding):
        return "a temperature multiplies what depends on the distance"
    if "positions" in encoding.blanks and biases(encoding):
        return "distances may be uneven"
    return ""


def run(encoding: Encoding, x: Operands, sizes: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused; no gradient."""
    if x.keys <= sizes.tile_keys and not of_tier(encoding.blanks, "relative"):  # one tile, and nothing to leave out
        return sdpa.run(encoding, x, sizes)
    inputs = TileInputs.of(encoding, x)
    bounds = ScoreBounds.of(inputs)
    out = x.v_BHSE.new_empty(*x.q_BHTD.shape[:3], x.v_BHSE.shape[-1])
    for start in range(0, x.queries, sizes.tile_queries):
        queries = slice(start, min(start + sizes.tile_queries, x.queries))
        for first_key, heads in bounds.first_keys(queries, sizes.skip_multiple):
            out[:, heads, queries] = merged(list(partials(inputs.of_heads(heads), queries, first_key, sizes)))[0]
    return out


def partials(t: TileInputs, queries: slice, first_key: int, sizes: BlockSizes) -> Iterator[Partial]:
    """Attention of a block of queries to the keys from `first_key` on, over disjoint ranges of keys."""
    query, end, constant_from = t.past + queries.start, min(t.past + queries.stop, t.keys), t.constant_from
    if first_key >= end:
        return
    near = query if constant_from <= 1 else max(first_key, query - constant_from + 1)
    near = min(near, end)
    if near - first_key < (sizes.skip_multiple if t.c_HNE is None else 1):  # too few far keys for a call of their own
        near = first_key
    if near > first_key:
        yield far_keys(t, queries, slice(first_key, near))
    if near == end:
        return
    if constant_from == 0 and near == query:
        yield far_keys(t, queries, slice(query, end), causal=True)
    elif t.is_view:
        yield near_keys(t, queries, slice(near, end), sizes)
    elif t.c_HNE is not None and queries.stop - queries.start > sizes.weighted_queries:
        # Relative values need dense weights: fewer queries at a time see fewer hidden keys.
        few = sizes.weighted_queries
        groups = [slice(start, min(start + few, queries.stop)) for start in range(queries.start, queries.stop, few)]
        outs, lses = zip(*(merged(list(partials(t, group, near, sizes))) for group in groups), strict=True)
        if t.potential_BHS is not None:  # `key_bias` starts at the first query of a group; the far keys' at the block's
            lses = tuple(lse + t.potential_drop(queries, group) for lse, group in zip(lses, groups, strict=True))
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
    """Attention to keys whose bias depends on the distance, with the queries in reverse order as skew.py needs them."""
    count, columns, multiple = queries.stop - queries.start, keys.stop - keys.start, sizes.column_multiple
    furthest = t.past + queries.stop - 1 - keys.start
    band = t.band(furthest, -(-(count + columns - 1) // multiple) * multiple)
    if t.is_view:
        q, k, v = t.content(queries, keys)
        bias = skew(band.table_HN[None, :, None], count, columns)
        o_BHRE, lse_BHR = cpu_flash_attention(q.flip(2), k, v, scale=t.scale, bias=bias)
    else:
        o_BHRE, lse_BHR = _near_keys_by_heads(t, band, queries, keys, sizes.tile_entries)
    return o_BHRE.flip(2), lse_BHR.flip(2)


def _near_keys_by_heads(t: TileInputs, band: DistanceBand, queries: slice, keys: slice, entries: int) -> Partial:
    """Attention of reversed queries with a materialised bias of at most `entries` numbers, some heads at a time."""
    q, k, v = t.content(queries, keys)
    q, relative_q, of_keys = q.flip(2), t.relative_q_BHTD, t.key_bias(queries, keys)
    relative_q = None if relative_q is None else relative_q[:, :, queries].flip(2)
    count, columns = q.shape[2], k.shape[2]
    o_BHRE = q.new_empty(*q.shape[:3], v.shape[-1])
    lse_BHR = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
    heads = max(1, entries // (len(q) * count * band.table_HN.shape[1]))
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
            found = cpu_flash_attention(q[:, h], k[:, h], v[:, h], scale=t.scale, bias=bias)
        else:
            found = _with_relative_values(q[:, h] * t.scale, k[:, h], v[:, h], bias, band.c_HNE[h])
        o_BHRE[:, h], lse_BHR[:, h] = found
    return o_BHRE, lse_BHR


def _with_relative_values(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, c_HNE: Tensor) -> Partial:
    """Attention with vectors c[i-j] added to the values, which needs the weights; queries scaled and reversed."""
    s_BHRC = (q @ k.mT).add_(bias)
    lse_BHR = s_BHRC.logsumexp(-1)
    p_BHRC = s_BHRC.sub_(lse_BHR[..., None]).exp_()
    return p_BHRC @ v + unskew(p_BHRC, c_HNE.shape[1]) @ c_HNE, lse_BHR


def merged(parts: list[Partial]) -> Partial:
    """Attention to the keys of all parts, which are disjoint: outputs weighted by the softmax of their log-sum-exps."""
    if len(parts) == 1:
        return parts[0]
    outs, lses = (torch.stack(each) for each in zip(*parts, strict=True))
    shares = torch.softmax(lses, dim=0).to(outs.dtype)
    return (outs * shares[..., None]).sum(0), lses.logsumexp(0)
