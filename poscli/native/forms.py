"""Forms of the scores that the kernels of formulas.h compute. All tensors are float32.

An encoding whose blank has one of these forms says so with `kernel_form`. Pieces and Parts have no gradient
and are for evaluation; the others have gradients of all their tensors.

Shapes: B batch, H heads, T queries, S keys, N = T + S - 1 distances in descending order (query t and key j meet entry
T - 1 - t + j), M bends, P numbers per token, G hidden numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from torch import Tensor
from torch.nn import functional as F

from poscli.native.fields import QUERIES, CallFields, strides

COSTS, GATES, STICK = 1, 2, 3  # as in attention.h
MOST_BENDS = 256
MIXED = 8  # heads are mixed in multiples of it


@dataclass(frozen=True)
class Pieces:
    """s_ij += start_h + sum over m of slopes_hm max(u[i-j] y_i, bends_m), for a monotonic u `[N]` and y `[T]`."""

    of_distance_N: Tensor
    of_query_T: Tensor
    start_H: Tensor
    slopes_HM: Tensor
    bends_M: Tensor

    def put(self, call: CallFields, *tensors: Tensor) -> list[Tensor]:
        """Describe the form to the kernels; returns tensors that must live until they return.

        `tensors` are those of `tensors_of`, in float32 and contiguous.
        """
        count = len(self.bends_M)
        assert count <= MOST_BENDS
        assert self.slopes_HM.shape == (call.heads, count)
        assert len(self.start_H) == call.heads
        assert len(self.of_query_T) == call.queries
        assert len(self.of_distance_N) == call.queries + call.keys - 1
        call.pieces = type(call.pieces)(*(x.data_ptr() for x in tensors), count)
        return []


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

    def put_gradients(self, call: CallFields, y: Tensor | None, z: Tensor | None, factor: Tensor | None) -> None:
        """Tell the kernels where to put the gradients of the tensors, that of the factor for each text, `[B, H]`."""
        if y is not None:
            call.passed.grad_of_queries, call.passed.grad_of_queries_at = y.data_ptr(), strides(y)
        if z is not None:
            call.passed.grad_of_keys, call.passed.grad_of_keys_at = z.data_ptr(), strides(z)
        if factor is not None:
            call.passed.grad_factor = factor.data_ptr()


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

    def put_gradients(self, call: CallFields, table: Tensor | None) -> None:
        """As `Costs.put_gradients`."""
        if table is not None:
            call.passed.grad_of_queries, call.passed.grad_of_queries_at = table.data_ptr(), strides(table)


@dataclass(frozen=True)
class Stick:
    """The weight of a key is sigmoid(s_ij) times the product over j < l <= i of 1 - sigmoid(s_il): no softmax.

    Without `own`, the key of the query's own token is hidden.
    """

    own: bool = True

    def put(self, call: CallFields) -> list[Tensor]:
        """As `Pieces.put`."""
        call.passed = type(call.passed)(STICK, 0, without_own=not self.own)
        return []

    def put_gradients(self, call: CallFields) -> None:
        """There are no tensors."""


@dataclass(frozen=True)
class Mixing:
    """s + out max(y, leak y), y = of_scores s + of_distance[i-j], for the scores s of all heads of a pair; leak < 1."""

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
            F.pad(of_distance, (0, 0, 0, more)),
            F.pad(out, (0, more, 0, -heads % MIXED)),
        ]
        call.mixing = type(call.mixing)(*(x.data_ptr() for x in kept), hidden + more, hidden, leak=self.leak)
        return kept

    def put_gradients(
        self, call: CallFields, of_scores: Tensor | None, of_distance: Tensor | None, out: Tensor | None
    ) -> None:
        """As `Costs.put_gradients`; those of all tensors are for each text."""
        grads = {"grad_of_scores": of_scores, "grad_of_distance": of_distance, "grad_out": out}
        for name, x in grads.items():
            setattr(call.mixing, name, None if x is None else x.data_ptr())


@dataclass(frozen=True)
class Factors:
    """The weight of a key after the softmax times factors[h, i-j]."""

    factors_HN: Tensor

    def put(self, call: CallFields, factors: Tensor) -> list[Tensor]:
        """As `Pieces.put`."""
        assert factors.shape == (call.heads, call.queries + call.keys - 1)
        call.factors = factors.data_ptr()
        return []

    def put_gradients(self, call: CallFields, factors: Tensor | None) -> None:
        """As `Costs.put_gradients`; that of the factors is for each text, `[B, H, N]`."""
        if factors is not None:
            call.grad_factors = factors.data_ptr()


@dataclass(frozen=True)
class Part:
    """Scores q_i . k_j of some pairs, with queries and keys of their own, and a term `[B, H, T, S]` of each pair.

    The queries are consecutive, from `first_query` on, and so are the keys, from `first_key` on. Either the last query
    stands at the last key, and a query sees the keys up to its own, of these the last `reach` (0: all); or a query sees
    every key. The term is given with the queries in reverse order, and is not scaled.
    """

    q_BHTD: Tensor
    k_BHSD: Tensor
    first_query: int = 0
    first_key: int = 0
    every: bool = False
    reach: int = 0
    term_BHTS: Tensor | None = None

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
    """Every pair of a query and a key it sees is in one of these parts. The first ones have keys for every query."""

    parts: Iterable[Part]


Learned = Costs | Gates | Stick | Mixing | Factors
Form = Pieces | Learned


def has_gradient(form: Form) -> bool:
    """Whether the kernels compute the gradients of a form."""
    return isinstance(form, Learned)


def tensors_of(form: Form) -> list[Tensor]:
    """The tensors of a form, in the order of its fields."""
    found = (getattr(form, field.name) for field in fields(form))
    return [x for x in found if isinstance(x, Tensor)]
