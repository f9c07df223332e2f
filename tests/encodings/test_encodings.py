"""Properties of every encoding that `verify` does not check; test_verify.py runs `verify` over all of them."""

from __future__ import annotations

import copy
import functools
import inspect
import math

import pytest
import torch
from torch import Tensor
from toys import EVERYWHERE, LENGTH, draw, make, model, perturbed, shape, tokens

from poscli.encodings import Encoding, get, names
from poscli.equation import BLANKS, TIERS
from poscli.equation.blanks import of_tier
from poscli.equation.composed import Composed
from poscli.equation.operands import raster

FAR = 16 * LENGTH


@pytest.mark.parametrize("name", names())
def test_a_class_states_its_name_paper_family_and_formula(name: str) -> None:
    cls = get(name)
    assert cls.name == name
    assert cls.paper
    assert cls.family
    assert inspect.getdoc(cls) != inspect.getdoc(Encoding)


@pytest.mark.parametrize("name", [name for name in names() if not issubclass(get(name), Composed)])
def test_blanks_are_what_the_class_overrides(name: str) -> None:
    cls = get(name)
    above = cls.__mro__[: cls.__mro__.index(Encoding)]
    assert make(name).blanks == {blank for blank in BLANKS if any(blank in vars(c) for c in above)}


def test_a_mixin_fills_blanks_too() -> None:
    class Mixin:
        def reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
            return p_BHTS

    class Child(Mixin, get("alibi")):
        def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
            return k_BHSD

    assert Child(shape()).blanks == {"distance_bias", "key", "reweight"}
    assert Child(shape()).tier == "row"
    assert Encoding(shape()).blanks == frozenset()


def test_a_replaced_formula_does_not_inherit_the_fast_form_of_the_other() -> None:
    class Slower(get("fire")):
        def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
            return 2 * super().bias(i, j, f_i, f_j)

    encoding, pos = Slower(shape()), torch.arange(5)
    assert torch.equal(encoding.fast_bias(pos, pos, None, None), encoding.bias(pos, pos, None, None))


def test_an_option_may_leave_a_blank_empty() -> None:
    assert make("shaw(values=false)").blanks == {"relative_keys"}
    assert make("shaw").blanks == {"relative_keys", "relative_values"}  # the class is not changed
    assert make("rope+shaw(values=false)").blanks == {"query", "key", "relative_keys"}


@pytest.mark.parametrize("spec", EVERYWHERE)
def test_the_tier_is_the_highest_of_the_blanks(spec: str) -> None:
    encoding = make(spec)
    touched = [tier for tier in TIERS if of_tier(encoding.blanks, tier)]
    assert encoding.tier == (touched or ["token"])[-1]


@pytest.mark.parametrize("spec", [s for s in EVERYWHERE if "distance_bias" in make(s).blanks])
def test_a_distance_bias_is_a_function_of_each_distance(spec: str) -> None:
    encoding, d = make(spec).requires_grad_(False), torch.arange(FAR)
    d = d if encoding.axes == 1 else raster(d, 16) - torch.tensor([0, 8])
    bias = encoding.distance_bias(d)
    assert (bias.isfinite() | (bias == -math.inf)).all()
    assert bias[:, 0 if encoding.axes == 1 else 8].isfinite().all()  # a token sees itself
    some = draw(40).argsort()
    # the place of a distance in its tensor decides which instructions compute its bias, and these round differently
    close = functools.partial(torch.testing.assert_close, rtol=0, atol=rounding_of_bias(encoding, d))
    close(encoding.distance_bias(d[some]), bias[:, some])
    close(encoding.distance_bias(d.float()), bias)  # positions need not be whole numbers


@torch.no_grad()
def rounding_of_bias(encoding: Encoding, d: Tensor) -> float:
    """Eight times the change of a finite bias if every parameter, or the bias itself, changes by a unit of rounding."""
    exact, moved = encoding.distance_bias(d), copy.deepcopy(encoding)
    for n, parameter in enumerate(moved.parameters()):
        parameter.mul_(1 + 2**-23 * draw(*parameter.shape, seed=n).sign())
    apart = (moved.distance_bias(d) - exact).nan_to_num(posinf=0, neginf=0).abs().max()
    return 8 * max(float(apart), 2**-23 * float(exact.nan_to_num(neginf=0).abs().max()))


@pytest.mark.parametrize("spec", EVERYWHERE)
def test_the_order_of_tokens_changes_the_output(spec: str) -> None:
    """Two tokens within every window are exchanged. `none` sees their order through its deeper layer."""
    trained = perturbed(model(spec))
    there = tokens(1, LENGTH)
    there[0, LENGTH - 4 : LENGTH - 2] = torch.tensor([1, 2])
    swapped = there.clone()
    swapped[0, LENGTH - 4 : LENGTH - 2] = torch.tensor([2, 1])
    assert (trained(there) - trained(swapped))[0, -1].abs().max() > 1e-3


def test_a_join_is_as_short_as_its_shortest_part() -> None:
    short, long = make("xpos(scale_base=64)"), make("xpos(scale_base=512)")
    for joined in ("xpos(scale_base=64)+xpos(scale_base=512)", "xpos(scale_base=512)+alibi+xpos(scale_base=64)"):
        assert make(joined).longest(torch.float16) == short.longest(torch.float16) < long.longest(torch.float16)
    assert make("alibi+none").longest(torch.float16) is None
