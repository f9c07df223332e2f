"""One call of the kernels of attention: what a caller gives, and how the kernels are told.

Terms, vectors and blocks are given beside queries, keys and values. A form is another way to score pairs that the
kernels of formulas.h compute. An encoding whose blank has one of these forms says so with `kernel_form`. Parts have no
gradient and are for evaluation; forms have gradients of all their tensors, but for bends. All tensors are float32.

Shapes: B batch, H heads, T queries, S keys (the queries are the last T of the S tokens), W width of relative vectors,
N = T + S - 1 distances in descending order (query t and key j meet entry T - 1 - t + j), M bends, K = M + 1 lines,
P numbers per token, G hidden numbers.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_TERMS = 4
BYTES = 4  # of a float32
QUERIES = 32  # queries of a block of the kernels, of which each has a first key
COSTS, GATES, STICK = 1, 2, 3  # as in attention.h
LANES = 16  # the most numbers of a vector of the kernels
MIXED = 8  # heads are mixed in multiples of it


@dataclass(frozen=True)
class Term:
    """Numbers that are added to the scores, in one of four forms.

    - One per distance, `[B or 1, H or 1, 1, N]`: `skewed`.
    - One per key, `[B or 1, H or 1, 1, S]`.
    - One per pair, `[B or 1, H or 1, T, S]`, with the queries in reverse order, of any strides.
    - One per distance on a grid of `columns` columns, `[B or 1, H or 1, 1, N]`, as `line_of_cells` has them. Query i,
      counted among all tokens, predicts cell i, and key j shows the cell j - 1; the keys begin with that of token 0.
    """

    x: Tensor
    skewed: bool = False
    columns: int = 0

    def least(self, queries: int, keys: int) -> int:
        """The least size of the last dimension."""
        if self.columns:
            rows = -(-keys // self.columns)
            return (rows + 1) * (2 * self.columns - 1) + 2 * LANES
        return queries + keys - 1 if self.skewed else keys


@dataclass(frozen=True)
class Relative:
    """Vectors by distance, `[H or 1, N, W]`, and what meets them: queries `[B, H, T, W]` or keys `[B, H, S, W]`."""

    vectors: Tensor
    met: Tensor | None = None  # None for the vectors c, which are added to the values


@dataclass(frozen=True)
class Block:
    """Consecutive queries of a call and the keys they see; the last query stands at the last of these keys."""

    queries: slice
    keys: slice
    terms: tuple[Term, ...] = ()
    # int32 [H, blocks of QUERIES queries]: keys before these have no weight and are skipped.
    first_key: Tensor | None = None
    # The number of first entries that are equal in each term and vector by distance: faster without gradient.
    constant: int = 0


@dataclass(frozen=True, kw_only=True)
class Visible:
    """Which keys a query sees: the last `reach`, itself among them (0: all), and always the first `sinks`."""

    reach: int = 0
    sinks: int = 0


EVERY_KEY = Visible()
Vectors = tuple[Relative | None, Relative | None, Relative | None]
NO_VECTORS: Vectors = (None, None, None)


@dataclass(frozen=True)
class Pieces:
    """s_ij += constant_hk + slope_hk z, z = u_h[i-j] y_hi, for a monotonic u; line k serves bend k-1 < z <= bend k.

    The bends ascend, and have no gradient.
    """

    of_distance_HN: Tensor
    of_query_HT: Tensor
    constant_HK: Tensor
    slope_HK: Tensor
    bends_M: Tensor

    def put(
        self, call: CallFields, of_distance: Tensor, of_query: Tensor, constant: Tensor, slope: Tensor, bends: Tensor
    ) -> list[Tensor]:
        """Describe the form to the kernels; returns tensors that must live until they return.

        The other arguments are `tensors_of` the form, in float32 and contiguous.
        """
        lines = len(bends) + 1
        assert constant.shape == slope.shape == (call.heads, lines)
        assert of_query.shape == (call.heads, call.queries)
        assert of_distance.shape == (call.heads, call.queries + call.keys - 1)
        kept = [F.pad(of_distance, (0, LANES)), F.pad(bends, (0, LANES), value=math.inf)]  # of which vectors are read
        given = (kept[0], of_query, constant, slope, kept[1])
        call.pieces = type(call.pieces)(*(x.data_ptr() for x in given), lines, kept[0].shape[1])
        return kept


@dataclass(frozen=True)
class Costs:
    """s_ij -= factor_h sum over j < l <= i of softplus(y_i . z_l), y `[B, H, T, P]` and z `[B, H, S, P]`."""

    of_queries_BHTP: Tensor
    of_keys_BHSP: Tensor
    factor_H: Tensor

    def put(self, call: CallFields, y: Tensor, z: Tensor, factor: Tensor) -> list[Tensor]:
        """As `Pieces.put`."""
        assert y.shape == (call.batch, call.heads, call.queries, z.shape[3])
        assert z.shape[:3] == (call.batch, call.heads, call.keys)
        assert len(factor) == call.heads
        where = (y.data_ptr(), z.data_ptr(), factor.data_ptr(), strides(y), strides(z))
        call.passed = type(call.passed)(COSTS, y.shape[3], *where)
        return []


@dataclass(frozen=True)
class Gates:
    """s_ij += table_i[p], p the sum over j <= l <= i of sigmoid(s_il), for a table `[B, H, T, P]` of each query.

    Between whole positions the table is interpolated linearly; its last row serves all positions from there on.
    """

    table_BHTP: Tensor

    def put(self, call: CallFields, table: Tensor) -> list[Tensor]:
        """As `Pieces.put`."""
        assert table.shape[:3] == (call.batch, call.heads, call.queries)
        call.passed = type(call.passed)(GATES, table.shape[3], table.data_ptr(), None, None, strides(table))
        return []


@dataclass(frozen=True)
class Stick:
    """The weight of a key is sigmoid(s_ij) times the product over j < l <= i of 1 - sigmoid(s_il): no softmax.

    Without `current`, the key of the query's own token is hidden.
    """

    current: bool = True

    def put(self, call: CallFields) -> list[Tensor]:
        """As `Pieces.put`."""
        call.passed = type(call.passed)(STICK, 0, without_own=not self.current)
        return []


@dataclass(frozen=True)
class Mixing:
    """s + out max(y, leak y), y = of_scores s + of_distance[i-j], for the scores s of all heads of a pair.

    0 <= leak < 1.
    """

    of_scores_GH: Tensor
    of_distance_GN: Tensor
    out_HG: Tensor
    leak: float

    def put(self, call: CallFields, of_scores: Tensor, of_distance: Tensor, out: Tensor) -> list[Tensor]:
        """As `Pieces.put`. Hidden numbers that are missing to a whole tile are 0."""
        hidden, heads = self.of_scores_GH.shape
        assert heads == call.heads
        assert self.out_HG.shape == (heads, hidden)
        assert self.of_distance_GN.shape == (hidden, call.queries + call.keys - 1)
        more = -hidden % QUERIES
        kept = [
            F.pad(of_scores, (0, 0, 0, more)),
            F.pad(of_distance, (0, LANES, 0, more)),
            F.pad(out, (0, more, 0, -heads % MIXED)),
        ]
        sizes = hidden + more, hidden, kept[1].shape[1]
        call.mixing = type(call.mixing)(*(x.data_ptr() for x in kept), *sizes, leak=self.leak)
        return kept


@dataclass(frozen=True)
class Factors:
    """The weight of a key after the softmax times factors[h, i-j]."""

    factors_HN: Tensor

    def put(self, call: CallFields, factors: Tensor) -> list[Tensor]:
        """As `Pieces.put`."""
        assert factors.shape == (call.heads, call.queries + call.keys - 1)
        call.factors = factors.data_ptr()
        return []


@dataclass(frozen=True)
class Passage:
    """Chunks of C = `QUERIES` keys change the queries that pass them.

    In place of q_i . k_j stands within_ij `[B, H, T, C]` for a query and a key of one chunk, and
    (q_i M_{n-1} ... M_{m+1}) . k_j for a query of chunk n and a key of an earlier chunk m. The matrices M of all chunks
    stand one below the other in `through`, `[B, H, ceil(S / C) D, D]`, where C = `QUERIES` is the number of keys of a
    chunk. The first query begins a chunk.
    """

    within_BHTC: Tensor
    through_BHMD: Tensor

    def put(self, call: CallFields, within: Tensor, through: Tensor) -> list[Tensor]:
        """As `Pieces.put`."""
        assert (call.keys - call.queries) % QUERIES == 0
        assert not call.terms
        assert within.shape == (call.batch, call.heads, call.queries, QUERIES)
        assert through.shape == (call.batch, call.heads, -(-call.keys // QUERIES) * call.width, call.width)
        call.passage = type(call.passage)(within.data_ptr(), through.data_ptr())
        return []


@dataclass(frozen=True)
class Chunked:
    """Queries `[B, H, T, D]` and keys `[B, H, S, D]` of their own, with a passage.

    Other queries may stand before those of the call, so that the first one begins a chunk.
    """

    q_BHTD: Tensor
    k_BHSD: Tensor
    passage: Passage


@dataclass(frozen=True)
class Part:
    """Scores q_i . k_j of some pairs, with queries and keys of their own, and a term `[B, H, T, S]` of each pair.

    The queries are consecutive, from `first_query` on, and so are the keys, from `first_key` on. A query sees the keys
    up to its own, of these the last `reach` (0: all). The last key is that of the last query, unless `before` says how
    many keys stand before that of the first query. With `every`, a query sees all keys. The term is given with the
    queries in reverse order, and is not scaled.
    """

    q_BHTD: Tensor
    k_BHSD: Tensor
    first_query: int = 0
    first_key: int = 0
    every: bool = False
    reach: int = 0
    term_BHTS: Tensor | None = None
    before: int | None = None

    @property
    def keys_before(self) -> int:
        """How many keys stand before the last one that the first query sees."""
        queries, keys = self.q_BHTD.shape[2], self.k_BHSD.shape[2]
        return self.before if self.before is not None else keys if self.every else keys - queries

    @property
    def queries(self) -> slice:
        """The queries of the call."""
        return slice(self.first_query, self.first_query + self.q_BHTD.shape[2])

    @property
    def keys(self) -> slice:
        """The keys of the call."""
        return slice(self.first_key, self.first_key + self.k_BHSD.shape[2])


@dataclass(frozen=True)
class Parts:
    """Every pair of a query and a key it sees is in one part. The first part with a query has a key that it sees."""

    parts: Iterable[Part]


Form = Pieces | Costs | Gates | Stick | Mixing | Factors | Passage


def tensors_of(form: Form) -> list[Tensor]:
    """The tensors of a form, in the order of its fields."""
    values = (getattr(form, field.name) for field in fields(form))
    return [x for x in values if isinstance(x, Tensor)]


# The structures of attention.h, field by field in the same order, and how tensors fill them.


class Strides(ctypes.Structure):
    """Strides of a tensor `[B, H, tokens, channels]` whose channels are contiguous, in numbers."""

    _fields_ = [(name, c_int64) for name in ("batch", "head", "token")]


class TermFields(ctypes.Structure):
    """A term of the scores, and the gradient that is added up for it."""

    _fields_ = [
        ("x", c_void_p),
        ("grad", c_void_p),
        *((name, c_int64) for name in ("batch", "head", "query", "grad_batch", "grad_head", "grad_query", "columns")),
    ]


class RelativeFields(ctypes.Structure):
    """Vectors by distance, and the queries or keys that meet them."""

    _fields_ = [
        *((name, c_void_p) for name in ("met", "vectors", "grad_met", "grad_vectors")),
        ("met_at", Strides),
        ("grad_met_at", Strides),
        ("width", c_int64),
        ("head", c_int64),
    ]


class PiecesFields(ctypes.Structure):
    """A function made of straight pieces, of a number by distance times a number by query."""

    _fields_ = [
        *((name, c_void_p) for name in ("of_distance", "of_query", "constant", "slope", "bends")),
        *((name, c_int64) for name in ("lines", "next")),
        *((name, c_void_p) for name in ("grad_of_distance", "grad_of_query", "grad_constant", "grad_slope")),
    ]


class PassedFields(ctypes.Structure):
    """What each key does to the keys before it."""

    _fields_ = [
        *((name, c_int64) for name in ("kind", "width")),
        *((name, c_void_p) for name in ("of_queries", "of_keys", "factor")),
        ("of_queries_at", Strides),
        ("of_keys_at", Strides),
        ("without_own", c_int64),
        *((name, c_void_p) for name in ("grad_of_queries", "grad_of_keys", "grad_factor")),
        ("grad_of_queries_at", Strides),
        ("grad_of_keys_at", Strides),
    ]


class MixingFields(ctypes.Structure):
    """A network of one hidden layer over the heads of a pair."""

    _fields_ = [
        *((name, c_void_p) for name in ("of_scores", "of_distance", "out")),
        *((name, c_int64) for name in ("hidden", "given", "next")),
        *((name, c_void_p) for name in ("grad_of_scores", "grad_of_distance", "grad_out")),
        ("leak", c_float),
    ]


class PassageFields(ctypes.Structure):
    """Chunks of keys that change the queries that pass them."""

    _fields_ = [(name, c_void_p) for name in ("within", "through", "grad_within", "grad_through")]


TENSORS = ("q", "k", "v", "o", "grad_o", "grad_q", "grad_k", "grad_v", "null", "grad_null")  # those with strides


class CallFields(ctypes.Structure):
    """One call of the kernels."""

    _fields_ = [
        *((name, c_int64) for name in ("batch", "heads", "queries", "keys", "width", "value_width")),
        *((name, c_int64) for name in ("reach", "sinks", "terms", "threads", "constant")),
        *((name, c_void_p) for name in ("q", "k", "v", "o", "top", "sum", "grad_o", "grad_q", "grad_k", "grad_v")),
        *((name, c_void_p) for name in ("null", "grad_null")),
        *((f"{name}_at", Strides) for name in TENSORS),
        ("term", TermFields * MOST_TERMS),
        ("a", RelativeFields),
        ("b", RelativeFields),
        ("c", RelativeFields),
        ("first_key", c_void_p),
        ("factors", c_void_p),
        ("grad_factors", c_void_p),
        ("pieces", PiecesFields),
        ("passed", PassedFields),
        ("mixing", MixingFields),
        ("passage", PassageFields),
        ("past", c_int64),
        ("scale", c_float),
    ]

    def put(self, **tensors: Tensor) -> None:
        """Set the pointers and strides of some of `TENSORS`, `[B, H, tokens, channels]`."""
        for name, x in tensors.items():
            setattr(self, name, x.data_ptr())
            setattr(self, f"{name}_at", strides(x))


# Where the kernels put the gradients of a form's tensors, in the order of its fields: the structure of the call, or the
# call itself (""), and the pointers in it. The bends of pieces, the last of their tensors, have none.
GRADIENTS: dict[type[Form], tuple[str, tuple[str, ...]]] = {
    Pieces: ("pieces", ("grad_of_distance", "grad_of_query", "grad_constant", "grad_slope")),
    Costs: ("passed", ("grad_of_queries", "grad_of_keys", "grad_factor")),
    Gates: ("passed", ("grad_of_queries",)),
    Stick: ("passed", ()),
    Mixing: ("mixing", ("grad_of_scores", "grad_of_distance", "grad_out")),
    Factors: ("", ("grad_factors",)),
    Passage: ("passage", ("grad_within", "grad_through")),
}


def put_gradients(form: Form, call: CallFields, grads: Iterable[Tensor | None]) -> None:
    """Tell the kernels where to put the gradients of `tensors_of` a form; None where none is asked for.

    Gradients of tensors that texts share are given for each text, `[B, ...]`.
    """
    owner, names = GRADIENTS[type(form)]
    structure = getattr(call, owner) if owner else call
    for name, x in zip(names, grads, strict=False):
        if x is not None:
            setattr(structure, name, x.data_ptr())
            if hasattr(structure, f"{name}_at"):
                setattr(structure, f"{name}_at", strides(x))


def strides(x: Tensor) -> Strides:
    """The strides of a tensor whose channels are contiguous; a batch or head of size 1 is shared by all."""
    assert x.stride(3) == 1 or x.shape[3] == 1
    return Strides(*x.stride()[:3])


def by_token(x: Tensor, width: int, make: Callable[..., Tensor]) -> Tensor:
    """A new tensor `[B, H, tokens, width]` in which the heads of a token are contiguous, as projections need them."""
    batch, heads, tokens, _ = x.shape
    return make(batch, tokens, heads, width, dtype=torch.float32).transpose(1, 2)


def line_of_cells(by_distance: Tensor, columns: int) -> Tensor:
    """Numbers by distance on a grid of w columns, `[H or 1, n]`, as those of a term, `[1, H or 1, 1, N]`.

    The distances of rows descend to 0, and for each those of columns from w - 1 to 1 - w, without the last w, which are
    those of hidden keys. The kernels read vectors of numbers beyond the last.
    """
    return F.pad(by_distance, (0, columns + 2 * LANES))[None, :, None]


def term_at(term: Term, x: Tensor, queries: int) -> tuple[int, int, int, int]:
    """Address of the entry of the first query and key, and the strides of batch, head and query, of a term's numbers.

    On a grid it is the entry of the distance 0.
    """
    batch, head = (0 if x.shape[dim] == 1 else x.stride(dim) for dim in (0, 1))
    if term.columns:
        first, query = x.shape[3] - term.columns - 2 * LANES, 0
    elif term.skewed:
        first, query = queries - 1, -1
    elif x.shape[2] == 1:
        first, query = 0, 0
    else:  # the queries are in reverse order
        first, query = (queries - 1) * x.stride(2), -x.stride(2)
    return x.data_ptr() + BYTES * first, batch, head, query
