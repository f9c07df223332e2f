"""One row of a property sheet, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Property:
    """One measured property: a short value, a sentence that explains it, and the raw numbers behind both.

    `numbers` holds plain JSON data. What could not be measured is None there.
    """

    name: str
    value: str
    detail: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The row as data for JSON."""
        return {"name": self.name, "value": self.value, "detail": self.detail, "numbers": self.numbers}


def relative_change(before: Tensor, after: Tensor) -> float:
    """The root mean square of after - before, divided by that of before."""
    return float((after - before).norm() / before.norm())


def percent(share: float) -> str:
    """A share, in percent with two significant digits; below 0.01 percent as a power of ten.

    >>> percent(0.1234), percent(0.00391), percent(3e-12), percent(0.0), percent(2.0)
    ('12%', '0.39%', '3e-12', '0', '200%')
    """
    if not math.isfinite(share) or share == 0:
        return f"{share:g}"
    if share < 1e-4:
        return f"{share:.0e}"
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.2g}%"


def in_training_lengths(tokens: int, length: int) -> str:
    """A number of tokens as a multiple of the training length L, where it is one.

    >>> [in_training_lengths(tokens, 512) for tokens in (512, 8192, 600, 1)]
    ['L', '16 L', '600 tokens', '1 token']
    """
    if tokens % length == 0:
        return "L" if tokens == length else f"{tokens // length} L"
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"


def ranges(values: Sequence[tuple[str, str]]) -> str:
    """Join labelled texts; neighbours with the same text share it, and a text that all share needs no label.

    >>> ranges([("float16", "7,933"), ("bfloat16", "any"), ("float32", "any")])
    'float16 7,933; bfloat16 and float32 any'
    >>> ranges([("float16", "any"), ("float32", "any")])
    'any'
    """
    joined: list[tuple[list[str], str]] = []
    for label, text in values:
        if joined and joined[-1][1] == text:
            joined[-1][0].append(label)
        else:
            joined.append(([label], text))
    if len(joined) == 1:
        return joined[0][1]
    return "; ".join(f"{' and '.join(labels)} {text}" for labels, text in joined)
