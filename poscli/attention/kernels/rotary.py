"""Rotation of pairs of channels in one pass over memory; eager torch takes six passes."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

TOKENS_PER_PROGRAM = 32


@triton.jit
def rotate_kernel(
    x, y,
    cos,  # [T, pairs]
    sin,
    x_b, x_h, x_t, y_b, y_h, y_t,
    H, T, pairs,
    rest,  # channels beyond the pairs, which are copied
    INTERLEAVED: tl.constexpr, BACKWARD: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Write (a cos - b sin, b cos + a sin) to y for the pairs (a, b) of x; BACKWARD rotates by minus the angle."""
    text, head = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    m = (tl.program_id(0) * M + tl.arange(0, M))[:, None]
    x += text * x_b + head * x_h + m * x_t
    y += text * y_b + head * y_h + m * y_t
    pair = tl.arange(0, PAIRS)[None, :]
    inside = (m < T) & (pair < pairs)
    at = m * pairs + pair
    c = tl.load(cos + at, mask=inside, other=0.0)
    s = tl.load(sin + at, mask=inside, other=0.0)
    if BACKWARD:
        s = -s
    if INTERLEAVED:
        first, second = 2 * pair, 2 * pair + 1
    else:
        first, second = pair, pairs + pair
    a = tl.load(x + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + second, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + first, (a * c - b * s).to(y.dtype.element_ty), mask=inside)
    tl.store(y + second, (b * c + a * s).to(y.dtype.element_ty), mask=inside)
    if REST > 0:
        channel = tl.arange(0, REST)[None, :]
        passing = (m < T) & (channel < rest)
        tl.store(y + 2 * pairs + channel, tl.load(x + 2 * pairs + channel, mask=passing), mask=passing)


def rotate(x_BHTD: Tensor, cos: Tensor, sin: Tensor, layout: Literal["half", "interleaved"]) -> Tensor:
    """Rotate the pairs of `[B, H, T, D]` by the angles with this cos and sin, `[T, pairs]` in float32.

    Channels beyond the pairs are copied. Products are computed in float32 and rounded once. The gradient goes to x
    only.
    """
    assert cos.shape == sin.shape == (x_BHTD.shape[2], cos.shape[1])
    assert cos.dtype == sin.dtype == torch.float32
    return _Rotate.apply(x_BHTD, cos.contiguous(), sin.contiguous(), layout == "interleaved")


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _launch(x, cos, sin, interleaved, backward=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _launch(grad, cos, sin, ctx.interleaved, backward=True), None, None, None


def _launch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, backward: bool) -> Tensor:
    batch, heads, tokens, width = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    y = torch.empty_like(x)
    pairs = cos.shape[1]
    rest = width - 2 * pairs
    with torch.cuda.device_of(x):
        rotate_kernel[(triton.cdiv(tokens, TOKENS_PER_PROGRAM), batch * heads)](
            x, y, cos, sin, *x.stride()[:3], *y.stride()[:3], heads, tokens, pairs, rest, INTERLEAVED=interleaved,
            BACKWARD=backward, PAIRS=triton.next_power_of_2(pairs), REST=triton.next_power_of_2(rest) if rest else 0,
            M=TOKENS_PER_PROGRAM,
        )  # fmt: skip
    return y
