"""The probe: what a query gives to the key d tokens before it, where all tokens are alike, or in a trained run.

Shapes: B windows, T queries, S keys, H heads, D head width, n distances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poscli.drawing.text import amount
from poscli.equation import Encoding, Operands
from poscli.inspect.numbers import Array, Record, described, in_tokens, largest_range, ranged, sampled, without_nan
from poscli.inspect.subject import MeasuredT, Subject, constant_operands, score_rows, weight_rows

QUERIES = 16  # at the end of each window of a trained run
PAIR_NUMBERS = 2**24  # at a time, of the B H T S D numbers that relative vectors take
SAME = 1e-9  # heads whose curves differ by less, relative to their range, are one curve


@dataclass(frozen=True, eq=False)
class Curves:
    """Values by distance of several lines: one per head, or one per layer."""

    lines: tuple[str, ...]  # the names of the lines
    values: Array  # [lines, n], at distances 0, 1, ..., n - 1

    @property
    def distances(self) -> NDArray[np.int64]:
        """0, 1, ..., n - 1."""
        return np.arange(self.values.shape[1])

    def sampled(self) -> dict[str, object]:
        """Some distances and the values there, for a JSON document."""
        return sampled(self.distances, self.values, self.lines)

    def spread(self, length: int) -> dict[str, object]:
        """How far back these weights reach, for a JSON document; `length` is that of training."""
        return {
            "half_of_the_weight_within": half_distance(self.values).tolist(),
            "keys_of_entropy": effective_keys(self.values).tolist(),
            "weight_beyond_training_length": share_beyond(self.values, length).tolist(),
        }

    def merged(self) -> Curves:
        """One line in place of all, if all are equal."""
        seen = np.isfinite(self.values)
        apart = np.ptp(np.where(seen, self.values, 0), axis=0).max()
        if len(self.lines) == 1 or (seen != seen[:1]).any() or apart > SAME * max(largest_range(self.values), SAME):
            return self
        return Curves((f"all {len(self.lines)} {self.lines[0].split()[0]}s",), self.values[:1])


@dataclass(frozen=True, eq=False)
class WeightCurves(Record):
    """Attention weights by distance of the last query of a training window, and of one of the longest window."""

    near: Curves  # of a query with L keys
    far: Curves | None  # of a query with as many keys as the longest window has; None if there is no such position
    length: int
    longest: int  # tokens of the longest window, whether the encoding can read it or not
    reason: str = ""  # why there is no `far`

    @property
    def shown(self) -> Curves:
        """The curves of the longest window that the encoding can read."""
        return self.near if self.far is None else self.far

    @property
    def finding(self) -> str:
        """Within how many keys half of the weight lies, or that no key is preferred."""
        shown = self.shown.merged()
        if largest_range(shown.values) <= SAME * float(np.abs(shown.values).max()):
            return f"Every one of {shown.values.shape[1]} keys gets the same weight"
        halves, count = half_distance(shown.values), shown.values.shape[1]
        near = half_distance(self.near.merged().values)
        if self.far is None or np.array_equal(near, halves):
            return f"Half of the weight lies on the last {described(halves, shown.lines)}"
        few, many = amount(self.near.values.shape[1]), amount(count)
        return f"Half of the weight lies on the last {ranged(near)} of {few} keys, {ranged(halves)} of {many}"

    def record(self) -> dict[str, object]:
        curves = self.shown
        what = {"lines": list(curves.lines), "keys": curves.values.shape[1]}
        return what | curves.spread(self.length) | {"unsupported": self.reason} | curves.sampled()


@dataclass(frozen=True, eq=False)
class ScoreCurves(Record):
    """Scores by distance, less their value at distance 0, of the last query of a training and of the longest window."""

    near: Curves
    far: Curves | None
    reason: str = ""

    @property
    def finding(self) -> str:
        """How far scores fall from distance 0 to the farthest key."""
        shown = (self.near if self.far is None else self.far).merged()
        if largest_range(shown.values) <= SAME:
            return "The score does not change with the distance"
        last = int(np.flatnonzero(np.isfinite(shown.values).all(axis=0))[-1])
        change = shown.values[:, last]
        rows = [f"{value:+.3g} ({name})" for name, value in zip(shown.lines, change, strict=True)]
        some = rows if len(rows) <= 2 else [rows[int(change.argmin())], rows[int(change.argmax())]]
        return f"{in_tokens(last)} back, the score differs by {' to '.join(some)}"

    def record(self) -> dict[str, object]:
        curves = self.near if self.far is None else self.far
        return {"lines": list(curves.lines), "unsupported": self.reason} | curves.sampled()


def weights_when_alike(subject: Subject) -> WeightCurves:
    """Attention weights of the last query of a training window and of the longest one, where all tokens are alike."""
    near, far, reason = _when_alike(subject, weight_rows)
    return WeightCurves(near, far, subject.length, subject.max_len, reason)


def scores_when_alike(subject: Subject) -> ScoreCurves:
    """Scores of those queries, by distance, less the score of the query's own key."""
    near, far, reason = _when_alike(subject, _scores_less_own)
    return ScoreCurves(near, far, reason)


def weights_of_run(subject: Subject) -> WeightCurves:
    """Mean attention weights by distance of the last queries of windows of a trained run's own text.

    One line per head, or, where the subject has several layers, one per layer with the mean of its heads.
    """
    assert subject.trained is not None
    near, far, reason = _at_both_lengths(subject, partial(_of_run, subject))
    return WeightCurves(near, far, subject.length, subject.max_len, reason)


def half_distance(weights: Array) -> NDArray[np.int64]:
    """The number of most recent keys that hold half of the weight of each row `[lines, n]`: int64 `[lines]`."""
    share = np.abs(weights).cumsum(axis=1)
    return (share < share[:, -1:] / 2 * (1 - 1e-12)).sum(axis=1) + 1


def effective_keys(weights: Array) -> Array:
    """The exponential of the entropy of each row of weights: the number of keys with equal weights of that entropy."""
    p = np.abs(weights) / np.abs(weights).sum(axis=1, keepdims=True)
    return np.exp(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=1))


def share_beyond(weights: Array, length: int) -> Array:
    """The share of the weight on keys `length` or more tokens back, of each row `[lines, n]`."""
    p = np.abs(weights)
    return p[:, length:].sum(axis=1) / p.sum(axis=1)


def head_names(heads: int) -> tuple[str, ...]:
    """`head 1`, `head 2`, ..."""
    return tuple(f"head {n + 1}" for n in range(heads))


def _at_both_lengths(subject: Subject, measure: Callable[[int], MeasuredT]) -> tuple[MeasuredT, MeasuredT | None, str]:
    """What is measured in a training window and in the longest one; and why the second is missing, if it is."""
    longest, tokens, reason = subject.at_longest(measure)
    near = longest if tokens == subject.length else measure(subject.length)
    return near, None if reason else longest, reason


@torch.no_grad()
def _when_alike(subject: Subject, rows: Callable[[Encoding, Operands], Tensor]) -> tuple[Curves, Curves | None, str]:
    """The rows of the last query with L keys and with the most keys, as `_at_both_lengths` has them."""

    def curves(row_HS: Tensor) -> Curves:
        row = without_nan(row_HS.flip(-1).numpy(), f"attention of a query with {row_HS.shape[-1]} keys")
        return Curves(head_names(subject.heads), row)

    near, far, reason = _at_both_lengths(
        subject, lambda keys: rows(subject.encoding, constant_operands(subject.encoding, keys))[0, :, 0]
    )
    return curves(near), None if far is None else curves(far), reason


def _scores_less_own(encoding: Encoding, x: Operands) -> Tensor:
    s_BHTS = score_rows(encoding, x)
    if "scores" in encoding.blanks:
        s_BHTS = encoding.fast_scores(s_BHTS, x).masked_fill(~x.visible(), -torch.inf)
    return s_BHTS - s_BHTS[..., -1:]


def _of_run(subject: Subject, tokens: int) -> Curves:
    """Mean weights by distance on windows of at most this many tokens."""
    return Curves(*by_head_or_layer(subject, tokens, mean_by_distance))


@torch.no_grad()
def by_head_or_layer(
    subject: Subject, tokens: int, measure: Callable[[Encoding, Operands], Array]
) -> tuple[tuple[str, ...], Array]:
    """What is measured in the attention of a trained run, on windows of at most this many tokens, with its names.

    `measure` returns an array with a row per head. If the subject has several layers, each has one row, the mean over
    its heads.
    """
    assert subject.trained is not None
    calls, layers = subject.trained.calls(tokens), []
    for number in subject.layers:
        attention = subject.trained.model.attention[number - 1]
        layers.append(measure(attention.encoding, calls[number - 1].operands(attention)))
    if len(layers) == 1:
        return head_names(subject.heads), layers[0]
    return tuple(f"layer {number}" for number in subject.layers), np.stack([each.mean(axis=0) for each in layers])


def mean_by_distance(encoding: Encoding, x: Operands) -> Array:
    """The mean over texts and over the last queries of the weights of pairs by distance, `[H, n]`.

    Distances reach as far as those of the first of these queries.
    """
    batch, heads, _, width = x.k_BHSD.shape
    queries = min(QUERIES, x.queries // 2)
    step = max(1, PAIR_NUMBERS // (batch * heads * x.keys * width))
    reach, total = x.keys - queries + 1, np.zeros((heads, x.keys - queries + 1))
    for start, stop in pairwise([*range(x.queries - queries, x.queries, step), x.queries]):
        part = x.block(start, stop)
        p_HTS = weight_rows(encoding, part).double().mean(dim=0).flip(-1).numpy()
        for row in range(stop - start):
            last = stop - start - 1 - row  # keys after this query, which the flip has put first
            total += p_HTS[:, row, last : last + reach]
    return without_nan(total / queries, "attention in the run's text")
