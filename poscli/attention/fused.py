"""Softmax attention with an additive bias, through torch's fused kernels, also where the bias is learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Entries of a score matrix that the backward pass holds at once: 2 MiB of float32, about a core's cache.
CHUNK = 2**19


def fused_attention(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """Torch's fused attention for heads whose queries and keys may be wider than the values, or narrower.

    Unequal widths would fall to the kernel that materialises all scores, so the narrower ones are padded with zeros.
    """
    width = max(q.shape[-1], v.shape[-1])
    q, k, padded = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, padded, **how)[..., : v.shape[-1]]


def flash(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The same on CPU, without gradient, and the log-sum-exp of the scores `[B, H, T]`, which joins parts of the keys.

    A bias `[B or 1, H or 1, T or 1, S]` may have any strides; beside it, `causal` hides key j from query i < j.
    """
    width = max(q.shape[-1], v.shape[-1])
    if bias is not None:
        bias = bias.expand(len(bias), -1, q.shape[2], -1)
    q, k, padded = (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(q, k, padded, 0.0, causal, attn_mask=bias, scale=scale)
    return out[..., : v.shape[-1]], lse


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(q k^T scale + bias) v for `[B, H, T, D]` tensors and a bias `[B or 1, H or 1, T, S]` of any strides.

    The fused kernels take a bias that needs no gradient; asked for one, torch falls back to materialising
    everything, 2.5 to 4 times slower on CPU. `_LearnedBias` keeps the fused forward instead.
    """
    if bias.requires_grad and torch.is_grad_enabled():
        return _LearnedBias.apply(q, k, v, bias, scale)
    if q.device.type != "cpu":
        bias = bias.contiguous()  # CUDA's kernels want aligned rows; CPU's take any strides
    return fused_attention(q, k, v, attn_mask=bias, scale=scale)


class _LearnedBias(torch.autograd.Function):
    """Fused forward; the backward recomputes the weights chunk by chunk and returns dS for the bias, summed."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v, bias)
        ctx.scale = scale
        mask = bias.detach()  # or torch, seeing that it requires a gradient, would materialise everything after all
        mask = mask if q.device.type == "cpu" else mask.contiguous()
        return fused_attention(q, k, v, attn_mask=mask, scale=scale)

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (q, k, v)]
        grad_bias = torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
        step = max(1, CHUNK // (q.shape[1] * q.shape[2] * k.shape[2]))
        for start in range(0, len(q), step):
            part = slice(start, start + step)
            b = part if len(bias) > 1 else slice(None)
            *parts, ds = _backward(q[part], k[part], v[part], bias[b], grad_o[part], ctx.scale)
            for grad, value in zip(grads, parts, strict=True):
                grad[part] = value
            grad_bias[b] += ds.sum_to_size(grad_bias[b].shape)
        return *grads, grad_bias, None


def _backward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, grad_o: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the scores."""
    p = torch.softmax(torch.matmul(q * scale, k.mT).add_(bias), dim=-1)
    grad_v = p.mT @ grad_o
    ds = torch._softmax_backward_data(grad_o @ v.mT, p, -1, p.dtype)
    return (ds @ k).mul_(scale), (ds.mT @ q).mul_(scale), grad_v, ds
