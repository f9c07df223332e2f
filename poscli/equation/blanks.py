"""The attention equation with named blanks. An encoding fills some of them; every other blank is the identity.

    x_i  = embed(x_i, i)                              before the first layer
    x_i  = mix(x)_i                                   in every layer, before the projections to q, k and v
    q_i  = R(phase_i) query(content_query(q_i), i)    k_j = R(phase_j) key(k_j, j)    v_j = value(v_j, j)
    s_ij = (similarity(q_i, k_j) + relative_query(q_i, f_i) . a[i-j] + k_j . b[i-j]) * scale
           + distance_bias[h, i-j] + potential_i - potential_j + bias(i, j)
    s_ij = s_ij * temperature(n_i)                    n_i is the number of keys that query i sees
    s_ij = -inf                                       where j > i, or where i-j >= reach and j >= sinks
    p_ij = reweight(weights(scores(s), null)_ij, i-j) weights is the softmax, similarity is q_i . k_j
    o_i  = output( sum_j p_ij (v_j + c[i-j]), i )

a, b and c are the blanks `relative_keys`, `relative_queries` and `relative_values`; a and b meet q and k as projected,
and f_i are the features of token i, from the blank `features`. i and j are positions, made by the blank `positions` of
the tokens' order, except for `reach` and `sinks`, which count tokens. R(phase_i) rotates pairs of channels by the
angles of the blank `phase`, and null is the blank `null_score`, the score of a key without a value that every query
sees beside the others; without it there is none.

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D head width, W model width,
F features, P pairs of channels, n distances. Distances d = i - j are never negative: attention is causal, in the order
of the tokens.

Every blank is a method of the class `Blanks`, declared by the decorator `@blank`. The names of its arguments say what
it sees; the declaration states what it depends on, the shape that it returns, how the parts of `a+b` fill it together,
and which engines compute it. All else follows: the checks of shapes, what may be composed, the choice of engines and
the estimate of memory.

An encoding of two axes (`axes = 2`) sees the tokens on a grid, read row by row. Its positions are `[S, 2]`, rows and
columns, and its distances `[n, 2]`: those of the cell that a query predicts from the cell that a key shows. The
distance of rows is never negative; that of columns is, where the key's cell is to the right in an earlier row.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from poscli.equation.operands import Operands

MethodT = TypeVar("MethodT", bound=Callable[..., Any])

# What blanks depend on, from one token to a whole row of scores.
TIERS = ("token", "distance", "relative", "pair", "row")
OF_FEATURES = ("f_BHSF", "f_BHTF", "f_i", "f_j")  # arguments of blanks that hold features; `x` holds them too
COMPUTE_ALL = ("blocks", "reference")  # engines that compute every blank


@dataclass(frozen=True, kw_only=True)
class Blank:
    """The declaration of a blank."""

    name: str
    takes: tuple[str, ...]  # the names of its arguments
    tier: str  # one of TIERS
    # What it returns, in the letters above; `*` is any width, R the width of `relative_query`, and ... is an axis of
    # two numbers on a grid and none on a line. "": it is a number.
    shape: str
    # How the parts of a composition fill it together, from their methods (for a property: values) and the arguments.
    joined: Callable[..., Any]
    only: str = ""  # what it defines, if only one part of a composition may do so
    engines: tuple[str, ...] = ()  # those that compute it, beside COMPUTE_ALL; the token tier needs none
    turns: bool = False  # True: it turns queries or keys by their positions

    def takes_any(self, *names: str) -> bool:
        """Whether it has one of these arguments."""
        return not set(names).isdisjoint(self.takes)

    @property
    def memory(self) -> str:
        """What its result takes beside the tokens: "" (nothing), "distances", "vectors", "keys", "pairs" or "rows".

        A number or a vector for each distance, a number for each key, or a number for each pair of tokens, which
        blanks of the row tier take several times.
        """
        if self.tier == "pair":
            return "pairs" if "T" in self.shape else "keys"
        if self.tier == "row":
            return "rows" if "T" in self.shape else ""
        return {"distance": "distances", "relative": "vectors"}.get(self.tier, "") if self.shape else ""


BLANKS: dict[str, Blank] = {}  # every blank, by name, in the order of the tiers

# Every call of attention asks the following, so the answers are kept for each set of blanks.


@cache
def of_tier(blanks: frozenset[str], tier: str) -> tuple[str, ...]:
    """Those of some blanks that belong to a tier, sorted."""
    return tuple(sorted(name for name in blanks if BLANKS[name].tier == tier))


@cache
def not_computed_by(engine: str, blanks: frozenset[str]) -> tuple[str, ...]:
    """Those of some blanks that an engine does not compute, sorted. The token tier is filled outside of engines."""
    computed = {name for name in blanks if BLANKS[name].tier == "token" or engine in BLANKS[name].engines}
    return () if engine in COMPUTE_ALL else tuple(sorted(blanks - computed))


@cache
def see_positions(blanks: frozenset[str]) -> bool:
    """Whether any of some blanks is told where tokens are; the argument `x` tells everything."""
    return any(BLANKS[name].takes_any("index", "pos", "d", "d_TS", "i", "x") for name in blanks)


def in_turn(methods: Sequence[Callable[..., Tensor]], x: Tensor, *rest: Any) -> Tensor:
    """Each is applied to the result of the previous one."""
    return reduce(lambda y, method: method(y, *rest), methods, x)


def in_turn_on_visible(methods: Sequence[Callable[..., Tensor]], s_BHTS: Tensor, x: Operands) -> Tensor:
    """Each is applied to the scores from the previous one, in which those of hidden keys are -inf again."""
    first, *others = methods
    hidden = s_BHTS == -math.inf
    return reduce(lambda s, method: method(s.masked_fill(hidden, -math.inf), x), others, first(s_BHTS, x))


def summed(methods: Sequence[Callable[..., Tensor]], *arguments: Any) -> Tensor:
    """The results are added."""
    return reduce(torch.add, (method(*arguments) for method in methods))


def least(values: Sequence[int | None]) -> int | None:
    """The smallest; None stands for no limit, and is the result if there is none."""
    return min((value for value in values if value is not None), default=None)


def multiplied(methods: Sequence[Callable[..., Tensor]], *arguments: Any) -> Tensor:
    """The results are multiplied."""
    return reduce(torch.mul, (method(*arguments) for method in methods))


def log_summed(methods: Sequence[Callable[..., Tensor]], *arguments: Any) -> Tensor:
    """The logarithm of the sum of the exponentials of the results.

    A key with this score has as much weight in the softmax as one key for each result would have together.
    """
    return reduce(torch.logaddexp, (method(*arguments) for method in methods))


def concatenated(methods: Sequence[Callable[..., Tensor]], *arguments: Any) -> Tensor:
    """The results are put side by side in the last dimension; one that serves all heads is repeated for each."""
    results = [method(*arguments) for method in methods]
    sizes = [max(of_axis) for of_axis in zip(*(x.shape[:-1] for x in results), strict=True)]
    return torch.cat([x.expand(*sizes, -1) for x in results], dim=-1)


def alone(methods: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    """There is one method only."""
    (method,) = methods
    return method(*arguments)


def blank(tier: str, shape: str, joined: Callable[..., Any] = alone, **declared: Any) -> Callable[[MethodT], MethodT]:
    """Declare a method of `Blanks` as a blank; the arguments are the fields of `Blank`.

    The method itself says what holds where no encoding fills the blank.
    """

    def declare(method: MethodT) -> MethodT:
        name, takes = method.__name__, _arguments(method)
        BLANKS[name] = Blank(name=name, takes=takes, tier=tier, shape=shape, joined=joined, **declared)
        return _composing(BLANKS[name], method, takes)

    return declare


def extend(method: MethodT) -> MethodT:
    """Give all encodings a blank that is declared outside `Blanks`: `@extend` above `@blank(...)` above a function."""
    setattr(Blanks, method.__name__, method)
    return method


def form_of(name: str) -> Callable[[MethodT], MethodT]:
    """Declare a method that belongs to a blank, such as `relative_query` to `relative_keys`.

    In a composition, the parts that fill the blank are asked for it, and their results joined as those of the blank.
    """
    return lambda method: _composing(BLANKS[name], method, _arguments(method))


def _fast(name: str) -> Any:
    """The fast form of a blank: the plain form, unless a class has a faster one."""

    def method(self: Blanks, *arguments: Any) -> Any:
        return getattr(self, name)(*arguments)

    method.__name__ = f"fast_{name}"
    return _composing(BLANKS[name], method, BLANKS[name].takes)


def _arguments(method: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments of a method, without `self`."""
    return tuple(inspect.signature(method).parameters)[1:]


def _composing(blank: Blank, empty: MethodT, takes: tuple[str, ...]) -> MethodT:
    """The method of a blank that no class overrides: what the parts of a composition make of it, else `empty`.

    `takes` are the names of its arguments.
    """
    form, sees_features = empty.__name__, not {"x", *OF_FEATURES}.isdisjoint(takes)

    @wraps(empty)
    def method(self: Blanks, *arguments: Any) -> Any:
        parts = self.filling(blank.name)
        # A composition that replaces the plain form says nothing of the parts' fast forms.
        if not parts or (form != blank.name and self.replaces(blank.name)):
            return empty(self, *arguments)
        methods = [getattr(part, form) for part in parts]
        if sees_features:
            methods = [self.narrowed(part, method, takes) for part, method in zip(parts, methods, strict=True)]
        return blank.joined(methods, *arguments)

    return method  # type: ignore[return-value]


class Blanks(nn.Module):
    """Every blank, left empty: maps are the identity, and terms raise NotImplementedError."""

    blanks: frozenset[str]  # the names of those that an encoding fills

    # Token tier: one token and its position.
    @blank("token", "[S, ...]", only="the positions")
    def positions(self, index: Tensor) -> Tensor:
        """The positions that the formulas see, from the order `index` (int64) of the tokens in the sequence.

        Both are `[S]`, or on a grid `[S, 2]`: rows and columns.
        """
        return index

    @blank("token", "[B, T, W]", in_turn)
    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        """The input of the first layer, from the token embeddings (unit variance per number) and the tokens' ids."""
        return x_BTW

    @blank("token", "[B, T, W]", in_turn)
    def mix(self, x_BTW: Tensor) -> Tensor:
        """What the projections and `features` see of the layer's input: mixtures of neighbouring tokens, causal.

        A token is mixed with no more than the `mixed_tokens` last tokens, itself among them, an attribute of the
        encoding. Tokens before those given count as zeros; a cache gives the tokens before again.
        """
        return x_BTW

    @blank("token", "[B, H, T, D]", in_turn)
    def content_query(self, q_BHTD: Tensor) -> Tensor:
        """The query of q . k before any dependence on its position (q + u in Transformer-XL)."""
        return q_BHTD

    @blank("token", "[B, H, T, *]", in_turn, turns=True)
    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        """Queries `[B, H, T, *]` that depend on their positions `pos`, `[T]` or on a grid `[T, 2]`.

        Queries and keys come out equally wide, and may be wider than D. On a line, the last query belongs to the last
        token, so pos[-1] is also the position of the last key.
        """
        return q_BHTD

    @blank("token", "[B, H, S, *]", in_turn, turns=True)
    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        """Keys that depend on their positions, from the outputs of the projection. A cache holds those outputs."""
        return k_BHSD

    @blank("token", "[B, H, S, D]", in_turn)
    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        """Values that depend on their positions, from the outputs of the projection."""
        return v_BHSD

    @blank("token", "[B, H, T, D]", in_turn)
    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        """The attention output of a query, before the output projection."""
        return o_BHTD

    @blank("token", "[B, H, T, F]", concatenated)
    def features(self, x_BTW: Tensor) -> Tensor | None:
        """Features of each token, `[B, H, T, F]`, computed from the layer's input and cached beside k and v; or None.

        F is the attribute `feature_width` of the encoding.
        """
        return None

    @blank("token", "[B, H, S, *]", only="the phase of queries and keys", turns=True)
    def phase(self, f_BHSF: Tensor) -> Tensor:
        """Angles `[B, H, S, P]` in float64 for each token, from the features of all tokens up to it.

        They turn query and key of the token, after `query` and `key`: channels m and m + P by angle m. Channels from
        2 P on are not turned.
        """
        raise NotImplementedError

    @blank("token", "[1, T] or [H, T]", multiplied)
    def temperature(self, n: Tensor) -> Tensor:
        """A factor `[H or 1, T]` on the scores of queries; query t sees n[t] tokens, itself among them."""
        raise NotImplementedError

    # Distance tier: one number per head and distance.
    @blank("distance", "[1, n] or [H, n]", summed, engines=("triton", "native", "tiles", "sdpa", "flex"))
    def distance_bias(self, d: Tensor) -> Tensor:
        """A term of the scores, `[H or 1, n]`, for distances `[n]`."""
        raise NotImplementedError

    @property
    @blank("distance", "", least, engines=("native", "sdpa", "flex"))
    def reach(self) -> int | None:
        """The number of most recent tokens that a query sees, itself among them; None: all tokens."""
        return None

    @property
    @blank("distance", "", max, engines=("native",))
    def sinks(self) -> int:
        """The number of tokens at the start of the sequence that every query sees, whatever `reach` is."""
        return 0

    # Relative tier: one vector per distance.
    @blank("relative", "[1, n, R] or [H, n, R]", concatenated, engines=("native", "tiles", "sdpa"))
    def relative_keys(self, d: Tensor) -> Tensor:
        """Vectors a `[H or 1, n, D]` for distances `[n]`; the score is increased by relative_query(q_i) . a[i-j]."""
        raise NotImplementedError

    @form_of("relative_keys")
    def relative_query(self, q_BHTD: Tensor, f_BHTF: Tensor | None) -> Tensor:
        """The query that meets `relative_keys`, from the output of the projection and the features of its token."""
        return q_BHTD

    @blank("relative", "[1, n, D] or [H, n, D]", summed, engines=("native", "tiles", "sdpa"))
    def relative_queries(self, d: Tensor) -> Tensor:
        """Vectors b `[H or 1, n, D]` for distances `[n]`; the score is increased by k_j . b[i-j], k as projected."""
        raise NotImplementedError

    @blank("relative", "[1, n, D] or [H, n, D]", summed, engines=("native", "tiles"))
    def relative_values(self, d: Tensor) -> Tensor:
        """Vectors c `[H or 1, n, D]` for distances `[n]`, added to the values."""
        raise NotImplementedError

    # Pair tier: two tokens.
    @blank("pair", "[B, H, S]", summed, engines=("native", "tiles", "sdpa", "flex"))
    def potential(self, f_BHSF: Tensor) -> Tensor:
        """A number c `[B, H, S]` in float64 for each token, from the features; c_i - c_j is added to the score."""
        raise NotImplementedError

    @blank("pair", "[H, T, S] or [B, H, T, S]", summed, engines=("native", "sdpa"))
    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        """A term of the scores, `[H, T, S]` or `[B, H, T, S]`, for positions `[T]` and `[S]` and their features."""
        raise NotImplementedError

    # Row tier: a whole row of scores.
    @blank("row", "[B, H, T, S]", only="what replaces q . k")
    def similarity(self, x: Operands) -> Tensor:
        """q_i . k_j, `[B, H, T, S]`, or a replacement of it."""
        return x.q_BHTD @ x.k_BHSD.mT

    @blank("row", "[B, H, T, S]", in_turn_on_visible)
    def scores(self, s_BHTS: Tensor, x: Operands) -> Tensor:
        """New scores from all scores of a row. Those of hidden keys are -inf, and are set to -inf again afterwards."""
        return s_BHTS

    @blank("row", "[H]", log_summed, engines=("native", "sdpa"))
    def null_score(self) -> Tensor:
        """The score `[H]` of a null key: every query sees it, and its value is 0. It stands beside those of `scores`.

        Its weight is lost, so those of the other keys sum to less than 1. It has no position; where the softmax is
        replaced, it counts as the farthest key.
        """
        raise NotImplementedError

    @blank("row", "[B, H, T, S]", only="what replaces the softmax")
    def weights(self, s_BHTS: Tensor) -> Tensor:
        """Attention weights from scores: the softmax, unless replaced."""
        return torch.softmax(s_BHTS, dim=-1)

    @blank("row", "[B, H, T, S]", in_turn)
    def reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        """New attention weights from those after the softmax and the distances (0 for hidden keys)."""
        return p_BHTS

    # Fast forms, which the engines call. The reference calls the plain forms above; the two must agree.
    fast_bias = _fast("bias")
    fast_similarity = _fast("similarity")
    fast_scores = _fast("scores")
    fast_weights = _fast("weights")
    fast_reweight = _fast("reweight")

    def kernel_form(self, x: Operands) -> Any:
        """The blanks of FAST that a class fills, together as one of the forms of poscli/native/call.py; None: no form.

        The engine asks for it only where positions are evenly spaced. In training it does so where the class sets
        `kernel_gradient`; the tensors of the form must then have gradients to all that they are computed from.
        """
        return None

    @classmethod
    def replaces(cls, blank: str) -> bool:
        """Whether the class has a method of its own for a blank."""
        return getattr(cls, blank) is not getattr(Blanks, blank)

    def filling(self, blank: str) -> Sequence[Blanks]:
        """The parts of a composition that fill a blank, in order; none if this is not a composition."""
        return ()

    def narrowed(self, part: Any, method: Callable[..., Any], takes: Sequence[str]) -> Callable[..., Any]:
        """A method of a part of a composition that is given, of the features of all parts, those of this part only."""
        raise NotImplementedError

    def __init_subclass__(cls, **options: object) -> None:
        """Reset the fast forms in a subclass that overrides only the plain form: the inherited ones would be wrong."""
        super().__init_subclass__(**options)
        if vars(cls).keys() & FAST and "kernel_form" not in vars(cls):
            cls.kernel_form = Blanks.kernel_form  # type: ignore[method-assign]
        for blank in FAST:
            if blank in vars(cls) and f"fast_{blank}" not in vars(cls):
                setattr(cls, f"fast_{blank}", getattr(Blanks, f"fast_{blank}"))


# Blanks that may have a fast form beside the plain one, named `fast_` and the blank.
FAST = {name for name in BLANKS if hasattr(Blanks, f"fast_{name}")}
