"""The base of all numbers behind pictures, and how several of them are written in one sentence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poscli.drawing.text import amount, low_to_high
from poscli.equation import Unsupported

Array = NDArray[np.float64]
SAMPLES = 64  # values of a curve in a JSON document


class Record(ABC):
    """Numbers of one picture, with the finding that is its title."""

    @property
    @abstractmethod
    def finding(self) -> str:
        """What the numbers say, in one sentence without a full stop."""

    @abstractmethod
    def record(self) -> dict[str, object]:
        """The numbers for a JSON document, without NaN or infinity."""


@dataclass(frozen=True)
class Missing(Record):
    """In place of numbers: why there are none."""

    reason: str

    @property
    def finding(self) -> str:
        return self.reason

    def record(self) -> dict[str, object]:
        return {"unsupported": self.reason}


def without_nan(values: Array, what: str) -> Array:
    """The values, if none of them is NaN. Raises Unsupported, which says what is not a number."""
    if np.isnan(values).any():
        raise Unsupported(f"{what} is not a number (NaN) in {int(np.isnan(values).sum())} of {values.size} places")
    return values


def log_spaced(count: int, most: int = SAMPLES) -> NDArray[np.int64]:
    """At most `most` whole numbers from 0 to count - 1, dense at the start and then evenly spaced in their logarithm.

    >>> log_spaced(1000, 8).tolist()
    [0, 2, 6, 18, 51, 138, 372, 999]
    """
    spaced = np.geomspace(1, max(count, 2), most).round().astype(np.int64) - 1
    return np.unique(spaced[spaced < count])


def sampled(x: NDArray[np.generic], rows: Array, names: Sequence[str]) -> dict[str, object]:
    """Curves for a JSON document: some x, and the values of every line there, null where they are not finite."""
    at = log_spaced(len(x))
    shown = [[float(value) if np.isfinite(value) else None for value in row[at]] for row in rows]
    return {"at": x[at].tolist(), "values": dict(zip(names, shown, strict=True))}


def largest_range(values: Array) -> float:
    """The largest difference of two finite values of one row."""
    finite = np.where(np.isfinite(values), values, np.nan)
    return float(np.nanmax(np.nanmax(finite, axis=-1) - np.nanmin(finite, axis=-1)))


def described(values: Sequence[float] | NDArray[np.generic], names: Sequence[str]) -> str:
    """A number of keys of each line in words: one if all are equal, else the smallest and the largest.

    >>> described([3, 3], ["head 1", "head 2"])
    '3 keys'
    >>> described([90, 1, 5], ["head 1", "head 2", "head 3"])
    '1 (head 2) to 90 keys (head 1)'
    """
    numbers = np.asarray(values)
    low, high = int(numbers.argmin()), int(numbers.argmax())
    if amount(numbers[low]) == amount(numbers[high]):
        return f"{amount(numbers[low])} key{'' if numbers[low] == 1 else 's'}"
    return f"{amount(numbers[low])} ({names[low]}) to {amount(numbers[high])} keys ({names[high]})"


def in_tokens(count: float) -> str:
    """A number of tokens in words.

    >>> in_tokens(1), in_tokens(20000)
    ('1 token', '20k tokens')
    """
    return f"{amount(count)} token{'' if count == 1 else 's'}"


def ranged(values: Sequence[float] | NDArray[np.generic]) -> str:
    """The smallest and the largest of some counts, or only one if they read the same.

    >>> ranged([3, 3]), ranged([90, 1, 5])
    ('3', '1 to 90')
    """
    numbers = np.asarray(values)
    return low_to_high([float(numbers.min()), float(numbers.max())])
