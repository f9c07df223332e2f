"""The dtypes of a model's arithmetic. Weights, norms and the loss are always float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    """Dtypes of the matrix products and of attention."""

    linear: torch.dtype = torch.float32
    attention: torch.dtype = torch.float32


def precision_of(name: str, device: torch.device) -> Precision:
    """The dtypes for a precision, such as `bfloat16`, on a device.

    On CUDA, everything but norms and loss has the precision. On CPU, only the matrix products have it: the bfloat16
    backward pass of torch's fused attention takes 5 times as long there as that in float32.
    """
    if name == "float32":
        return Precision()
    dtype = getattr(torch, name)
    return Precision(linear=dtype, attention=dtype if device.type == "cuda" else torch.float32)
