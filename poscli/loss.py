"""The loss of a vocabulary, for which the logits need not all be there at once.

Logits and their gradient are the largest tensors of a training step once a vocabulary or a batch is large: 4096 tokens
of 50,257 words are 0.8 GB each. Taken some tokens at a time, with the gradient made while their logits are there, they
cost LOGITS numbers (Wijmans et al., 2024, arXiv:2411.09009, who do it within one kernel).

N tokens, R of them at once, V vocabulary, W model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Logits that may be there at once, 64 MiB of float32. Fewer tokens at a time do not pay: at 257 words 512 of 4096 took
# 8.5 ms where all took 7.9 (width 128, CPU).
LOGITS = 2**24


def vocabulary_loss(
    x_NW: Tensor, weight_VW: Tensor, targets_N: Tensor, dtype: torch.dtype, limit: int = LOGITS
) -> Tensor:
    """Mean nats per token of the logits x W^T, their product in `dtype`, the rest in float32."""
    rows = max(1, limit // len(weight_VW))
    if len(x_NW) <= rows:
        return F.cross_entropy(F.linear(x_NW.to(dtype), weight_VW.to(dtype)).float(), targets_N)
    return _Chunked.apply(x_NW, weight_VW, targets_N, dtype, rows)


class _Chunked(torch.autograd.Function):
    """The gradient of the logits is softmax - one-hot, known as soon as they are; backward only scales it."""

    @staticmethod
    def forward(ctx: Any, x_NW: Tensor, weight_VW: Tensor, targets_N: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
        w_VW, total = weight_VW.to(dtype), x_NW.new_zeros((), dtype=torch.float32)
        grad_x_NW, grad_w_VW = torch.empty_like(x_NW), torch.zeros_like(weight_VW)
        chunks = zip(x_NW.split(rows), targets_N[:, None].split(rows), grad_x_NW.split(rows), strict=True)
        for x, target_R1, grad_x in chunks:
            x_RW = x.to(dtype)
            s_RV = (x_RW @ w_VW.mT).float()
            lse_R1 = s_RV.logsumexp(-1, keepdim=True)
            total += (lse_R1 - s_RV.gather(1, target_R1)).sum()
            grad_RV = s_RV.sub_(lse_R1).exp_()
            grad_RV.scatter_add_(1, target_R1, torch.full_like(lse_R1, -1))
            scaled_RV = grad_RV.div_(len(x_NW)).to(dtype)
            grad_x.copy_(scaled_RV @ w_VW)
            grad_w_VW += scaled_RV.mT @ x_RW
        ctx.save_for_backward(grad_x_NW, grad_w_VW)
        return total / len(x_NW)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_x_NW, grad_w_VW = ctx.saved_tensors
        return grad * grad_x_NW, grad * grad_w_VW, None, None, None
