"""A blank that is declared here, and nowhere else, is checked, composed and computed like any other.

B batch, T queries, S keys, H heads, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from toys import HEADS, make, shape

from poscli.attention import attend, choose, engines_for
from poscli.encodings import Encoding, Shape
from poscli.equation.blanks import BLANKS, Blanks, blank, extend, multiplied
from poscli.equation.composed import Composed
from poscli.equation.reference import TERMS
from poscli.equation.shapes import BlankInputs, wrong_shapes
from poscli.verify.noise import draw

CPU = torch.device("cpu")


class Swinging(Encoding):
    """s_ij += cos(w_h (i - j)), w_h learned per head; in a composition the swings are multiplied."""

    def __init__(self, shape: Shape, *, speed: float = 0.3) -> None:
        super().__init__(shape)
        self.w = nn.Parameter(torch.full((shape.heads,), speed))

    def swing(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.cos(self.w[:, None, None] * (i[:, None] - j))


class Short(Swinging):
    def swing(self, i: Tensor, j: Tensor) -> Tensor:
        return super().swing(i, j)[..., :-1]


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    """The blank `swing`, as long as a test runs."""

    @extend
    @blank("pair", "[H, T, S]", multiplied)
    def swing(self: Encoding, i: Tensor, j: Tensor) -> Tensor:
        """A term of the scores, `[H, T, S]`, for positions `[T]` and `[S]`."""
        raise NotImplementedError

    TERMS["swing"] = lambda encoding, x: encoding.swing(x.pos_T, x.pos_S).to(x.q_BHTD.dtype)  # type: ignore[attr-defined]
    yield
    del BLANKS["swing"], TERMS["swing"], Blanks.swing  # type: ignore[attr-defined]


def test_an_encoding_fills_it_and_its_shape_is_checked() -> None:
    encoding = Swinging(shape())
    assert (encoding.blanks, encoding.tier) == ({"swing"}, "pair")
    assert "swing" not in make("rope").blanks
    assert wrong_shapes(encoding, BlankInputs.of(shape())) == ""
    assert wrong_shapes(Short(shape()), BlankInputs.of(shape())) == "swing returns [3, 16, 15], not [3, 16, 16]"


def test_parts_of_a_composition_fill_it_as_it_declares() -> None:
    """Beside the terms of other blanks, with queries that are fewer than the keys, by the engines that compute it."""
    one, other, alibi = Swinging(shape()), Swinging(shape(), speed=0.05), make("alibi")
    composed = Composed([one, alibi, other]).double().requires_grad_(False)
    assert "not sdpa: the swing of a pair is no function of its distance" in choose(composed).reason
    assert [engine.name for engine in engines_for(composed)] == ["blocks", "reference"]
    q, k, v = (draw(2, HEADS, n, 8, seed=n, dtype=torch.float64) for n in (5, 9, 9))
    i, j = torch.arange(4, 9), torch.arange(9)
    apart = i[:, None] - j
    s = q @ k.mT / math.sqrt(8) + torch.cos(one.w[:, None, None] * apart) * torch.cos(other.w[:, None, None] * apart)
    s = s + alibi.distance_bias(apart.clamp(min=0).flatten()).unflatten(1, apart.shape)
    exact = torch.softmax(s.masked_fill(apart < 0, -math.inf), -1) @ v
    for engine in engines_for(composed):
        out = attend(engine, composed, q, k, v, composed.locate(9, CPU))
        assert float((out - exact).abs().max()) < 1e-12
