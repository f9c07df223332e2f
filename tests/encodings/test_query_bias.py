"""query-bias, U_i + R_{i-j}: the softmax cancels U, in values and in gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, draw, make

from poscli.attention import Engine, Place, attend, engines_for
from poscli.encodings import Encoding
from poscli.equation import Positions

TOKENS = 2 * LENGTH  # half of the queries are beyond the last column of U
ENGINES = engines_for(make("query-bias"), Place(dtype=torch.float64))


def content(dtype: torch.dtype) -> list[Tensor]:
    return [draw(2, HEADS, TOKENS, HEAD_WIDTH, seed=n, dtype=dtype).requires_grad_() for n in range(3)]


def attention(engine: Engine, encoding: Encoding, qkv: list[Tensor]) -> Tensor:
    return attend(engine, encoding, *qkv, Positions(pos=torch.arange(TOKENS)))


def with_u(u: Tensor) -> Encoding:
    encoding = make("query-bias", dtype=u.dtype)
    with torch.no_grad():
        encoding.u.copy_(u)
    return encoding


def limit(encoding: Encoding, qkv: list[Tensor]) -> float:
    """The largest change of an output that rounding explains.

    A score s + U is rounded by at most half a unit of its size, so the relative error of a weight is at most twice
    that, and an output, a mean of values, is off by that share of the largest value. This happens once for either U;
    the softmax and the sum over the keys add half a unit for each key.
    """
    q, k, v, r, u = (float(x.detach().abs().max()) for x in (*qkv, encoding.table, encoding.u))
    size = q * k * HEAD_WIDTH**0.5 + r + u
    return 2 * torch.finfo(encoding.u.dtype).eps * (size + TOKENS) * v


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_u_changes_no_output(engine: Engine, dtype: torch.dtype, size: float) -> None:
    qkv = content(dtype)
    without = attention(engine, with_u(torch.zeros(HEADS, LENGTH, dtype=dtype)), qkv)
    encoding = with_u(size * draw(HEADS, LENGTH, seed=9, dtype=dtype))
    moved = (attention(engine, encoding, qkv) - without).abs().max()
    assert moved <= limit(encoding, qkv)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_u_gets_no_gradient(engine: Engine) -> None:
    """The gradients of a softmax sum to 0 over the keys: sum_j dLoss/ds_ij = 0."""
    encoding, qkv = make("query-bias", dtype=torch.float64), content(torch.float64)
    out = attention(engine, encoding, qkv)
    (out * draw(*out.shape, seed=4, dtype=torch.float64)).sum().backward()
    eps = torch.finfo(torch.float64).eps
    # dLoss/ds_ij = p_ij (g_i . v_j - g_i . o_i): sums of 2 D products of order 1 for each of T keys and B T queries
    assert encoding.u.grad.abs().max() < 2 * 2 * HEAD_WIDTH * TOKENS * 2 * TOKENS * eps
    assert encoding.table.grad.abs().max() > 0.1
