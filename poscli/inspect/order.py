"""Blanks that see the order of the tokens: the positions that formulas see, and the temperature of each query.

Shapes: n tokens, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from poscli.drawing.text import amount, number
from poscli.equation import Unsupported
from poscli.inspect.constant import CPU
from poscli.inspect.numbers import Array, Record, log_spaced, sampled
from poscli.inspect.probe import head_names
from poscli.inspect.subject import Subject


@dataclass(frozen=True, eq=False)
class ByOrder(Record):
    """Values by the number of a token, from 0, in lines; the text of the finding is made where they are measured."""

    at: NDArray[np.int64]  # [n]
    values: Array  # [lines, n]
    names: tuple[str, ...]
    length: int
    found: str

    @property
    def finding(self) -> str:
        return self.found

    def record(self) -> dict[str, object]:
        return sampled(self.at, self.values, self.names)


def positions(subject: Subject) -> ByOrder:
    """The position of every token in a training window and in the longest window."""
    windows = {}
    for tokens in dict.fromkeys((subject.length, subject.max_len)):
        try:
            windows[tokens] = subject.encoding.locate(tokens, CPU).pos.double().numpy()
        except Unsupported:
            if not windows:
                raise
    at = log_spaced(max(windows), 400)
    rows = [np.where(at < len(pos), pos[np.minimum(at, len(pos) - 1)], np.nan) for pos in windows.values()]
    last = max(windows)
    found = f"The last of {amount(last)} tokens is at position {number(float(windows[last][-1]))}"
    if len(windows) > 1:
        found += f", the last of {amount(subject.length)} at {number(float(windows[subject.length][-1]))}"
    return ByOrder(at, np.stack(rows), tuple(f"{amount(n)} tokens" for n in windows), subject.length, found)


def temperature(subject: Subject) -> ByOrder:
    """The factor on the scores of the query that sees n keys."""
    n = torch.arange(1, subject.max_len + 1)
    values = subject.encoding.temperature(n).double().numpy()
    at = log_spaced(subject.max_len, 400)
    ends = values[:, [min(subject.length, subject.max_len) - 1, -1]].mean(axis=0)
    found = f"Scores are multiplied by {ends[0]:.3g} at {subject.length} keys, by {ends[1]:.3g} at {amount(len(n))}"
    names = head_names(len(values)) if len(values) > 1 else ("all heads",)
    return ByOrder(at, values[:, at], names, subject.length, found)
