"""The engine `sdpa`, for most encodings: torch's fused attention, the bias a view where that is possible.

Memory is O(heads x length) for a distance bias and O(block x length) for other biases. Torch's fused kernels have no
gradient for a bias; `_LearnedBias` adds it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention.biases import added_to_keys, biased_blocks, biases, is_gentle, is_narrow, joined, potentials
from poscli.attention.place import BlockSizes, Place, blanks_refused
from poscli.equation import Encoding, Operands
from poscli.equation.reference import tempered


def refuses(encoding: Encoding, _: Place) -> str:
    """Why torch's fused attention cannot compute an encoding; '' if it can."""
    return blanks_refused(encoding, "sdpa")


def run(encoding: Encoding, x: Operands, sizes: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused."""
    scale, x = encoding.scale, replace(x, q_BHTD=tempered(x, x.q_BHTD))
    q, k, v = x.q_BHTD, x.k_BHSD, x.v_BHSE
    on_cpu, short = q.device.type == "cpu", x.queries <= sizes.training_tokens
    trained = torch.is_grad_enabled() and on_cpu
    null_H = x.null_score_H
    if not biases(encoding) and null_H is None and x.queries in (1, x.keys) and not (trained and short):
        return fused_attention(q, k, v, is_causal=x.queries > 1, scale=scale)
    # A temperature multiplies the potential of a key differently in every row, so no number per key can hold it.
    one_per_key = biases(encoding) == {"potential"} and x.temperature_HT is None and null_H is None
    if one_per_key and on_cpu and short and x.queries == x.keys and not is_narrow(q.dtype):
        c_BHS = potentials(encoding, x)
        assert c_BHS is not None
        if is_gentle(c_BHS, x.keys):
            of_keys = added_to_keys(c_BHS, 0, slice(None), q.dtype)
            out: Tensor = _LearnedBias.apply(q, k, v, of_keys, scale, True, sizes)
            return out
    blocks = biased_blocks(encoding, x, sizes, dense=False, most=sizes.training_queries if trained else None)
    # The rows of a bias are in reverse order of the queries.
    outputs = (
        biased_attention(block.q_BHTD.flip(2), *_beside_null(block, bias), scale, sizes).flip(2)
        for block, bias in blocks
    )
    return joined(outputs, x)


def _beside_null(x: Operands, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and bias of a block; a null key stands before the others as zeros, its score in the bias."""
    if x.null_score_H is None:
        return x.k_BHSD, x.v_BHSE, bias
    heads = len(x.null_score_H)
    of_null = x.null_score_H.to(bias.dtype)[:, None, None].expand(len(bias), heads, x.queries, 1)
    k_BHSD, v_BHSE = (F.pad(y, (0, 0, 1, 0)) for y in (x.k_BHSD, x.v_BHSE))
    return k_BHSD, v_BHSE, torch.cat([of_null, bias.expand(-1, heads, x.queries, -1)], dim=-1)


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
        out: Tensor = _LearnedBias.apply(q, k, v, bias, scale, False, sizes)
        return out
    if q.device.type == "cpu" and not torch.is_grad_enabled():
        return cpu_flash_attention(q, k, v, scale=scale, bias=bias)[0]
    if q.device.type != "cpu":
        bias = bias.contiguous()  # CUDA's kernels need aligned rows; CPU's take any strides
    return fused_attention(q, k, v, attn_mask=bias, scale=scale)


class _LearnedBias(torch.autograd.Function):
    """Fused forward; the backward recomputes the weights in chunks, and sums dS to the gradient of the bias.

    A bias of one number per key, `[B, H, 1, T]`, may come with `causal`, on CPU.
    """

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
        grads = [torch.zeros_like(x) for x in (q, k, v)]
        grad_bias = torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
        rows = min(ctx.sizes.backward_queries, q.shape[2]) if ctx.causal else q.shape[2]
        for start in range(0, q.shape[2], rows):
            keys = slice(0, start + rows) if ctx.causal else slice(None)
            step = max(1, ctx.sizes.backward_entries // (q.shape[1] * rows * k[:, :, keys].shape[2]))
            for first in range(0, len(q), step):
                queries = (slice(first, first + step), slice(None), slice(start, start + rows))
                seen = (*queries[:2], keys)
                of_bias = (queries[0] if len(bias) > 1 else slice(None), slice(None), slice(None), keys)
                dq, dk, dv, ds = _chunk_gradients(
                    q[queries], k[seen], v[seen], bias[of_bias], grad_o[queries], ctx.scale, ctx.causal
                )
                for grad, where, value in zip(grads, (queries, seen, seen), (dq, dk, dv), strict=True):
                    grad[where] += value
                grad_bias[of_bias] += ds.sum_to_size(grad_bias[of_bias].shape)
        return *grads, grad_bias, None, None, None


def _chunk_gradients(
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
