"""The engine `native`, for float32 on CPU: our own kernels (poscli/native), for every encoding with a plain softmax.

Numbers per distance, on a line or a grid, numbers per key and vectors by distance go to the kernels as they are, so
that memory is O(length), also in training. Any other bias is made block by block over the queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import pad

from poscli.attention import blocks, sdpa
from poscli.attention.biases import (
    added_to_keys,
    at_distances_of_cells,
    at_even_distances,
    biased_blocks,
    biases,
    constant_from,
    gentle_rows,
    potentials,
)
from poscli.attention.place import BlockSizes, Place, blanks_refused
from poscli.attention.skew import descending
from poscli.attention.tiles import ScoreBounds, TileInputs, merged
from poscli.equation import Encoding, Operands
from poscli.equation.blanks import not_computed_by
from poscli.equation.reference import tempered
from poscli.native import library, why_not
from poscli.native.attention import attention_to_part, native_attention
from poscli.native.call import (
    QUERIES,
    Block,
    Chunked,
    Form,
    Part,
    Parts,
    Relative,
    Term,
    Vectors,
    Visible,
    line_of_cells,
)

VECTORS = {"relative_keys", "relative_queries", "relative_values"}
BY_DISTANCE = {"distance_bias", *VECTORS}
KNOWN = {*BY_DISTANCE, "potential", "reach"}  # what the kernels add or hide by themselves


def added(encoding: Encoding) -> frozenset[str]:
    """The blanks of an encoding that add to the scores or to the values."""
    return biases(encoding) | (encoding.blanks & VECTORS)


def refuses(encoding: Encoding, place: Place) -> str:
    """Why the kernels cannot compute an encoding in a place; '' if they can."""
    reason = blanks_refused(encoding, "native")
    if reason and not _has_form(encoding, place.gradient):
        return reason
    if place.dtype != torch.float32:
        return "its kernels compute in float32"
    if "relative_values" in encoding.blanks and not (_is_known(encoding) and "positions" not in encoding.blanks):
        return "relative values need even distances, and no bias of a pair"
    return why_not()


def run(encoding: Encoding, x: Operands, sizes: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused."""
    few = x.queries < sizes.native_queries  # most rows of the kernels' tiles would be empty
    form: Form | Parts | Chunked | None = None
    if not few and x.step is not None and _has_form(encoding, torch.is_grad_enabled()):
        form = encoding.kernel_form(x)
    if isinstance(form, Parts):
        return _joined(encoding, x, form)
    if isinstance(form, Chunked):
        return _passed(encoding, x, form)
    known = form is not None or _is_known(encoding)
    even = x.step is not None or x.columns is not None
    by_distance = known and (even or not encoding.blanks & BY_DISTANCE)
    needs_rows = form is None and not_computed_by("native", encoding.blanks)
    if needs_rows or ("relative_values" in encoding.blanks and (few or not by_distance)):
        return blocks.run(encoding, x, sizes)
    if few:
        return sdpa.run(encoding, x, sizes)
    x = replace(x, q_BHTD=tempered(x, x.q_BHTD))
    qkv, kernels = (x.q_BHTD, x.k_BHSD, x.v_BHSE), library()
    assert kernels is not None
    if not by_distance:
        of_pairs = list(_blocks_of_pairs(encoding, x, sizes))
        return native_attention(kernels, qkv, of_pairs, scale=encoding.scale, null=_null(x))
    x = x if x.by_distance is not None else replace(x, by_distance={})  # what is needed twice is computed once
    visible, vectors, c_BHS = Visible(reach=x.reach or 0, sinks=x.sinks), _vectors(encoding, x), potentials(encoding, x)
    of_distances = list(_blocks_of_distances(encoding, x, sizes, vectors, c_BHS, plain=form is None))
    null = _null(x, _left_out(encoding, x, c_BHS))
    return native_attention(
        kernels, qkv, of_distances, scale=encoding.scale, visible=visible, vectors=vectors, null=null, form=form
    )


def _has_form(encoding: Encoding, gradient: bool) -> bool:
    """Whether the kernels know a form of the blanks that need pairs or rows of scores, and all else that is added."""
    if gradient and not encoding.kernel_form_has_gradient:
        return False
    beside, known = added(encoding) - {"bias"}, KNOWN
    unfit = {"positions", "potential", "temperature", "sinks"}
    if "similarity" in encoding.blanks:  # it is a passage, which has a gradient, or in parts, which a window can cut
        in_parts = not encoding.kernel_form_has_gradient
        known, unfit = ({"reach"}, unfit - {"sinks"}) if in_parts else (set(), unfit)
    fits = encoding.axes == 1 and not encoding.blanks & unfit
    return fits and beside <= known and encoding.has_kernel_form


def _joined(encoding: Encoding, x: Operands, form: Parts) -> Tensor:
    """Attention output `[B, H, T, E]` from attention to parts of the pairs, without gradient."""
    out_BHTE = x.q_BHTD.new_zeros(*x.q_BHTD.shape[:3], x.v_BHSE.shape[3])
    null = _null(x)
    lse_BHT = x.q_BHTD.new_full(x.q_BHTD.shape[:3], -math.inf) if null is None else null[..., 0].clone()
    kernels = library()
    assert kernels is not None
    for part in chain.from_iterable(_seen(x, each) for each in form.parts):
        at = part.queries
        new = attention_to_part(kernels, part, x.v_BHSE[:, :, part.keys], encoding.scale)
        out_BHTE[:, :, at], lse_BHT[:, :, at] = merged([(out_BHTE[:, :, at], lse_BHT[:, :, at]), new])
    return out_BHTE


def _seen(x: Operands, part: Part) -> Iterator[Part]:
    """What a window, and the first tokens that are seen beside it, leave of a part."""
    if x.reach is None:
        yield part
        return
    keys = part.k_BHSD.shape[2]
    distance = x.keys - x.queries + part.first_query - part.first_key  # from the first key to the first query
    before = distance if part.every else part.keys_before
    near = max(0, x.reach - (distance - before))  # of the keys that a query sees, so many of the last are in the window
    reach = part.reach or before + part.q_BHTD.shape[2]
    yield from _cut(part, keys, before, min(near, reach))
    yield from _cut(part, min(x.sinks - part.first_key, keys), before - near, reach - near)


def _cut(part: Part, keys: int, before: int, reach: int) -> Iterator[Part]:
    """The first keys of a part, and the queries that see one of them, if there are any.

    `before` keys stand before the last one that the first query may see, and a query sees the last `reach` of those.
    """
    first, stop = max(0, -before), min(part.q_BHTD.shape[2], keys + reach - 1 - before)
    if keys <= 0 or reach <= 0 or first >= stop:
        return
    count, term = part.q_BHTD.shape[2], part.term_BHTS
    yield Part(
        part.q_BHTD[:, :, first:stop],
        part.k_BHSD[:, :, :keys],
        part.first_query + first,
        part.first_key,
        reach=reach,
        before=before + first,
        term_BHTS=None if term is None else term[:, :, count - stop : count - first, :keys],
    )


def _passed(encoding: Encoding, x: Operands, form: Chunked) -> Tensor:
    """Attention output `[B, H, T, E]` of queries that change from chunk to chunk of keys."""
    kernels, null = library(), _null(x)
    assert kernels is not None
    others = form.q_BHTD.shape[2] - x.queries
    block = Block(slice(0, form.q_BHTD.shape[2]), slice(0, x.keys))
    out = native_attention(
        kernels,
        (form.q_BHTD, form.k_BHSD, x.v_BHSE),
        [block],
        scale=encoding.scale,
        null=None if null is None else pad(null, (0, 0, others, 0)),
        form=form.passage,
    )
    return out[:, :, others:]


def _is_known(encoding: Encoding) -> bool:
    """Whether the kernels know all that an encoding adds to the scores, if distances are even or those of a grid."""
    beside = added(encoding)
    if encoding.axes == 2 and beside & VECTORS:
        return False
    return beside <= KNOWN and not ("temperature" in encoding.blanks and beside - {"reach"})


def _blocks_of_pairs(encoding: Encoding, x: Operands, sizes: BlockSizes) -> Iterator[Block]:
    """Blocks of queries, each with its bias for every pair."""
    most = sizes.training_queries if torch.is_grad_enabled() else None
    first = 0
    for part, bias in biased_blocks(encoding, x, sizes, dense=False, most=most):
        stop = first + part.queries
        last = x.keys - x.queries + stop
        yield Block(slice(first, stop), slice(last - part.keys, last), (Term(bias),))
        first = stop


def _blocks_of_distances(
    encoding: Encoding, x: Operands, sizes: BlockSizes, vectors: Vectors, c_BHS: Tensor | None, *, plain: bool
) -> Iterator[Block]:
    """All queries as one block; several if each needs numbers of its own for the keys, as a potential `c_BHS` does."""
    table: Tensor | None = None
    of_cells: tuple[Term, ...] = ()
    if "distance_bias" in encoding.blanks and x.columns is not None:
        line = line_of_cells(at_distances_of_cells(encoding, x), x.columns)
        of_cells = (Term(line, columns=x.columns),)
    elif "distance_bias" in encoding.blanks:
        by_distance = at_even_distances(encoding, "distance_bias", x).to(x.q_BHTD.dtype)
        table = descending(by_distance, x.queries, fill=0)[None, :, None]
    first_key = _first_keys(encoding, x, sizes, c_BHS) if plain else None
    constant = _constant(x, table, vectors) if plain else 0
    if c_BHS is None:
        terms = of_cells if table is None else (Term(table, skewed=True),)
        yield Block(slice(0, x.queries), slice(0, x.keys), terms, first_key, constant)
        return
    past = x.keys - x.queries
    rows = _rows_of_potential(encoding, c_BHS[..., past:])
    for first in range(0, x.queries, rows):
        stop = min(first + rows, x.queries)
        of_keys = added_to_keys(c_BHS, past + first, slice(past + stop), x.q_BHTD.dtype)
        terms = of_cells if table is None else (Term(table[..., x.queries - stop :], skewed=True),)
        firsts = None if first_key is None else first_key[:, first // QUERIES : _count_blocks(stop)].contiguous()
        equal = max(0, constant - (x.queries - stop))
        yield Block(slice(first, stop), slice(0, past + stop), (Term(of_keys), *terms), firsts, equal)


def _rows_of_potential(encoding: Encoding, c_BHT: Tensor) -> int:
    """The queries of a block, whose potentials are `c_BHT`; relative vectors need all in one block."""
    queries = c_BHT.shape[2]
    return queries if encoding.blanks & VECTORS else gentle_rows(c_BHT, queries, QUERIES)


def _left_out(encoding: Encoding, x: Operands, c_BHS: Tensor | None) -> Tensor | None:
    """What `_blocks_of_distances` leaves out of the scores of each query, `[B, H, T]`, as the softmax cancels it."""
    if c_BHS is None or x.null_score_H is None:
        return None
    c_BHT = c_BHS[..., x.keys - x.queries :]
    rows, query = _rows_of_potential(encoding, c_BHT), torch.arange(x.queries)
    return (c_BHT - c_BHT[..., query // rows * rows]).to(x.q_BHTD.dtype)


def _null(x: Operands, left_out: Tensor | None = None) -> Tensor | None:
    """The score of the null key for each query, `[B, H, T, 1]`, less what is left out of the scores of the others."""
    if x.null_score_H is None:
        return None
    null_BHT = x.null_score_H.to(x.q_BHTD.dtype)[:, None].expand(x.q_BHTD.shape[:3])
    return (null_BHT if left_out is None else null_BHT - left_out)[..., None]


def _vectors(encoding: Encoding, x: Operands) -> Vectors:
    """The vectors a, b and c of the equation, with what meets them."""
    dtype = x.q_BHTD.dtype

    def by_distance(blank: str) -> Tensor:
        return descending(at_even_distances(encoding, blank, x).to(dtype), x.queries, fill=0)

    a = b = c = None
    if "relative_keys" in encoding.blanks:
        met = encoding.relative_query(x.raw_q_BHTD, x.features_of_queries).to(dtype) * encoding.scale
        a = Relative(by_distance("relative_keys"), met)
    if "relative_queries" in encoding.blanks:
        b = Relative(by_distance("relative_queries"), x.raw_k_BHSD.to(dtype) * encoding.scale)
    if "relative_values" in encoding.blanks:
        c = Relative(by_distance("relative_values"))
    return a, b, c


def _constant(x: Operands, table: Tensor | None, vectors: Vectors) -> int:
    """How many of the largest distances add the same numbers and vectors to the scores; 0 if it does not matter.

    A gradient needs every distance: equal numbers may be different parameters.
    """
    descend = [] if table is None else [table[0, :, 0]]
    descend += [each.vectors for each in vectors if each is not None]
    if torch.is_grad_enabled() or not descend:
        return 0
    return x.keys - constant_from(x_HN[:, : x.keys].flip(1) for x_HN in descend)


def _first_keys(encoding: Encoding, x: Operands, sizes: BlockSizes, c_BHS: Tensor | None) -> Tensor | None:
    """The first key of every head and block of queries whose weight is not 0 in float32, int32 `[H, blocks]`.

    None where no bias decays, or inputs are too short for the search to pay.
    """
    decays = encoding.blanks & {"distance_bias", "potential"} and not encoding.blanks & VECTORS
    on_grid = x.columns is not None and "distance_bias" in encoding.blanks
    if torch.is_grad_enabled() or not decays or on_grid or x.queries < sizes.tile_queries:
        return None
    bounds = ScoreBounds.of(TileInputs.of(encoding, x, c_BHS))
    return bounds.first_keys_of_blocks(QUERIES).to(torch.int32).contiguous()


def _count_blocks(queries: int) -> int:
    """The number of the kernels' blocks that hold `queries` queries."""
    return -(-queries // QUERIES)
