"""Numbers in tables of snapshots: waves as input, and few digits of what comes out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor


def wave(*size: int, start: int = 0) -> Tensor:
    """Numbers between -1 and 1 in float64 that no symmetry relates to each other."""
    count = torch.Size(size).numel()
    return torch.sin(1.7 * torch.arange(count, dtype=torch.float64) ** 1.1 + start + 1).view(size)


def digest(x: Tensor) -> str:
    """One number on a whole tensor, to which every entry contributes by a factor of its own."""
    x = x.double().flatten()
    finite = torch.where(x.isfinite(), x, 0)
    lost = int((~x.isfinite()).sum())
    return f"<{number(float(finite @ wave(len(x), start=2)))}{f', {lost} not finite' if lost else ''}>"


def numbers(values: Iterable[float] | Tensor) -> str:
    """The numbers of a row, whole ones only where the type says so."""
    return " ".join(number(x, most=3) for x in (values.tolist() if isinstance(values, Tensor) else values))


def number(value: float, most: int = 4) -> str:
    """A number with at most so many decimals, fewer if it is large."""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    size = abs(value)
    digits = most if size < 10 else 2 if size < 1000 else 1
    return f"{value:.3e}" if size >= 1e6 else f"{round(value, digits) + 0.0:.{digits}f}"


def in_line(name: str, parts: Iterable[str]) -> Iterator[str]:
    """A name and parts, as indented lines of up to 160 characters."""
    line = f"  {name}"
    for part in parts:
        if len(line) + len(part) > 160:
            yield line
            line = "   "
        line += f" {part};"
    yield line.rstrip(";")
