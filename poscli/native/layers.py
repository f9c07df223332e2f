"""RMSNorm and SwiGLU on a CPU, forward and backward, each in one pass over memory. All tensors are float32.

Shapes: any leading dimensions, N numbers of the last one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TOKENS = 64  # tokens whose gradients of a weight are added up in one row, as in layers.cpp


def rms_norm(library: ctypes.CDLL, x: Tensor, weight_N: Tensor, epsilon: float) -> Tensor:
    """RMSNorm: x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich, 2019, arXiv:1910.07467)."""
    out: Tensor = _Norm.apply(library, x.contiguous(), weight_N, epsilon)
    return out


def swiglu(library: ctypes.CDLL, gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU: silu(gate) * up (Shazeer, 2020, arXiv:2002.05202)."""
    out: Tensor = _SwiGLU.apply(library, gate.contiguous(), up.contiguous())
    return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: ctypes.CDLL, x: Tensor, weight_N: Tensor, epsilon: float) -> Tensor:
        width = x.shape[-1]
        y, reciprocal = torch.empty_like(x), x.new_empty(x.numel() // width)
        library.norm_forward(
            *map(_at, (x, weight_N, y, reciprocal)),
            _int(len(reciprocal)),
            _int(width),
            ctypes.c_float(epsilon),
            _threads(),
        )
        ctx.library = library
        ctx.save_for_backward(x, weight_N, reciprocal)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_N, reciprocal = ctx.saved_tensors
        grad, grad_x = grad.contiguous(), torch.empty_like(x)
        of_weight = x.new_empty(-(-len(reciprocal) // TOKENS), x.shape[-1])
        tensors = (grad, x, weight_N, reciprocal, grad_x, of_weight)
        ctx.library.norm_backward(*map(_at, tensors), _int(len(reciprocal)), _int(x.shape[-1]), _threads())
        return None, grad_x, of_weight.sum(0), None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: ctypes.CDLL, gate: Tensor, up: Tensor) -> Tensor:
        y = torch.empty_like(gate)
        library.swiglu_forward(*map(_at, (gate, up, y)), _int(y.numel()), _threads())
        ctx.library = library
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        grad, grad_gate, grad_up = grad.contiguous(), torch.empty_like(gate), torch.empty_like(up)
        ctx.library.swiglu_backward(*map(_at, (grad, gate, up, grad_gate, grad_up)), _int(up.numel()), _threads())
        return None, grad_gate, grad_up


def _at(x: Tensor) -> ctypes.c_void_p:
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    return ctypes.c_void_p(x.data_ptr())


def _int(x: int) -> ctypes.c_int64:
    return ctypes.c_int64(x)


def _threads() -> ctypes.c_int64:
    return _int(torch.get_num_threads())
