"""Random inputs of a trial of kernels, and what rounding explains of a difference from the exact results.

The tolerance follows from the dtypes: four times the change that one unit of rounding in every input causes, as
arithmetic in another order gives the exact result for inputs that are off by a few units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

FLOAT32 = 2**-23  # the unit of rounding of float32
# Results that are sums over as many pairs as there are keys.
SUMMED = {f"gradient of {name}" for name in ("table", "a", "b", "potential")}

Tensors = dict[str, Tensor]


def difference(found: Tensors, right: Tensors, near: Iterable[Tensors], dtype: torch.dtype, keys: int) -> str:
    """The result that exceeds its tolerance by the largest factor, with its error; '' if none exceeds it.

    `near` are the exact results of inputs that were moved by a unit of rounding. Where sums cancel for every input, the
    rounding of a sum of 16 products of order 1 remains, and in a gradient per distance or of a potential that of one
    such sum for each of the keys.
    """
    others, worst, said = list(near), 1.0, ""
    for name, x in right.items():
        sums = keys if name in SUMMED else 1
        changes = (float((other[name] - x).abs().max()) for other in others)
        limit = 4 * max(16 * FLOAT32 * sums, torch.finfo(dtype).eps * float(x.abs().max()), *changes)
        error = float((found[name] - x).abs().max())
        factor = math.inf if math.isnan(error) else error / limit
        if factor > worst:
            worst, said = factor, f"the {name} is off by {error:.2g}, where rounding explains {limit:.2g}"
    return said


def moved(x: Tensor, unit: float, seed: int) -> Tensor:
    """The tensor with every number moved by one unit of rounding, up or down at random."""
    return x * (1 + unit * draw(*x.shape, seed=100 + seed).sign())


def draw(*size: int, seed: int) -> Tensor:
    """Standard normal numbers in float64 on the CPU, from a generator of their own."""
    return torch.randn(size, generator=torch.Generator("cpu").manual_seed(seed), dtype=torch.float64, device="cpu")


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")
