"""U_q + R_{q-k}: what depends on the query alone is cancelled by the softmax, in values and in gradients."""

from __future__ import annotations

import pytest
import torch
from conftest import HEAD_WIDTH, HEADS, LENGTH, draw, make
from torch import Tensor

from poscli.attention import Engine, Positions, able, attend
from poscli.encodings import Encoding

TOKENS = 2 * LENGTH  # half of the queries are beyond the last row of U
TAKING = able(make("query-bias"))


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
    """A score s + U is rounded by at most half a unit of its size, so a weight p is off by a share 2 max |error|.

    An output, a mean of values, is then off by that share of the largest value; once for either U, and again for
    the softmax and the sum over the keys themselves, which add one half unit for each of these.
    """
    q, k, v, r, u = (float(x.detach().abs().max()) for x in (*qkv, encoding.table, encoding.u))
    size = q * k * HEAD_WIDTH**0.5 + r + u
    return 2 * torch.finfo(encoding.u.dtype).eps * (size + TOKENS) * v


@pytest.mark.parametrize("engine", TAKING, ids=lambda engine: engine.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_u_changes_no_output(engine: Engine, dtype: torch.dtype, size: float) -> None:
    qkv = content(dtype)
    without = attention(engine, with_u(torch.zeros(HEADS, LENGTH, dtype=dtype)), qkv)
    encoding = with_u(size * draw(HEADS, LENGTH, seed=9, dtype=dtype))
    moved = (attention(engine, encoding, qkv) - without).abs().max()
    assert moved <= limit(encoding, qkv)


@pytest.mark.parametrize("engine", TAKING, ids=lambda engine: engine.name)
def test_without_u_it_is_clipped(engine: Engine) -> None:
    qkv, encoding, clipped = content(torch.float64), make("query-bias"), make("clipped")
    with torch.no_grad():
        clipped.table.copy_(encoding.table)
    encoding, clipped = encoding.double(), clipped.double()
    apart = (attention(engine, encoding, qkv) - attention(engine, clipped, qkv)).abs().max()
    assert apart <= limit(encoding, qkv)


@pytest.mark.parametrize("engine", TAKING, ids=lambda engine: engine.name)
def test_u_never_learns(engine: Engine) -> None:
    """sum_j dLoss/ds_ij = 0: what a softmax's gradient gives to one key it takes from the others."""
    encoding, qkv = make("query-bias", dtype=torch.float64), content(torch.float64)
    out = attention(engine, encoding, qkv)
    (out * draw(*out.shape, seed=4, dtype=torch.float64)).sum().backward()
    eps = torch.finfo(torch.float64).eps
    # dLoss/ds_ij = p_ij (g_i . v_j - g_i . o_i): sums of 2 D products of order 1 for each of T keys and B T queries
    assert encoding.u.grad.abs().max() < 2 * 2 * HEAD_WIDTH * TOKENS * 2 * TOKENS * eps
    assert encoding.table.grad.abs().max() > 0.1


def test_u_is_in_the_scores_all_the_same() -> None:
    """What cancels is there before the softmax: a row of U per position up to L, and the last one beyond."""
    encoding = make("query-bias")
    pos = torch.arange(TOKENS)
    bias = encoding.bias(pos, pos, None, None)
    assert bias.shape == (HEADS, TOKENS, TOKENS)
    assert torch.equal(bias[:, 3, 0], encoding.u[:, 3])
    assert torch.equal(bias[:, LENGTH:, 0], encoding.u[:, -1:].expand(-1, TOKENS - LENGTH))
    assert torch.equal(bias[..., 0], bias[..., -1])
    assert encoding.blanks == {"bias", "distance_bias"}
