"""Distance biases: the term of each head by distance, and the attention that the terms alone would give.

Shapes: H heads, n distances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from poscli.drawing.text import amount
from poscli.inspect.numbers import Record, described, sampled, spread
from poscli.inspect.probe import Curves, beyond, effective_keys, half_distance, head_names
from poscli.inspect.subject import Subject

STRAIGHT = 1e-9  # of the range: a curve that is nowhere farther from a line is a line


@dataclass(frozen=True, eq=False)
class Bias(Record):
    """The term `distance_bias` of each head at distances 0, 1, ..., n - 1."""

    curves: Curves
    length: int

    @property
    def straight(self) -> bool:
        """Whether every head's curve is a line."""
        values = self.curves.values
        ends = np.linspace(values[:, 0], values[:, -1], values.shape[1], axis=1)
        return bool(np.abs(values - ends).max() <= STRAIGHT * max(spread(values), 1e-300))

    @property
    def finding(self) -> str:
        """The shape of the curves, and where they stop to tell distances apart."""
        shown = self.curves.merged()
        if spread(shown.values) == 0:
            return "The bias is the same at every distance"
        if self.straight:
            slopes = (shown.values[:, 0] - shown.values[:, -1]) / (shown.values.shape[1] - 1)
            low, high = float(slopes.min()), float(slopes.max())
            return (
                f"A line per head: {high:.3g} to {low:.3g} less per token" if low < high else f"A line: -{high:.3g} d"
            )
        flat = self.flat_from()
        if flat is not None:
            return f"Steps or curves, level from {amount(flat)} tokens on"
        reach = amount(shown.values.shape[1] - 1)
        return f"Between 0 and {reach} tokens the bias changes by up to {spread(shown.values):.3g}"

    def flat_from(self) -> int | None:
        """The distance from which all heads are level, if that is in the first half of the distances."""
        values = self.curves.values
        moving = np.flatnonzero((values != values[:, -1:]).any(axis=0))
        first = int(moving[-1]) + 1 if len(moving) else 0
        return first if first <= values.shape[1] // 2 else None

    def record(self) -> dict[str, object]:
        found = self.curves
        return {"lines": self.straight, "level_from": self.flat_from()} | sampled(
            found.distances, found.values, found.lines
        )


@dataclass(frozen=True, eq=False)
class BiasAlone(Record):
    """The softmax of the biases over all distances of a query: the weights if every product q . k were the same."""

    curves: Curves
    length: int

    @property
    def finding(self) -> str:
        """Within how many keys half of the weight lies, and how much lies beyond the training length."""
        shown = self.curves.merged()
        far = 100 * beyond(shown.values, self.length)
        low, high = f"{far.min():.2g}" if far.min() > 0.01 else "0", f"{far.max():.2g}" if far.max() > 0.01 else "0"
        share = low if low == high else f"{low} to {high}"
        halves = described(half_distance(shown.values), shown.lines, "keys")
        return f"By itself it puts half of the weight on the last {halves}, and {share} % beyond {self.length}"

    def record(self) -> dict[str, object]:
        found = self.curves
        return {
            "half_of_the_weight_within": half_distance(found.values).tolist(),
            "keys_of_entropy": effective_keys(found.values).tolist(),
            "weight_beyond_training_length": beyond(found.values, self.length).tolist(),
        } | sampled(found.distances, found.values, found.lines)


@torch.no_grad()
def bias(subject: Subject) -> Bias:
    """The curves, up to the longest window."""
    values = subject.encoding.distance_bias(torch.arange(subject.max_len)).double().numpy()
    return Bias(Curves(_names(len(values)), values), subject.length)


def bias_alone(subject: Subject) -> BiasAlone:
    """The weights of a query with as many keys as the longest window has, or as the encoding's reach lets it see."""
    values = bias(subject).curves.values
    values = values[:, : subject.encoding.reach or subject.max_len]
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    return BiasAlone(Curves(_names(len(values)), weights / weights.sum(axis=1, keepdims=True)), subject.length)


def _names(heads: int) -> tuple[str, ...]:
    return head_names(heads) if heads > 1 else ("all heads",)
