"""The bias, the sum of all terms added to q . k, block by block over the queries; a strided view where possible.

Keys that no query of a block can see, because they lie in the future or beyond a window, are cut away. The rows of a
bias are in reverse order of the queries, which makes the views of skew.py possible.

On a grid, the bias of the queries of one row of the grid and the keys of another is a skewed view of the 2w - 1
distances of columns. Side by side for all distances of rows, the largest first, these views are the bias of the last
row of queries. The row of queries before it has the same bias w keys earlier. So the bias of every block of m rows is
a slice of one matrix G for the last block, which takes O(block x length) memory.

Shapes: B batch, T queries of a block, S keys, H heads, D head width, N distances; R rows of the grid, w columns of the
grid, m rows of queries in a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention.place import BlockSizes
from poscli.attention.skew import descending, skew, skew_keys
from poscli.equation import Encoding, Operands
from poscli.equation.blanks import of_tier
from poscli.equation.operands import snapped
from poscli.equation.reference import TERMS

# Terms that need less than a number for every pair where positions are evenly spaced.
NEVER_BY_PAIRS = ("distance_bias", "relative_keys", "relative_queries", "potential")

ENTRIES_PER_PAIR = 16  # temporaries per pair assumed for a pair bias; larger formulas work in chunks
STEEP = 128.0  # by which a potential may change within a block: float32 then rounds an exponent by at most 2^-18


def biases(encoding: Encoding) -> frozenset[str]:
    """The blanks of an encoding that add to the scores; a key out of reach has the bias -inf."""
    return encoding.blanks & {*TERMS, "reach"}


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether a dtype has too few digits for one number per key: a potential then needs a number for each pair.

    The numbers of the keys grow with the block, and bfloat16 rounds those above 256 to even ones; the differences
    between a query and the keys near it, which have the weight, stay small.
    """
    return dtype.itemsize < 4


def is_gentle(c_BHT: Tensor, rows: int) -> bool:
    """Whether one number per key, for blocks of so many queries, is small enough for float32.

    The numbers of the keys grow with the change of the potential `c_BHT` within a block, and so does their rounding.
    """
    first = torch.arange(0, c_BHT.shape[2], rows, device=c_BHT.device)
    last = (first + rows).clamp(max=c_BHT.shape[2]) - 1
    return float((c_BHT[..., last] - c_BHT[..., first]).detach().abs().max()) <= STEEP


def _is_steep(c_BHS: Tensor, rows: int) -> bool:
    """Whether the potential of a block's queries, the last `rows` tokens, changes too much for one number per key."""
    return rows > 1 and not is_gentle(c_BHS[..., -rows:], rows)


def gentle_rows(c_BHT: Tensor, most: int, least: int) -> int:
    """The queries of a block within which a potential is gentle: `most`, halved until it is, or at `least`."""
    rows = most
    while rows > least and not is_gentle(c_BHT, rows):
        rows = max(least, rows // 2 // least * least)
    return rows


def biased_blocks(
    encoding: Encoding, x: Operands, sizes: BlockSizes, *, dense: bool, most: int | None = None
) -> Iterator[tuple[Operands, Tensor]]:
    """Blocks of queries in order, each with its bias `[B or 1, H or 1, T, S]`, rows reversed.

    `dense` says that the caller materialises scores `[B, H, T, S]`, so blocks must be smaller. A block has at most
    `most` queries.
    """
    rows = min(_queries_of_a_block(encoding, x, sizes, dense), most or x.queries)
    # On a grid, a table of distances pays if there are enough queries.
    if x.columns is not None and "distance_bias" in encoding.blanks and x.queries >= x.columns:
        for block, bias in _grid_blocks(encoding, x, min(rows, sizes.block_queries)):
            for blank in TERMS:
                if blank in encoding.blanks and blank != "distance_bias":
                    bias = bias + _term(encoding, blank, block).flip(-2)
            bias = bias if x.reach is None else bias.masked_fill(~block.visible().flip(0), -math.inf)
            yield block, _tempered(encoding, bias, block)
        return
    table, reach, vectors = _table(encoding, x, rows), x.reach or x.keys, {}
    for blank in ("relative_keys", "relative_queries"):
        if blank in encoding.blanks and x.step is not None:
            vectors[blank] = descending(at_even_distances(encoding, blank, x), rows, fill=0)
    for start in range(0, x.queries, rows):
        first_key = 0 if x.sinks else max(0, x.keys - x.queries + start - reach + 1)
        block = x.block(start, min(start + rows, x.queries), first_key)
        unseen = x.keys - block.keys
        seen = {blank: v_HND[:, unseen:] for blank, v_HND in vectors.items()}
        bias = _bias(encoding, block, table[..., unseen:], seen)
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
        per_pair = max(per_pair, ENTRIES_PER_PAIR)
    if of_tier(encoding.blanks, "pair") and "features" in blanks:  # float64 for each text and head
        per_pair = max(per_pair, 2 * x.q_BHTD.shape[0] * x.q_BHTD.shape[1])
    if x.sinks or x.null_score_H is not None or ("temperature" in blanks and biases(encoding)):
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


def at_even_distances(encoding: Encoding, blank: str, x: Operands) -> Tensor:
    """A blank that is a function of the distance, at those of `even_distances`; reuses the entries of earlier calls."""
    known = x.by_distance
    if known is None:
        return cast("Tensor", getattr(encoding, blank)(even_distances(x)))
    past = known.get(blank)
    first = 0 if past is None else past.shape[1]
    if first < x.keys:
        new = getattr(encoding, blank)(even_distances(x)[first:])
        known[blank] = new if past is None else torch.cat([past, new], dim=1)
    return known[blank][:, : x.keys]


def potentials(encoding: Encoding, x: Operands) -> Tensor | None:
    """The blank `potential` of all keys, `[B, H, S]`; None if the encoding does not fill it."""
    if "potential" not in encoding.blanks:
        return None
    assert x.features_BHSF is not None
    return encoding.potential(x.features_BHSF)


def added_to_keys(c_BHS: Tensor, query: int, keys: slice, dtype: torch.dtype) -> Tensor:
    """What the potential c adds to the scores of a block, as one number per key, `[B, H, 1, S]`: c_query - c_j.

    The potential of each query is constant along a row, so the softmax cancels it. In its place stands that of the
    block's first query, `query`, which keeps the numbers small enough for float32.
    """
    return (c_BHS[..., query, None] - c_BHS[..., keys])[:, :, None].to(dtype)


def constant_from(by_distance: Iterable[Tensor]) -> int:
    """The first distance from which on no tensor `[H or 1, n, ...]`, ascending from distance 0, changes any more."""
    first = 0
    for x_HN in by_distance:
        differs = (x_HN != x_HN[:, -1:]).movedim(1, 0).flatten(1).any(1).nonzero()
        first = max(first, int(differs[-1]) + 1 if len(differs) else 0)
    return first


def at_distances_of_cells(encoding: Encoding, x: Operands) -> Tensor:
    """The distance bias on a grid, `[H or 1, (R + 1)(2w - 1) - w]`: distances of rows descend from R to 0.

    For each, the distances of columns descend from w - 1 to 1 - w. The last w are left out: they are those to the cell
    to predict and to the cells after it, which no formula ever meets.
    """
    w, device = x.columns, x.pos_S.device
    assert w is not None
    down = torch.arange(math.ceil(x.keys / w), -1, -1, device=device)
    right = torch.arange(w - 1, -w, -1, device=device)
    return encoding.distance_bias(torch.cartesian_prod(down, right)[:-w]).to(x.q_BHTD.dtype)


def even_distances(x: Operands) -> Tensor:
    """The distances of evenly spaced positions, ascending from 0: as many as there are keys."""
    assert x.step is not None
    count = torch.arange(x.keys, device=x.pos_S.device)
    return count if x.step == 1 else snapped((count.double() * x.step).to(x.pos_S.dtype))


def _bias(encoding: Encoding, x: Operands, table: Tensor, vectors: dict[str, Tensor]) -> Tensor:
    """The bias of a block, `[B or 1, H or 1, T, S]`, rows reversed, before any temperature."""
    rows, keys = x.queries, x.keys
    bias = skew(table, rows, keys)
    if x.step is None:  # uneven distances: every term is computed pair by pair
        return sum((_term(encoding, blank, x).flip(-2) for blank in TERMS if blank in encoding.blanks), bias)
    if "relative_keys" in vectors:
        a_HND = vectors["relative_keys"]
        q = (encoding.relative_query(x.raw_q_BHTD, x.features_of_queries).flip(2) * encoding.scale).to(bias.dtype)
        bias = bias + skew(q @ a_HND.to(q.dtype).mT, rows, keys)
    if "relative_queries" in vectors:
        k = (x.raw_k_BHSD * encoding.scale).to(bias.dtype)
        bias = bias + _met_by_keys(k, vectors["relative_queries"], rows)
    c_BHS = potentials(encoding, x)
    if c_BHS is not None and (of_tier(encoding.blanks, "row") or is_narrow(bias.dtype) or _is_steep(c_BHS, rows)):
        bias = bias + _term(encoding, "potential", x).flip(-2)
    elif c_BHS is not None:
        bias = bias + added_to_keys(c_BHS, keys - rows, slice(None), x.q_BHTD.dtype)
    for blank in _by_pairs(encoding):
        term = _term(encoding, blank, x).flip(-2)
        term = term if term.ndim == 4 else term[None]
        # Adding to the dense term keeps it contiguous; a sum that begins with the view would inherit its strides.
        whole = term.shape == torch.broadcast_shapes(term.shape, bias.shape)
        bias = term.add_(bias) if whole else term + bias
    return bias


def _term(encoding: Encoding, blank: str, x: Operands) -> Tensor:
    """A term of the scores for every pair, from the fast form of its blank where one exists."""
    if blank == "bias":
        return encoding.fast_bias(x.pos_T, x.pos_S, x.features_of_queries, x.features_BHSF).to(x.q_BHTD.dtype)
    return TERMS[blank](encoding, x)


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


def _grid_blocks(encoding: Encoding, x: Operands, most: int) -> Iterator[tuple[Operands, Tensor]]:
    """Blocks of about `most` queries in order, each with its distance bias `[1, H or 1, T, S]`, rows reversed.

    Every block but the first begins with a row of the grid, and the last one ends with the last query. Keys of the
    future have the bias -inf. Keys beyond the reach of all queries of a block are left out; others are not hidden.
    """
    assert x.columns is not None
    w, first = x.columns, x.keys - x.queries
    rows, first_row, reach = math.ceil(x.keys / w), first // w, x.reach or x.keys
    m = max(1, min(most // w, rows - first_row))
    g = _biases_of_rows(encoding, x, rows, m)
    blocks = math.ceil((rows - first_row) / m)
    for row in range(rows - blocks * m, rows, m):  # the last block ends with the last row
        start, stop = max(first, row * w), min((row + m) * w, x.keys)
        first_key = 0 if x.sinks else max(0, start - reach + 1)
        queries = slice((row + m) * w - stop, (row + m) * w - start)
        offset = (rows + 1 - m - row) * w - 1
        yield x.block(start - first, stop - first, first_key), g[None, :, queries, offset + first_key : offset + stop]


def _biases_of_rows(encoding: Encoding, x: Operands, rows: int, m: int) -> Tensor:
    """G for the last m of R rows of queries: `[H or 1, m w, (R + 1) w]`, the last query first.

    Its keys are the cells of all R rows, and those of a row above them: the first token stands at the end of it.
    """
    w = x.columns
    assert w is not None
    by_distance = F.pad(at_distances_of_cells(encoding, x), (0, w), value=-math.inf).unflatten(1, (rows + 1, -1))
    of_last_row = skew(by_distance[:, :, None].contiguous(), w, w).transpose(1, 2)  # [H, w, R + 1, w], a view
    if torch.is_grad_enabled():
        longer = F.pad(of_last_row, (0, 0, 0, m - 1), value=-math.inf)
        return torch.stack([longer[:, :, a : a + rows + 1] for a in range(m)], dim=1).flatten(3).flatten(1, 2)
    # Written once: it is large, and further copies take as long.
    g = by_distance.new_empty(len(by_distance), m, w, rows + 1, w)
    for a in range(m):
        g[:, a, :, : rows + 1 - a] = of_last_row[:, :, a:]
        g[:, a, :, rows + 1 - a :] = -math.inf
    return g.flatten(3).flatten(1, 2)
