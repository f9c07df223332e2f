"""Softmax attention with an additive bias through torch's fused kernels, including the gradient of a learned bias."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention.sizes import BlockSizes


def fused_attention(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """Torch's fused attention for queries and keys that may be wider or narrower than the values.

    For unequal widths torch would choose a kernel that materialises all scores, so the narrower side is padded with
    zeros. `how` holds further arguments of `scaled_dot_product_attention`.
    """
    q, k, padded = _equally_wide(q, k, v)
    return F.scaled_dot_product_attention(q, k, padded, **how)[..., : v.shape[-1]]


def cpu_flash_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """CPU attention without gradient; also returns the log-sum-exp, needed to merge results over disjoint keys.

    The log-sum-exp of the scores is `[B, H, T]`. A bias `[B or 1, H or 1, T or 1, S]` may have any strides and may be
    combined with `causal`, which hides key j from query i < j.
    """
    if bias is not None:
        bias = bias.expand(len(bias), -1, q.shape[2], -1)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(*_equally_wide(q, k, v), 0.0, causal, attn_mask=bias, scale=scale)
    return out[..., : v.shape[-1]], lse


def _equally_wide(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    width = max(q.shape[-1], v.shape[-1])
    return [F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v)]


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, sizes: BlockSizes) -> Tensor:
    """softmax(q k^T scale + bias) v for `[B, H, T, D]` tensors and a bias `[B or 1, H or 1, T, S]` of any strides.

    The fused kernels take a bias only if it needs no gradient; otherwise torch materialises everything, 2.5 to 4 times
    slower on CPU. `_LearnedBias` keeps the fused forward instead.
    """
    if bias.requires_grad and torch.is_grad_enabled():
        return _LearnedBias.apply(q, k, v, bias, scale, False, sizes)
    if q.device.type == "cpu" and not torch.is_grad_enabled():
        return cpu_flash_attention(q, k, v, scale=scale, bias=bias)[0]
    if q.device.type != "cpu":
        bias = bias.contiguous()  # CUDA's kernels need aligned rows; CPU's take any strides
    return fused_attention(q, k, v, attn_mask=bias, scale=scale)


def potential_attention(q: Tensor, k: Tensor, v: Tensor, of_keys: Tensor, scale: float, sizes: BlockSizes) -> Tensor:
    """Causal attention of T queries to T keys on CPU, with a learned number `[B, H, 1, T]` added for each key."""
    return _LearnedBias.apply(q, k, v, of_keys, scale, True, sizes)


class _LearnedBias(torch.autograd.Function):
    """Fused forward; the backward recomputes the weights in chunks, and sums dS to the gradient of the bias."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, causal: bool, sizes: BlockSizes
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, bias)
        ctx.scale, ctx.causal, ctx.sizes = scale, causal, sizes
        mask = bias.detach()  # a mask that requires a gradient would make torch materialise everything
        if q.device.type == "cpu":
            return cpu_flash_attention(q, k, v, scale=scale, bias=mask, causal=causal)[0]
        assert not causal
        return fused_attention(q, k, v, attn_mask=mask.contiguous(), scale=scale)

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias = ctx.saved_tensors
        grads = [torch.zeros_like(x) if ctx.causal else torch.empty_like(x) for x in (q, k, v)]
        grad_bias = torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
        rows = min(ctx.sizes.backward_queries, q.shape[2]) if ctx.causal else q.shape[2]
        for start in range(0, q.shape[2], rows):
            keys = slice(0, start + rows) if ctx.causal else slice(None)
            step = max(1, ctx.sizes.backward_entries // (q.shape[1] * rows * k[:, :, keys].shape[2]))
            for first in range(0, len(q), step):
                at = (slice(first, first + step), slice(None), slice(start, start + rows))
                to = (*at[:2], keys)
                own = (at[0] if len(bias) > 1 else slice(None), slice(None), slice(None), keys)
                dq, dk, dv, ds = _backward(q[at], k[to], v[to], bias[own], grad_o[at], ctx.scale, ctx.causal)
                for grad, where, value in zip(grads, (at, to, to), (dq, dk, dv), strict=True):
                    if ctx.causal:
                        grad[where] += value
                    else:  # without a causal mask, one chunk computes the whole gradient of these texts
                        grad[where] = value
                grad_bias[own] += ds.sum_to_size(grad_bias[own].shape)
        return *grads, grad_bias, None, None, None


def _backward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, grad_o: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the scores of one chunk; if `causal`, the queries are the last of the tokens."""
    s = torch.matmul(q * scale, k.mT).add_(bias)
    if causal:
        future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
        s[..., -q.shape[2] :].masked_fill_(future, -math.inf)
    p = torch.softmax(s, dim=-1)
    grad_v = p.mT @ grad_o
    ds = torch._softmax_backward_data(grad_o @ v.mT, p, -1, p.dtype)
    return (ds @ k).mul_(scale), (ds.mT @ q).mul_(scale), grad_v, ds
