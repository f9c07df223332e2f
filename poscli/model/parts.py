"""The parts of a layer that see each token alone: norm and gated MLP, by the compiled kernels where these can run.

The kernels differ from torch's in rounding only, and make one pass over memory where torch makes several.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.native import library
from poscli.native.layers import rms_norm, swiglu

EPSILON = 1e-6


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + 1e-6) * weight."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        kernels = _kernels(x, self.weight)
        return super().forward(x) if kernels is None else rms_norm(kernels, x, self.weight, EPSILON)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    kernels = _kernels(gate, up)
    return F.silu(gate) * up if kernels is None else swiglu(kernels, gate, up)


def _kernels(*tensors: Tensor) -> ctypes.CDLL | None:
    """The library, if it can compute with these tensors."""
    plain = all(
        x.device.type == "cpu" and x.dtype == torch.float32 and type(x) in (Tensor, nn.Parameter) for x in tensors
    )
    return library() if plain and not torch.compiler.is_compiling() else None
