"""What verify does with encodings that end, by hand, and with those that are only a little wrong, or seldom."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from poscli.encodings import Encoding, Shape
from poscli.encodings.registry import ENCODINGS
from poscli.equation.blanks import BLANKS
from poscli.equation.shapes import BlankInputs, wrong_shapes
from poscli.verify import verify
from poscli.verify.checks import Failed, batches, causality, decoding, engines, far, learning, saving, shifts
from poscli.verify.probe import SpecUnderTest


@pytest.mark.parametrize(("most", "changed"), [(18, 8), (31, 8), (32, 16)])
def test_causality_is_checked_on_a_longer_text_where_the_encoding_takes_one(most: int, changed: int) -> None:
    assert causality(SpecUnderTest(f"randomized({most})+rope", 0)).startswith(f"changing {changed} tokens changes")


def test_an_encoding_that_refuses_long_texts_is_not_at_fault() -> None:
    assert far(SpecUnderTest("randomized(18)+rope", 0)).startswith("refused: 256 tokens need as many positions")
    assert far(SpecUnderTest("rope", 0)) == "logits and gradients finite at 256 tokens"


@pytest.mark.parametrize(("broken", "status"), [(True, "failed"), (False, "unavailable")])
def test_only_of_a_broken_plugin_verify_says_where_to_look(
    broken: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ENCODINGS, "missing", lambda name: "does not load")
    monkeypatch.setattr(ENCODINGS, "broken", lambda name: broken)
    (finding,) = verify("mine").findings
    assert (finding.status, finding.detail) == (status, "does not load")
    assert bool(finding.look) == broken


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
    filled = {blank: lambda self, *given: whole(self, *given)[last]}
    return type("Cut", (Encoding,), {"feature_width": 2, "features": Whole.features} | filled)


@pytest.mark.parametrize("blank", [blank for blank in BLANKS if blank not in ("reach", "sinks")])
def test_a_wrong_shape_is_found_in_every_blank_that_returns_a_tensor(blank: str) -> None:
    assert wrong_shapes(Whole(SMALL), BlankInputs.of(SMALL)) == ""
    assert wrong_shapes(cut(blank)(SMALL), BlankInputs.of(SMALL)).startswith(f"{blank} returns [")


LITTLE = 1e-3  # hundreds of roundings of float32, where every number is about 1


class PeekingALittle(Encoding):
    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD + LITTLE * v_BHSD.mean(dim=2, keepdim=True)


class CountingOnce(Encoding):
    """Is wrong at one token in the middle of a text that is decoded."""

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * (1 + (len(pos) == 1 and int(pos[0]) == 5))


class MovingALittle(Encoding):
    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD * (1 + LITTLE * pos[:, None].float().sin()).to(v_BHSD.dtype)


class CrowdedALittle(Encoding):
    def value(self, v_BHSD: Tensor, pos: Tensor) -> Tensor:
        return v_BHSD - LITTLE * v_BHSD.mean(dim=0, keepdim=True)


class Sloped(Encoding):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slope = nn.Parameter(torch.ones(shape.heads))

    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return -self.slope[:, None, None] * (i[:, None] - j)


class WrongBackwards(Sloped):
    """A fast form with the right values and a gradient that is a little too large."""

    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        right = self.bias(i, j, f_i, f_j)
        return right + LITTLE * (right - right.detach())


class WrongInEvaluation(Sloped):
    """A fast form that is wrong without gradient alone."""

    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self.bias(i, j, f_i, f_j) * (1 + LITTLE * (not torch.is_grad_enabled()))


class WrongForOneQuery(Sloped):
    """A fast form that is wrong for a single query that sees many keys."""

    def fast_bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return self.bias(i, j, f_i, f_j) * (1 + LITTLE * (len(i) == 1))


class RoughFarAway(Encoding):
    """Finite values, and beyond 100 tokens a gradient that is not."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.r = nn.Parameter(torch.zeros(shape.heads))

    def distance_bias(self, d: Tensor) -> Tensor:
        return (self.r[:, None] * 0 + (d <= 100)).sqrt()


class NotAllSaved(Encoding):
    """Draws numbers that are not saved, and that change little."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.register_buffer("drawn", torch.rand(shape.heads), persistent=False)

    def distance_bias(self, d: Tensor) -> Tensor:
        return -LITTLE * self.drawn[:, None] * d


class WithoutGradient(Sloped):
    def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
        return super().bias(i, j, f_i, f_j).detach()


A_LITTLE_WRONG = {
    PeekingALittle: causality,
    CountingOnce: decoding,
    MovingALittle: shifts,
    CrowdedALittle: batches,
    WrongBackwards: engines,
    WrongInEvaluation: engines,
    WrongForOneQuery: engines,
    RoughFarAway: far,
    NotAllSaved: saving,
    WithoutGradient: learning,
}


@pytest.mark.parametrize(("cls", "check"), A_LITTLE_WRONG.items(), ids=lambda x: x.__name__)
def test_an_encoding_that_is_a_little_wrong_fails_its_check(cls, check) -> None:
    with pytest.raises(Failed):
        check(
            SpecUnderTest(f"none|{__name__}:{cls.__name__}", 0)
        )  # in the last layer, after which no token sees others


@pytest.mark.parametrize("check", dict.fromkeys(A_LITTLE_WRONG.values()), ids=lambda x: x.__name__)
def test_an_encoding_of_the_same_kind_that_is_right_passes(check) -> None:
    assert check(SpecUnderTest(f"{__name__}:Sloped", 0))


@pytest.mark.parametrize(
    ("spec", "relative"),
    [
        ("rope+grape", False),
        ("fox+cope(max_pos=5)", False),
        ("rope+alibi", True),
        ("fox+t5", True),
        ("cope+alibi", True),
    ],
)
def test_a_join_is_relative_unless_its_parts_are_entangled(spec: str, relative: bool) -> None:
    (encoding,) = SpecUnderTest(spec, 0).encodings
    assert encoding.relative == relative
    assert shifts(SpecUnderTest(spec, 0)).startswith("same attention" if relative else "not relative, as declared")
