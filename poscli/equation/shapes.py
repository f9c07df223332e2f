"""Compare the shape that every filled blank returns with the one that blanks.py states.

B batch, T tokens, H heads, D head width, W model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from poscli.equation.encoding import Encoding, Shape
from poscli.equation.operands import Operands

Shapes = list[tuple[int, ...]]
Returned = Iterator[tuple[str, Tensor, Shapes]]
TOKENS, BATCH = 16, 2  # of the input on which an encoding is tried


@dataclass(frozen=True, eq=False)
class BlankInputs:
    """What the blanks of one layer are given: the layer's input, its queries or values, and the ids of the tokens."""

    x_BTW: Tensor
    q_BHTD: Tensor
    ids_BT: Tensor

    @classmethod
    def of(cls, shape: Shape, dtype: torch.dtype = torch.float32) -> BlankInputs:
        """Ordinary numbers for a model's shape, at most TOKENS tokens long."""
        tokens = min(TOKENS, shape.length)
        x = torch.linspace(-1, 1, BATCH * tokens * shape.width).view(BATCH, tokens, shape.width)
        ids = torch.arange(BATCH * tokens).view(BATCH, tokens) % shape.vocab
        return cls(x, x.unflatten(2, (shape.heads, -1)).transpose(1, 2).to(dtype), ids)

    @property
    def tokens(self) -> int:
        """T."""
        return self.q_BHTD.shape[2]


@torch.no_grad()
def wrong_shapes(encoding: Encoding, given: BlankInputs) -> str:
    """A sentence on the first blank whose shape or dtype is wrong; '' if all are right."""
    pos, dtype = encoding.locate(given.tokens, given.q_BHTD.device).pos, given.q_BHTD.dtype
    for blank, value, allowed in _returned(encoding, given, pos):
        if not isinstance(value, Tensor):
            return f"{blank} returns a {type(value).__name__}, not a tensor"
        if value.shape not in {torch.Size(shape) for shape in allowed}:
            stated = " or ".join(str(list(shape)) for shape in allowed)
            return f"{blank} returns {list(value.shape)}, not {stated}"
        if blank in ("query", "key", "value", "output") and value.dtype != dtype:
            return f"{blank} turns {dtype} into {value.dtype}"
    if {"query", "key"} & encoding.blanks:
        q, k = encoding.query(given.q_BHTD, pos), encoding.key(given.q_BHTD, pos)
        if q.shape[-1] != k.shape[-1]:
            return f"query and key come back with {q.shape[-1]} and {k.shape[-1]} channels"
    return ""


def _returned(encoding: Encoding, given: BlankInputs, pos: Tensor) -> Returned:
    """The name, the result and the allowed shapes of the blanks that an encoding fills."""
    x, q, has = given.x_BTW, given.q_BHTD, encoding.blanks
    if "positions" in has:
        yield "positions", pos, [(given.tokens,) if encoding.axes == 1 else (given.tokens, 2)]
    if "embed" in has:
        yield "embed", encoding.embed(x, pos, given.ids_BT), [tuple(x.shape)]
    if "content_query" in has:
        yield "content_query", encoding.content_query(q), [tuple(q.shape)]
    for blank in ("query", "key"):
        if blank in has:
            value = getattr(encoding, blank)(q, pos)
            width = value.shape[-1:] if isinstance(value, Tensor) else ()
            yield blank, value, [(*q.shape[:3], *width)]
    for blank in ("value", "output"):
        if blank in has:
            yield blank, getattr(encoding, blank)(q, pos), [tuple(q.shape)]
    yield from _returned_for_scores(encoding, given, pos)
    yield from _returned_for_rows(encoding, given, pos)


def _returned_for_scores(encoding: Encoding, given: BlankInputs, pos: Tensor) -> Returned:
    """`_returned` for features, and for blanks that add to the scores or to the values."""
    x, q, has = given.x_BTW, given.q_BHTD, encoding.blanks
    (batch, heads, tokens, width), n = q.shape, torch.arange(given.tokens) + 1
    d = n - 1 if encoding.axes == 1 else pos
    per_distance: Shapes = [(some, tokens) for some in (1, heads)]
    vectors: Shapes = [(some, tokens, width) for some in (1, heads)]
    if "features" in has:
        yield "features", encoding.features(x), [(batch, heads, tokens, encoding.feature_width)]
    if "temperature" in has:
        yield "temperature", encoding.temperature(n), per_distance
    if "distance_bias" in has:
        yield "distance_bias", encoding.distance_bias(d), per_distance
    for blank in ("relative_queries", "relative_values"):
        if blank in has:
            yield blank, getattr(encoding, blank)(d), vectors
    if "relative_keys" in has:
        query_width = encoding.relative_query(q).shape[-1]
        yield "relative_keys", encoding.relative_keys(d), [(some, tokens, query_width) for some in (1, heads)]
    if "potential" in has:
        yield "potential", encoding.potential(encoding.features(x)), [(batch, heads, tokens)]
    if "bias" in has:
        f = encoding.features(x) if "features" in has else None
        pairs: Shapes = [(heads, tokens, tokens), (batch, heads, tokens, tokens)]
        yield "bias", encoding.bias(pos, pos, f, f), pairs


def _returned_for_rows(encoding: Encoding, given: BlankInputs, pos: Tensor) -> Returned:
    """`_returned` for the blanks that see a whole row of scores or weights."""
    has, raw = encoding.blanks, given.q_BHTD
    f = encoding.features(given.x_BTW) if "features" in has else None
    q, k, v = encoding.query(encoding.content_query(raw), pos), encoding.key(raw, pos), encoding.value(raw, pos)
    x = Operands(
        q_BHTD=q, k_BHSD=k, v_BHSE=v, raw_q_BHTD=raw, raw_k_BHSD=raw, pos_S=pos, step=None, features_BHSF=f
    )  # fmt: skip
    rows: Shapes = [(*raw.shape[:3], given.tokens)]
    s_BHTS = (raw @ raw.mT * encoding.scale).masked_fill(~x.visible(), -torch.inf)
    if "similarity" in has:
        yield "similarity", encoding.similarity(x), rows
    if "scores" in has:
        yield "scores", encoding.scores(s_BHTS, x), rows
    if "weights" in has:
        yield "weights", encoding.weights(s_BHTS), rows
    if "reweight" in has:
        yield "reweight", encoding.reweight(s_BHTS.softmax(dim=-1), x.distances()), rows
