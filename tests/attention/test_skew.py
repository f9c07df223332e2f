"""Strided views of functions of the distance, by index."""

from __future__ import annotations

import pytest
import torch
from toys import HEADS, draw

from poscli.attention.skew import skew, skew_keys, unskew


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
