"""The attention equation with named blanks. Every encoding fills some of them; every other one is the identity.

    x_i  = embed(x_i, i)
    q_i  = query(q_i, i)      k_j = key(k_j, j)      v_j = value(v_j, j)
    s_ij = (q_i . k_j + q_i . a[i-j] + k_j . b[i-j]) * scale + distance_bias[h, i-j] + bias(h, i, j)
    o_i  = output( sum_j weights(scores(s))_ij (v_j + c[i-j]), i )

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D head width, W model
width, n distances. Positions are arguments everywhere: int64 `[T]` as counted by the model, or whatever
`positions` makes of them. Distances d = i - j are never negative: attention is causal.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

# Blanks by what they may see. The highest tier that an encoding touches decides which engines can run it.
TIERS: dict[str, tuple[str, ...]] = {
    "token": ("positions", "embed", "query", "key", "value", "output", "features"),
    "distance": ("distance_bias",),
    "relative": ("relative_keys", "relative_queries", "relative_values"),
    "pair": ("bias",),
    "row": ("scores", "weights", "mix"),
}
BLANKS = tuple(blank for blanks in TIERS.values() for blank in blanks)


class Unsupported(Exception):
    """An input that an encoding cannot take by definition, such as a position beyond a learned table."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What an encoding may know about the model that it is part of."""

    width: int  # W
    heads: int  # H
    layers: int
    length: int  # tokens in a training window, L

    @property
    def head_width(self) -> int:
        """D, the numbers per head."""
        return self.width // self.heads


class Encoding(nn.Module):
    """Base class: no position information at all. Override the blanks that the paper touches.

    What a class acts on is computed from what it overrides (`blanks`), so that nothing needs declaring. The
    keyword-only parameters of the constructor, with their defaults and types, are the options of its spec;
    raise ValueError for a value out of range.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    family: ClassVar[str]
    shared: ClassVar[bool] = False  # one instance for all layers, or one (with its own weights) for each
    rescales: ClassVar[bool] = False  # does the output at i change with the total length, by definition?

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.blanks = frozenset(blank for blank in BLANKS if _overrides(type(self), blank))

    # token tier: one token and its position

    def positions(self, index: Tensor) -> Tensor:
        """Positions that the formulas see, from the tokens' order `[S]` (int64) in the sequence."""
        return index

    def embed(self, x_BTW: Tensor, pos: Tensor) -> Tensor:
        """The input of layer 1, from token embeddings of unit variance per number."""
        return x_BTW

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        """Queries; may come back wider than D if the keys do too."""
        return q_BHTD

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        """Keys, from the projection (that is what a cache holds)."""
        return k_BHSD

    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        """Values."""
        return v_BHSD

    def output(self, o_BHTD: Tensor, pos: Tensor) -> Tensor:
        """What a query gets back, before the output projection."""
        return o_BHTD

    def features(self, x_BTW: Tensor) -> Tensor | None:
        """Further numbers per token `[B, H, T, F]`, made of the layer's input, cached beside k and v."""
        return None

    # distance tier: one number per head and distance

    def distance_bias(self, d: Tensor) -> Tensor:
        """A term of the scores, `[H or 1, n]`, for distances `[n]`; -inf hides a key."""
        raise NotImplementedError

    # relative tier: one vector per distance

    def relative_query(self, q_BHTD: Tensor) -> Tensor:
        """The query that meets `relative_keys`, from the projection."""
        return q_BHTD

    def relative_keys(self, d: Tensor) -> Tensor:
        """Vectors a `[H or 1, n, D]` that a query meets at distances `[n]`."""
        raise NotImplementedError

    def relative_queries(self, d: Tensor) -> Tensor:
        """Vectors b `[H or 1, n, D]` that a key (from the projection) meets."""
        raise NotImplementedError

    def relative_values(self, d: Tensor) -> Tensor:
        """Vectors c `[H or 1, n, D]` added to the values."""
        raise NotImplementedError

    # pair tier: two tokens

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        """A term of the scores `[H, T, S]` or `[B, H, T, S]` for positions `[T]`, `[S]` and their features."""
        raise NotImplementedError

    # row tier: a whole row of scores

    def scores(self, s_BHTS: Tensor, q_BHTD: Tensor) -> Tensor:
        """Scores from scores; hidden keys come as -inf, and are hidden again afterwards."""
        return s_BHTS

    def weights(self, s_BHTS: Tensor) -> Tensor:
        """Attention weights from scores: the softmax, unless replaced."""
        return torch.softmax(s_BHTS, dim=-1)

    def mix(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
        """Attention weights after the softmax, with the distances they stand at (0 for hidden keys)."""
        return p_BHTS

    # what follows from the above

    @property
    def scale(self) -> float:
        """The factor on q . k."""
        return self.shape.head_width**-0.5

    @property
    def tier(self) -> str:
        """The highest tier that this encoding touches."""
        return [tier for tier, blanks in TIERS.items() if tier == "token" or self.blanks & set(blanks)][-1]

    def leave(self, blank: str) -> None:
        """Leave a blank empty that the class fills, because an option says so."""
        assert blank in self.blanks
        self.blanks -= {blank}

    @classmethod
    def options(cls) -> dict[str, inspect.Parameter]:
        """The keyword-only parameters of the constructor, in order: the options of the spec."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def _overrides(cls: type[Encoding], blank: str) -> bool:
    return getattr(cls, blank) is not getattr(Encoding, blank)
