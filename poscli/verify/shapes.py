"""Compare the shape that every filled blank returns with the one that poscli/equation/blanks.py states."""

from __future__ import annotations

import torch
from torch import Tensor

from poscli.equation import Encoding
from poscli.verify.subject import HEADS, LENGTH, WIDTH, Subject

D = WIDTH // HEADS


def wrong_shapes(encoding: Encoding, subject: Subject, dtype: torch.dtype) -> str:
    """A sentence on the first blank whose shape or dtype is wrong; '' if all are right."""
    given = subject.inputs(LENGTH, LENGTH, dtype)
    pos = encoding.positions(torch.arange(LENGTH))
    with torch.no_grad():
        for blank, value, allowed in _returned(encoding, given, pos, subject):
            if value.shape not in {torch.Size(shape) for shape in allowed}:
                stated = " or ".join(str(list(shape)) for shape in allowed)
                return f"{blank} returns {list(value.shape)}, not {stated}"
            if blank in ("query", "key", "value", "output") and value.dtype != dtype:
                return f"{blank} turns {dtype} into {value.dtype}"
        if {"query", "key"} & encoding.blanks:
            q, k = encoding.query(given["q"], pos), encoding.key(given["k"], pos)
            if q.shape[-1] != k.shape[-1]:
                return f"query and key come back with {q.shape[-1]} and {k.shape[-1]} channels"
    return ""


Shapes = list[tuple[int, ...]]
Returned = list[tuple[str, Tensor, Shapes]]


def _returned(encoding: Encoding, given: dict[str, Tensor], pos: Tensor, subject: Subject) -> Returned:
    """The name, the result and the allowed shapes of the blanks that an encoding fills."""
    whole, like_v = tuple(given["x"].shape), tuple(given["v"].shape)
    has = encoding.blanks
    calls: Returned = []
    if "positions" in has:
        calls.append(("positions", pos, [(LENGTH,)]))
    if "embed" in has:
        calls.append(("embed", encoding.embed(given["x"], pos, subject.text(LENGTH)), [whole]))
    if "content_query" in has:
        calls.append(("content_query", encoding.content_query(given["q"]), [like_v]))
    for blank in ("query", "key"):
        if blank in has:
            value = getattr(encoding, blank)(given["q"], pos)
            calls.append((blank, value, [(*like_v[:3], value.shape[-1])]))
    for blank in ("value", "output"):
        if blank in has:
            calls.append((blank, getattr(encoding, blank)(given["v"], pos), [like_v]))
    return [*calls, *_returned_for_scores(encoding, given, pos)]


def _returned_for_scores(encoding: Encoding, given: dict[str, Tensor], pos: Tensor) -> Returned:
    """`_returned` for features, and for blanks that add to the scores or to the values."""
    like_v, d, has = tuple(given["v"].shape), torch.arange(LENGTH), encoding.blanks
    per_distance: Shapes = [(heads, LENGTH) for heads in (1, HEADS)]
    vectors: Shapes = [(heads, LENGTH, D) for heads in (1, HEADS)]
    calls: Returned = []
    if "features" in has:
        calls.append(("features", encoding.features(given["x"]), [(*like_v[:3], encoding.feature_width)]))
    if "temperature" in has:
        calls.append(("temperature", encoding.temperature(d + 1), per_distance))
    if "distance_bias" in has:
        calls.append(("distance_bias", encoding.distance_bias(d), per_distance))
    for blank in ("relative_queries", "relative_values"):
        if blank in has:
            calls.append((blank, getattr(encoding, blank)(d), vectors))
    if "relative_keys" in has:
        width = encoding.relative_query(given["q"]).shape[-1]
        calls.append(("relative_keys", encoding.relative_keys(d), [(heads, LENGTH, width) for heads in (1, HEADS)]))
    if "potential" in has:
        per_token: Shapes = [(like_v[0], HEADS, LENGTH)]
        calls.append(("potential", encoding.potential(encoding.features(given["x"])).to(given["x"].dtype), per_token))
    if "bias" in has:
        f = encoding.features(given["x"]) if "features" in has else None
        pairs: Shapes = [(HEADS, LENGTH, LENGTH), (like_v[0], HEADS, LENGTH, LENGTH)]
        calls.append(("bias", encoding.bias(pos, pos, f, f), pairs))
    return calls
