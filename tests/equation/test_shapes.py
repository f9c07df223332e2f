"""What a blank returns has the shape that its declaration states, or a sentence says which blank has not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from poscli.encodings import Encoding, Shape
from poscli.equation import BLANKS
from poscli.equation.shapes import BlankInputs, wrong_shapes

SMALL = Shape(width=24, heads=3, layers=1, length=16)


class Whole(Encoding):
    """Fills the blanks that have no default, with zeros of the shape that is stated."""

    feature_width = 2

    def features(self, x_BTW: Tensor) -> Tensor:
        return x_BTW.new_zeros(len(x_BTW), self.shape.heads, x_BTW.shape[1], 2)

    def temperature(self, n: Tensor) -> Tensor:
        return torch.zeros(self.shape.heads, len(n))

    distance_bias = temperature

    def relative_keys(self, d: Tensor) -> Tensor:
        return torch.zeros(self.shape.heads, len(d), self.shape.head_width)

    relative_queries = relative_values = relative_keys

    def potential(self, f_BHSF: Tensor) -> Tensor:
        return f_BHSF[..., 0]

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return torch.zeros(self.shape.heads, len(i), len(j))


def cut(blank: str) -> type[Encoding]:
    """An encoding that fills one blank, and features, and drops the last token or key, or one number of each token."""
    last = (slice(None), slice(None), slice(-1)) if blank in ("query", "key") else (..., slice(-1))
    whole = getattr(Whole, blank)
    filled = {blank: lambda self, *arguments: whole(self, *arguments)[last]}
    return type("Cut", (Encoding,), {"feature_width": 2, "features": Whole.features} | filled)


@pytest.mark.parametrize("blank", [name for name, blank in BLANKS.items() if blank.shape])
def test_a_wrong_shape_is_found_in_every_blank_that_returns_a_tensor(blank: str) -> None:
    assert wrong_shapes(Whole(SMALL), BlankInputs.of(SMALL)) == ""
    assert wrong_shapes(cut(blank)(SMALL), BlankInputs.of(SMALL)).startswith(f"{blank} returns [")
