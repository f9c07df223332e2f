"""Strided views of functions of the distance, by index, and the gradients of fused attention with a learned bias."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toys import HEADS, draw

from poscli.attention import BlockSizes
from poscli.attention.sdpa import biased_attention
from poscli.attention.skew import descending, skew, skew_keys, unskew


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 5), (4, 4), (3, 7), (7, 3)])
@pytest.mark.parametrize("table", [True, False])
def test_skew_and_unskew_by_index(rows: int, keys: int, table: bool) -> None:
    columns = rows + keys + 1  # one more than needed
    g = draw(2, HEADS, 1 if table else rows, columns)
    skewed = skew(g, rows, keys)
    spread = unskew(draw(2, HEADS, rows, keys, seed=1), columns)
    p = draw(2, HEADS, rows, keys, seed=1)
    assert skewed.data_ptr() == g.data_ptr()  # a view
    for r in range(rows):
        for j in range(keys):
            assert torch.equal(skewed[..., r, j], g[..., 0 if table else r, r + j])
        for c in range(columns):
            expected = p[..., r, c - r] if 0 <= c - r < keys else torch.zeros(2, HEADS)
            assert torch.equal(spread[..., r, c], expected)


def test_skew_keys_by_index() -> None:
    rows, keys = 4, 6
    g = draw(2, HEADS, keys, rows + keys)
    skewed = skew_keys(g, rows)
    for r in range(rows):
        for j in range(keys):
            assert torch.equal(skewed[..., r, j], g[..., j, r + j])


@pytest.mark.parametrize("start", [0, 3])
def test_a_skewed_table_holds_the_bias_of_each_distance(start: int) -> None:
    """Row r is the r-th query from the end, column j is key j, and future keys are filled with -inf."""
    by_distance, rows = draw(2, 9), 4
    keys = 9
    view = skew(descending(by_distance, rows, fill=-math.inf)[None, :, None], rows, keys)
    for r in range(rows):
        for j in range(keys):
            d = (keys - 1 - r) - j
            expected = by_distance[:, d] if d >= 0 else torch.full((2,), -math.inf)
            assert torch.equal(view[0, :, r, j], expected)


@pytest.mark.parametrize("table", [True, False])
def test_gradients_of_the_views(table: bool) -> None:
    g = draw(2, 1 if table else 3, 8, dtype=torch.float64).requires_grad_()
    p = draw(2, 3, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: skew(x, 3, 5) * draw(2, 3, 5, seed=2).double(), g)
    assert torch.autograd.gradcheck(lambda x: unskew(x, 8) * draw(2, 3, 8, seed=2).double(), p)
    if not table:
        keyed = draw(2, 5, 8, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: skew_keys(x, 3) * draw(2, 3, 5, seed=2).double(), keyed)


@pytest.mark.parametrize("sizes", [BlockSizes(), BlockSizes(backward_entries=1)], ids=["one chunk", "many chunks"])
@pytest.mark.parametrize("batch_heads", [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_gradients_of_attention_with_a_learned_bias(batch_heads: tuple[int, int], sizes: BlockSizes) -> None:
    q, k, v = (draw(3, 2, t, 4, seed=n, dtype=torch.float64).requires_grad_() for n, t in enumerate((3, 5, 5)))
    bias = draw(*batch_heads, 3, 5, seed=5, dtype=torch.float64).requires_grad_()
    future = torch.ones(3, 5, dtype=torch.bool).triu(3)

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return biased_attention(q, k, v, bias.masked_fill(future, -math.inf), 0.3, sizes)

    assert torch.autograd.gradcheck(attention, (q, k, v, bias))


@pytest.mark.parametrize("heads", [1, 2])
def test_gradients_of_a_learned_table_through_its_view(heads: int) -> None:
    """The engines skew a table of distances into the bias of a block."""
    q, k, v = (draw(2, 2, t, 4, seed=n, dtype=torch.float64).requires_grad_() for n, t in enumerate((4, 6, 6)))
    table = draw(heads, 6, seed=5, dtype=torch.float64).requires_grad_()

    def attention(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        bias = skew(descending(table, 4, fill=-math.inf)[None, :, None], 4, 6)
        return biased_attention(q.flip(2), k, v, bias, 0.3, BlockSizes())

    assert torch.autograd.gradcheck(attention, (q, k, v, table))
