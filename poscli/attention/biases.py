"""Everything that is added to q . k, block by block over the queries, as views where it can be (see skew.py).

Keys that no query of a block can see, because they lie in its future or beyond a window, are cut away. Rows of a
block come in reverse order of the queries: that is what makes the views possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention.operands import Operands, snapped
from poscli.attention.reference import TERMS
from poscli.attention.skew import descending, skew, skew_keys
from poscli.encodings.blanks import TIERS

BIASES = {*TERMS, "reach"}  # blanks that add to the scores; what is out of reach is -inf
# Queries of a block whose bias is a view. torch's CPU kernel works through 256 queries at a time if it is given 768
# or more, 64 or 32 otherwise, so long inputs take 4 blocks at once: 767 ms against 1,037 at 16384 tokens and 8 heads
# of 16.
BLOCK = 256
ENTRIES = 2**21  # numbers that a block may materialise where it is not: 8 MiB of float32; 2**23 is no faster
PER_PAIR = 16  # numbers that a bias made pair by pair may need on the way; who needs more takes the pairs in parts


def biased_blocks(x: Operands, dense: bool, most: int | None = None) -> Iterator[tuple[Operands, Tensor]]:
    """Blocks of queries in order, each with its bias `[B or 1, H or 1, T, S]`, rows reversed.

    `dense`: the caller materialises scores `[B, H, T, S]`, so blocks must be smaller. `most`: the most queries of one.
    """
    rows = min(_rows(x, dense), most or x.queries)
    table, vectors = _table(x, rows), _vectors(x, rows)
    reach = x.encoding.reach or x.keys
    for start in range(0, x.queries, rows):
        first_key = max(0, x.keys - x.queries + start - reach + 1)
        block = x.block(start, min(start + rows, x.queries), first_key)
        unseen = x.keys - block.keys
        own = {blank: v_HND[:, unseen:] for blank, v_HND in vectors.items()}
        yield block, _tempered(_bias(block, table[..., unseen:], own), block)


def _rows(x: Operands, dense: bool) -> int:
    """Queries of a block, so that what it must materialise stays within ENTRIES."""
    blanks = x.encoding.blanks
    per_pair = 0
    if dense or blanks & {"relative_keys", "relative_queries"}:
        per_pair = x.q_BHTD.shape[0] * x.q_BHTD.shape[1]
    if "bias" in blanks or (x.step is None and blanks & set(TERMS)):
        per_pair = max(per_pair, PER_PAIR)
    if blanks & set(TIERS["pair"]) and "features" in blanks:  # one for each text and head, in float64
        per_pair = max(per_pair, 2 * x.q_BHTD.shape[0] * x.q_BHTD.shape[1])
    if "temperature" in blanks and blanks & BIASES:
        per_pair = max(per_pair, x.q_BHTD.shape[1])
    rows = 4 * BLOCK if x.queries >= 8 * BLOCK else BLOCK
    if per_pair:
        rows = min(rows, max(16, ENTRIES // (per_pair * x.keys)))
    return min(rows, x.queries)


def _table(x: Operands, rows: int) -> Tensor:
    """One number per head and distance, `[1, H or 1, 1, keys + rows - 1]`, descending, -inf for the future."""
    if "distance_bias" in x.encoding.blanks and x.step is not None:
        by_distance = x.encoding.distance_bias(distances(x)).to(x.q_BHTD.dtype)
    else:
        by_distance = x.q_BHTD.new_zeros(1, x.keys)
    if (reach := x.encoding.reach) is not None and reach < x.keys:
        by_distance = F.pad(by_distance[:, :reach], (0, x.keys - reach), value=-math.inf)
    return descending(by_distance, rows, fill=-math.inf)[None, :, None]


def _vectors(x: Operands, rows: int) -> dict[str, Tensor]:
    """Relative vectors by blank, descending: `[H or 1, keys + rows - 1, D]`, 0 for the future."""
    if x.step is None:
        return {}
    blanks = [blank for blank in ("relative_keys", "relative_queries") if blank in x.encoding.blanks]
    return {blank: descending(getattr(x.encoding, blank)(distances(x)), rows, fill=0) for blank in blanks}


def distances(x: Operands) -> Tensor:
    """The distances of evenly spaced positions, ascending from 0: `[keys]`."""
    assert x.step is not None
    count = torch.arange(x.keys, device=x.pos_S.device)
    return count if x.step == 1 else snapped((count.double() * x.step).to(x.pos_S.dtype))


def _bias(x: Operands, table: Tensor, vectors: dict[str, Tensor]) -> Tensor:
    encoding, rows, keys = x.encoding, x.queries, x.keys
    bias = skew(table, rows, keys)
    if x.step is None:  # no views: every pair for itself
        return sum((term(x).flip(-2) for blank, term in TERMS.items() if blank in encoding.blanks), bias)
    if "relative_keys" in vectors:
        a_HND = vectors["relative_keys"]
        q = (encoding.relative_query(x.raw_q_BHTD).flip(2) * encoding.scale).to(bias.dtype)
        bias = bias + skew(q @ a_HND.to(q.dtype).mT, rows, keys)
    if "relative_queries" in vectors:
        k = (x.raw_k_BHSD * encoding.scale).to(bias.dtype)
        bias = bias + _met_by_keys(k, vectors["relative_queries"], rows)
    if "potential" in encoding.blanks:
        bias = bias + (TERMS["potential"](x).flip(-2) if encoding.blanks & set(TIERS["row"]) else _of_keys(x))
    if "bias" in encoding.blanks:
        term = TERMS["bias"](x).flip(-2)
        term = term if term.ndim == 4 else term[None]
        # a sum that began with the view would be laid out like one, and copied afterwards
        bias = term.add_(bias) if len(term) >= len(bias) else term + bias
    return bias


def _of_keys(x: Operands) -> Tensor:
    """Minus the potential of each key, `[B, H, 1, S]`: c_i is the same for all of a row, and a softmax takes no notice.

    Seen from the block's first query, so that float32 holds the differences that matter.
    """
    assert x.features_BHSF is not None
    c_BHS = x.encoding.potential(x.features_BHSF)
    return (c_BHS[..., x.keys - x.queries, None] - c_BHS)[:, :, None].to(x.q_BHTD.dtype)


def _tempered(bias: Tensor, x: Operands) -> Tensor:
    """The bias times the temperature of each query; what is hidden stays so, whatever that is."""
    if x.temperature_HT is None or not x.encoding.blanks & BIASES:
        return bias
    hidden = bias == -math.inf
    factor_HT1 = x.temperature_HT.flip(1)[..., None].to(bias.dtype)
    return (bias.masked_fill(hidden, 0) * factor_HT1).masked_fill(hidden, -math.inf)


def _met_by_keys(k_BHSD: Tensor, b_HND: Tensor, rows: int) -> Tensor:
    """k_j . b[i-j] `[B, H, rows, keys]`, some keys at a time: a key meets the distances of this block only."""
    parts: list[Tensor] = []
    for k in k_BHSD.split(rows, dim=2):
        first = sum(part.shape[-1] for part in parts)
        met = b_HND[:, first : first + k.shape[2] + rows - 1].to(k.dtype)
        parts.append(skew_keys(k @ met.mT, rows))
    return torch.cat(parts, dim=-1)
