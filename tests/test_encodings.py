"""What must hold for every encoding there is: a new file is tested here without a new line."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from conftest import (
    ALTERNATING,
    COMPOSITES,
    ENDS,
    HEADS,
    LENGTH,
    TOYS,
    VOCAB,
    WIDTH,
    draw,
    make,
    model,
    perturbed,
    rounding,
    shape,
    tokens,
)
from torch import Tensor

from poscli.attention import ENGINES, Positions, attend
from poscli.encodings import BLANKS, TIERS, Encoding, Unsupported, get, names
from poscli.encodings.compose import Both
from poscli.model import Model

EVERYWHERE = [*names(), *COMPOSITES, *ALTERNATING, *TOYS]
FAR = 16 * LENGTH

# What each paper touches.
TOUCHES = {
    "alibi": ("distance", {"distance_bias"}),
    "cable": ("pair", {"features", "potential"}),
    "clipped": ("distance", {"distance_bias"}),
    "complex": ("token", {"embed"}),
    "convolution": ("distance", {"distance_bias"}),
    "cope": ("row", {"scores"}),
    "cpb": ("distance", {"distance_bias"}),
    "dape": ("row", {"distance_bias", "scores"}),
    "deberta": ("relative", {"relative_keys", "relative_queries"}),
    "exponential": ("distance", {"distance_bias"}),
    "fire": ("pair", {"bias"}),
    "floater": ("token", {"embed"}),
    "fope": ("token", {"query", "key"}),
    "fourier": ("distance", {"distance_bias"}),
    "fox": ("pair", {"features", "potential"}),
    "gaussian": ("distance", {"distance_bias"}),
    "grape": ("token", {"query", "key"}),
    "grape-additive": ("pair", {"features", "bias"}),
    "hierarchical": ("token", {"embed"}),
    "interpolated": ("token", {"positions"}),
    "kerple-log": ("distance", {"distance_bias"}),
    "kerple-power": ("distance", {"distance_bias"}),
    "learned": ("token", {"embed"}),
    "llama3": ("token", {"query", "key"}),
    "logn": ("token", {"temperature"}),
    "longrope": ("token", {"query", "key"}),
    "none": ("token", set()),
    "p-rope": ("token", {"query", "key"}),
    "path": ("row", {"features", "similarity"}),
    "polynomial": ("distance", {"distance_bias"}),
    "pope": ("token", {"query", "key"}),
    "query-bias": ("pair", {"bias", "distance_bias"}),
    "randomized": ("token", {"positions"}),
    "rerope": ("row", {"query", "key", "similarity"}),
    "rope": ("token", {"query", "key"}),
    "rope-dropped": ("token", {"query", "key"}),
    "rope-dynamic": ("token", {"query", "key"}),
    "rope-linear": ("token", {"query", "key"}),
    "rope-ntk": ("token", {"query", "key"}),
    "sandwich": ("distance", {"distance_bias"}),
    "self-extend": ("row", {"query", "key", "similarity"}),
    "shaw": ("relative", {"relative_keys", "relative_values"}),
    "sinusoidal": ("token", {"embed"}),
    "ssmax": ("token", {"temperature"}),
    "stick-breaking": ("row", {"weights"}),
    "t5": ("distance", {"distance_bias"}),
    "transformer-xl": ("relative", {"content_query", "relative_keys"}),
    "tupe": ("distance", {"query", "key", "distance_bias"}),
    "urpe": ("row", {"query", "key", "mix"}),
    "window": ("distance", {"reach"}),
    "xlnet": ("relative", {"content_query", "relative_keys"}),
    "xpos": ("token", {"query", "key"}),
    "yarn": ("token", {"query", "key"}),
}

# What all scores of a row get alike, so that the softmax cancels it: FIRE's last number per head, the query's own bias.
INERT = {"fire": "f.2.bias", "query-bias": "encoding.u"}


# what a class says of itself


@pytest.mark.parametrize("name", names())
def test_an_encoding_introduces_itself(name: str) -> None:
    cls = get(name)
    assert cls.name == name
    assert cls.paper
    assert cls.family
    assert inspect.getdoc(cls) != inspect.getdoc(Encoding)


@pytest.mark.parametrize("name", names())
def test_blanks_are_what_the_class_overrides(name: str) -> None:
    encoding, cls = make(name), get(name)
    if issubclass(cls, Both):  # over a base: what that one fills too
        return
    above = cls.__mro__[: cls.__mro__.index(Encoding)]
    assert encoding.blanks == {blank for blank in BLANKS if any(blank in vars(c) for c in above)}
    touched = [tier for tier in TIERS if encoding.blanks & set(TIERS[tier])]
    assert encoding.tier == (touched or ["token"])[-1]


@pytest.mark.parametrize("name", names())
def test_each_touches_what_its_paper_does(name: str) -> None:
    encoding = make(name)
    assert (encoding.tier, set(encoding.blanks)) == TOUCHES[name]


def test_blanks_follow_inheritance() -> None:
    class Mixin:
        def mix(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
            return p_BHTS

    class Child(Mixin, get("alibi")):
        def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
            return k_BHSD

    assert Child(shape()).blanks == {"distance_bias", "key", "mix"}
    assert Child(shape()).tier == "row"
    assert Encoding(shape()).blanks == frozenset()


def test_an_option_may_leave_a_blank_empty() -> None:
    assert make("shaw(values=false)").blanks == {"relative_keys"}
    assert make("shaw").blanks == {"relative_keys", "relative_values"}  # the class is not changed
    assert make("rope+shaw(values=false)").blanks == {"query", "key", "relative_keys"}
    assert make("rope+cope+alibi").tier == "row"


# what it does


@pytest.mark.parametrize("shift", [LENGTH // 2, FAR])
@pytest.mark.parametrize("name", names())
def test_relative_encodings_see_only_distances(name: str, shift: int) -> None:
    encoding = make(name)
    if encoding.rescales:
        pytest.skip("it depends on the total length, by definition")
    try:
        here, there = attention_at(encoding, 0), attention_at(encoding, shift)
    except Unsupported:
        assert not encoding.relative
        return
    moved = float((here - there).abs().max())
    # the angle of a rotation is off by 2 units in the last place of the position, a score by the product of lengths
    limit = 4 * 2**-23 * (LENGTH + shift) * WIDTH
    assert moved < limit if encoding.relative else moved > 1e-2 > limit


def attention_at(encoding: Encoding, shift: int, count: int = LENGTH // 2) -> Tensor:
    """Attention of the same few tokens, `shift` tokens further into a text."""
    encoding.requires_grad_(False)
    pos = encoding.positions(torch.arange(count) + shift)
    x = encoding.embed(draw(3, count, WIDTH), pos, tokens(3, count)).unflatten(2, (HEADS, -1)).transpose(1, 2)
    q, k, v = x[:1], x[1:2], x[2:]
    features = encoding.features(draw(1, count, WIDTH, seed=3)) if "features" in encoding.blanks else None
    return attend(ENGINES["reference"], encoding, q, k, v, Positions(pos=pos, step=None), features)


@pytest.mark.parametrize("spec", [s for s in EVERYWHERE if "distance_bias" in make(s).blanks])
def test_a_distance_bias_is_a_function_of_the_distance(spec: str) -> None:
    encoding, d = make(spec), torch.arange(FAR)
    bias = encoding.distance_bias(d)
    assert bias.shape in ((1, FAR), (HEADS, FAR))
    assert (bias.isfinite() | (bias == -math.inf)).all()
    assert bias[:, 0].isfinite().all()  # a token sees itself
    some = draw(40).argsort()
    assert torch.equal(encoding.distance_bias(d[some]), bias[:, some])  # each on its own, in any order
    assert torch.equal(encoding.distance_bias(d.float()), bias)  # positions need not be whole numbers


@pytest.mark.parametrize("spec", [s for s in EVERYWHERE if list(make(s).parameters())])
def test_every_parameter_learns(spec: str) -> None:
    """Nothing that is learned is out of the loss's reach, and no gradient is lost to -inf or a kink."""
    trained = perturbed(model(spec))
    logits = trained(tokens(3, LENGTH))
    (logits * draw(*logits.shape)).sum().backward()
    for name, parameter in trained.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        inert = any(encoding in spec and name.endswith(suffix) for encoding, suffix in INERT.items())
        assert (parameter.grad.abs().max() > 1e-4) != inert, name


# at 16 times the training length


@pytest.mark.parametrize("spec", EVERYWHERE)
def test_far_beyond_training_it_runs_or_refuses(spec: str) -> None:
    trained = perturbed(model(spec))
    assert trained(tokens(1, LENGTH)).isfinite().all()
    if spec in ENDS:
        with pytest.raises(Unsupported, match=f"position {LENGTH} "):
            trained(tokens(1, LENGTH + 1))
    else:
        assert trained(tokens(1, FAR)).isfinite().all()


@pytest.mark.parametrize("spec", EVERYWHERE)
def test_the_future_changes_nothing(spec: str) -> None:
    """Neither what comes, nor how much of it."""
    trained = perturbed(model(spec))
    count = longest(trained)
    half, before = count // 2, tokens(2, count)
    after = torch.cat([before[:, :half], (before[:, half:] + 1) % VOCAB], dim=1)
    with torch.no_grad():
        logits, changed, short = trained(before), trained(after), trained(before[:, :half])
    assert not torch.equal(logits[:, half], changed[:, half])
    assert torch.equal(logits[:, :half], changed[:, :half])  # the same operations on the same numbers
    if not any(encoding.rescales for encoding in trained.encodings):
        torch.testing.assert_close(logits[:, :half], short, rtol=0, atol=rounding(trained, before[:, :half]))


@pytest.mark.parametrize("spec", EVERYWHERE)
def test_order_is_seen(spec: str) -> None:
    """Two tokens far back exchanged: every encoding that sees so far, `none` through deeper layers, tells."""
    trained = perturbed(model(spec))
    there = tokens(1, LENGTH)
    there[0, LENGTH - 4 : LENGTH - 2] = torch.tensor([1, 2])
    swapped = there.clone()
    swapped[0, LENGTH - 4 : LENGTH - 2] = torch.tensor([2, 1])
    difference = (trained(there) - trained(swapped))[0, -1].abs().max()
    assert difference > 1e-3


def longest(trained: Model) -> int:
    """Sixteen times the training length, or that length itself where an encoding ends there."""
    try:
        with torch.no_grad():
            trained(tokens(1, FAR))
    except Unsupported:
        return LENGTH
    return FAR
