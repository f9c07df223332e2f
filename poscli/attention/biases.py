"""The bias, the sum of all terms added to q . k, block by block over the queries; a strided view where possible.

Keys that no query of a block can see, because they lie in the future or beyond a window, are cut away. The rows of a
bias are in reverse order of the queries, which makes the views of skew.py possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention import grids
from poscli.attention.sizes import BlockSizes
from poscli.attention.skew import descending, skew, skew_keys
from poscli.equation import Encoding, Operands
from poscli.equation.blanks import of_tier
from poscli.equation.operands import snapped
from poscli.equation.reference import TERMS

# Terms that need less than a number for every pair where positions are evenly spaced.
NEVER_BY_PAIRS = ("distance_bias", "relative_keys", "relative_queries", "potential")


def biases(encoding: Encoding) -> frozenset[str]:
    """The blanks of an encoding that add to the scores; a key out of reach has the bias -inf."""
    return encoding.blanks & {*TERMS, "reach"}


def biased_blocks(
    encoding: Encoding, x: Operands, sizes: BlockSizes, *, dense: bool, most: int | None = None
) -> Iterator[tuple[Operands, Tensor]]:
    """Blocks of queries in order, each with its bias `[B or 1, H or 1, T, S]`, rows reversed.

    `dense` says that the caller materialises scores `[B, H, T, S]`, so blocks must be smaller. A block has at most
    `most` queries.
    """
    rows = min(_queries_of_a_block(encoding, x, sizes, dense), most or x.queries)
    if grids.fits(encoding, x):
        for block, of_distance in grids.grid_blocks(encoding, x, min(rows, sizes.block_queries)):
            yield block, _tempered(encoding, _on_grid(encoding, block, of_distance), block)
        return
    table, vectors = _table(encoding, x, rows), _vectors(encoding, x, rows)
    reach = x.reach or x.keys
    for start in range(0, x.queries, rows):
        first_key = 0 if x.sinks else max(0, x.keys - x.queries + start - reach + 1)
        block = x.block(start, min(start + rows, x.queries), first_key)
        unseen = x.keys - block.keys
        own = {blank: v_HND[:, unseen:] for blank, v_HND in vectors.items()}
        bias = _bias(encoding, block, table[..., unseen:], own)
        if x.sinks:  # the visible distances differ from query to query, so no table can hide the others
            bias = bias.masked_fill(~block.visible().flip(0), -math.inf)
        yield block, _tempered(encoding, bias, block)


def joined(outputs: Iterable[Tensor], x: Operands) -> Tensor:
    """The outputs of consecutive blocks of queries as one tensor, `[B, H, T, E]`."""
    if torch.is_grad_enabled():
        return torch.cat(list(outputs), dim=2)
    # The output is preallocated: concatenating results of many sizes would fragment the heap.
    out_BHTE, start = x.v_BHSE.new_empty(*x.q_BHTD.shape[:3], x.v_BHSE.shape[-1]), 0
    for o_BHTE in outputs:
        out_BHTE[:, :, start : start + o_BHTE.shape[2]] = o_BHTE
        start += o_BHTE.shape[2]
    return out_BHTE


def _by_pairs(encoding: Encoding) -> list[str]:
    """The terms of an encoding that are computed for every pair of tokens, whatever their positions."""
    return [blank for blank in TERMS if blank in encoding.blanks and blank not in NEVER_BY_PAIRS]


def _queries_of_a_block(encoding: Encoding, x: Operands, sizes: BlockSizes, dense: bool) -> int:
    """Queries of a block, so that its materialised tensors stay within `block_entries`."""
    blanks = encoding.blanks
    per_pair = 0
    if dense or blanks & {"relative_keys", "relative_queries"}:
        per_pair = x.q_BHTD.shape[0] * x.q_BHTD.shape[1]
    if _by_pairs(encoding) or (x.step is None and blanks & TERMS.keys()):
        per_pair = max(per_pair, sizes.entries_per_pair)
    if of_tier(encoding.blanks, "pair") and "features" in blanks:  # float64 for each text and head
        per_pair = max(per_pair, 2 * x.q_BHTD.shape[0] * x.q_BHTD.shape[1])
    if x.sinks or ("temperature" in blanks and biases(encoding)):
        per_pair = max(per_pair, x.q_BHTD.shape[1])
    rows = 4 * sizes.block_queries if x.queries >= 8 * sizes.block_queries else sizes.block_queries
    if per_pair:
        rows = min(rows, max(16, sizes.block_entries // (per_pair * x.keys)))
    return min(rows, x.queries)


def _table(encoding: Encoding, x: Operands, rows: int) -> Tensor:
    """The distance bias `[1, H or 1, 1, keys + rows - 1]` by descending distance; -inf where a key is hidden."""
    if "distance_bias" in encoding.blanks and x.step is not None:
        by_distance = at_even_distances(encoding, "distance_bias", x).to(x.q_BHTD.dtype)
    else:
        by_distance = x.q_BHTD.new_zeros(1, x.keys)
    if (reach := x.reach) is not None and reach < x.keys and not x.sinks:
        by_distance = F.pad(by_distance[:, :reach], (0, x.keys - reach), value=-math.inf)
    return descending(by_distance, rows, fill=-math.inf)[None, :, None]


def _vectors(encoding: Encoding, x: Operands, rows: int) -> dict[str, Tensor]:
    """Relative vectors of each blank, `[H or 1, keys + rows - 1, D]` by descending distance; 0 for the future."""
    if x.step is None:
        return {}
    blanks = [blank for blank in ("relative_keys", "relative_queries") if blank in encoding.blanks]
    return {blank: descending(at_even_distances(encoding, blank, x), rows, fill=0) for blank in blanks}


def at_even_distances(encoding: Encoding, blank: str, x: Operands) -> Tensor:
    """A blank that is a function of the distance, at the distances of `even_distances`; entries of earlier calls are
    reused.
    """
    known = x.by_distance
    if known is None:
        return cast("Tensor", getattr(encoding, blank)(even_distances(x)))
    past = known.get(blank)
    first = 0 if past is None else past.shape[1]
    if first < x.keys:
        new = getattr(encoding, blank)(even_distances(x)[first:])
        known[blank] = new if past is None else torch.cat([past, new], dim=1)
    return known[blank][:, : x.keys]


def even_distances(x: Operands, tokens: int | None = None) -> Tensor:
    """The distances of evenly spaced positions, ascending from 0: as many as `tokens`, or as there are keys."""
    assert x.step is not None
    count = torch.arange(tokens or x.keys, device=x.pos_S.device)
    return count if x.step == 1 else snapped((count.double() * x.step).to(x.pos_S.dtype))


def _bias(encoding: Encoding, x: Operands, table: Tensor, vectors: dict[str, Tensor]) -> Tensor:
    """The bias of a block, `[B or 1, H or 1, T, S]`, rows reversed, before any temperature."""
    rows, keys = x.queries, x.keys
    bias = skew(table, rows, keys)
    if x.step is None:  # uneven distances: every term is computed pair by pair
        return sum((_term(encoding, blank, x).flip(-2) for blank in TERMS if blank in encoding.blanks), bias)
    if "relative_keys" in vectors:
        a_HND = vectors["relative_keys"]
        q = (encoding.relative_query(x.raw_q_BHTD).flip(2) * encoding.scale).to(bias.dtype)
        bias = bias + skew(q @ a_HND.to(q.dtype).mT, rows, keys)
    if "relative_queries" in vectors:
        k = (x.raw_k_BHSD * encoding.scale).to(bias.dtype)
        bias = bias + _met_by_keys(k, vectors["relative_queries"], rows)
    if "potential" in encoding.blanks:
        sees_rows = of_tier(encoding.blanks, "row")
        term = _term(encoding, "potential", x).flip(-2) if sees_rows else _potential_of_keys(encoding, x)
        bias = bias + term
    for blank in _by_pairs(encoding):
        term = _term(encoding, blank, x).flip(-2)
        term = term if term.ndim == 4 else term[None]
        # Adding to the dense term keeps it contiguous; a sum that begins with the view would inherit its strides.
        whole = term.shape == torch.broadcast_shapes(term.shape, bias.shape)
        bias = term.add_(bias) if whole else term + bias
    return bias


def _on_grid(encoding: Encoding, x: Operands, of_distance: Tensor) -> Tensor:
    """The bias of a block on a grid, `[B or 1, H or 1, T, S]`, rows reversed, from that of `distance_bias`."""
    others = (encoding.blanks & TERMS.keys()) - {"distance_bias"}
    bias = sum((_term(encoding, blank, x).flip(-2) for blank in TERMS if blank in others), of_distance)
    return bias if x.reach is None else bias.masked_fill(~x.visible().flip(0), -math.inf)


def _term(encoding: Encoding, blank: str, x: Operands) -> Tensor:
    """A term of the scores for every pair, from the fast form of its blank where one exists."""
    if blank == "bias":
        return encoding.fast_bias(x.pos_T, x.pos_S, x.features_of_queries, x.features_BHSF).to(x.q_BHTD.dtype)
    return TERMS[blank](encoding, x)


def _potential_of_keys(encoding: Encoding, x: Operands) -> Tensor:
    """Minus the potential of each key, `[B, H, 1, S]`: c_i is constant along a row, so the softmax cancels it.

    The potential of the block's first query is added, which keeps the numbers small enough for float32.
    """
    assert x.features_BHSF is not None
    c_BHS = encoding.potential(x.features_BHSF)
    return (c_BHS[..., x.keys - x.queries, None] - c_BHS)[:, :, None].to(x.q_BHTD.dtype)


def _tempered(encoding: Encoding, bias: Tensor, x: Operands) -> Tensor:
    """The bias times the temperature of each query; -inf stays -inf, even where the temperature is 0."""
    if x.temperature_HT is None or not biases(encoding):
        return bias
    hidden = bias == -math.inf
    factor_HT1 = x.temperature_HT.flip(1)[..., None].to(bias.dtype)
    return (bias.masked_fill(hidden, 0) * factor_HT1).masked_fill(hidden, -math.inf)


def _met_by_keys(k_BHSD: Tensor, b_HND: Tensor, rows: int) -> Tensor:
    """k_j . b[i-j], `[B, H, rows, keys]`, in chunks of keys: each meets only its distances to the block."""
    if rows == 1:  # a chunk would be a single key
        return (k_BHSD * b_HND[:, : k_BHSD.shape[2]].to(k_BHSD.dtype)).sum(-1)[:, :, None]
    parts: list[Tensor] = []
    for k in k_BHSD.split(rows, dim=2):
        first = sum(part.shape[-1] for part in parts)
        met = b_HND[:, first : first + k.shape[2] + rows - 1].to(k.dtype)
        parts.append(skew_keys(k @ met.mT, rows))
    return torch.cat(parts, dim=-1)
