"""The loss over a vocabulary, without holding all logits at once.

Logits and their gradient are the largest tensors of a training step if a vocabulary or a batch is large: for 4096
tokens and 50,257 words they take 0.8 GB each. Here the logits of some tokens are computed, and at once their gradient,
so that no more than MOST_LOGITS numbers are held (Wijmans et al., 2024, arXiv:2411.09009, do this in one kernel).

Shapes: N tokens, R of them at once, V vocabulary, W model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Logits held at once: 64 MiB of float32. Smaller parts are slower: with 257 words, 4096 tokens took 8.5 ms in parts of
# 512 and 7.9 ms at once (width 128, CPU).
MOST_LOGITS = 2**24


def vocabulary_loss(
    x_NW: Tensor, weight_VW: Tensor, targets_N: Tensor, dtype: torch.dtype, limit: int = MOST_LOGITS
) -> Tensor:
    """Mean loss of the logits x W^T in nats per token, over the targets that are not -100.

    The product is computed in `dtype`, the rest in float32. At most `limit` logits are held at once.
    """
    rows = max(1, limit // len(weight_VW))
    if len(x_NW) <= rows:
        return F.cross_entropy(F.linear(x_NW.to(dtype), weight_VW.to(dtype)).float(), targets_N)
    return _Chunked.apply(x_NW, weight_VW, targets_N, dtype, rows)


class _Chunked(torch.autograd.Function):
    """Computes the gradient, softmax minus one-hot, while the logits are at hand; backward only scales it."""

    @staticmethod
    def forward(ctx: Any, x_NW: Tensor, weight_VW: Tensor, targets_N: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
        counted = int((targets_N >= 0).sum())
        w_VW, total = weight_VW.to(dtype), x_NW.new_zeros((), dtype=torch.float32)
        grad_x_NW, grad_w_VW = torch.empty_like(x_NW), torch.zeros_like(weight_VW)
        chunks = zip(x_NW.split(rows), targets_N[:, None].split(rows), grad_x_NW.split(rows), strict=True)
        for x, target_R1, grad_x in chunks:
            x_RW = x.to(dtype)
            s_RV = (x_RW @ w_VW.mT).float()
            lse_R1 = s_RV.logsumexp(-1, keepdim=True)
            counts_R1, index_R1 = target_R1 >= 0, target_R1.clamp(min=0)
            total += ((lse_R1 - s_RV.gather(1, index_R1)) * counts_R1).sum()
            grad_RV = s_RV.sub_(lse_R1).exp_()
            grad_RV.scatter_add_(1, index_R1, torch.full_like(lse_R1, -1))
            scaled_RV = (grad_RV * counts_R1).div_(counted).to(dtype)
            grad_x.copy_(scaled_RV @ w_VW)
            grad_w_VW += scaled_RV.mT @ x_RW
        ctx.save_for_backward(grad_x_NW, grad_w_VW)
        return total / counted

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_NW, grad_w_VW = ctx.saved_tensors
        return grad * grad_x_NW, grad * grad_w_VW, None, None, None
