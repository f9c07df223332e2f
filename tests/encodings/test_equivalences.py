"""Encodings that equal each other under a condition: the facts that `poscli ls encodings --verbose` shows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make, shape, tokens

from poscli.attention import ENGINES, attend
from poscli.encodings import Encoding, get, names
from poscli.encodings.rope_linear import RoPELinear
from poscli.equation import Positions
from poscli.equation.reference import operands
from poscli.specs import build, parse

EXACT = 64 * 2**-52  # sums of a few numbers of order 1


def fresh(spec: str) -> Encoding:
    return build(parse(spec), shape(), seed=1)[0].double()


def attention(encoding: Encoding, stride: int = 1) -> Tensor:
    q, k, v = (draw(2, HEADS, LENGTH, HEAD_WIDTH, seed=n, dtype=torch.float64) for n in range(3))
    x_BTW = draw(2, LENGTH, WIDTH, seed=3, dtype=torch.float64)
    with torch.no_grad():
        features = encoding.features(x_BTW)
        at = Positions(pos=encoding.positions(stride * torch.arange(LENGTH)), step=None)
        return attend(ENGINES["reference"], encoding, q, k, v, at, features)


def assert_equal(one: Encoding, other: Encoding, strides: tuple[int, ...] = (1, 21)) -> None:
    for stride in strides:
        torch.testing.assert_close(attention(one, stride), attention(other, stride), rtol=0, atol=1e3 * EXACT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("p-rope(p=1)", "rope"),
        ("p-rope(p=0)", "none"),
        ("rope-linear(factor=1)", "rope"),
        ("rope-ntk(factor=1)", "rope"),
        ("yarn(factor=1)", "rope"),
        ("llama3(factor=1)", "rope"),
        ("longrope(factor=1)", "rope"),
        ("rope-linear(factor=4)", "rope+interpolated(4)"),
        ("grape", "rope"),
        ("grape(planes=false, frequencies=false)", "rope"),
        ("lerope", "rope"),
        ("lerope(per=head)", "rope"),
        ("adarope", "rope"),
        ("mobius(share=0)", "rope"),
        ("rope-id(p=0, c=0)", "none"),
        ("self-extend(group=1)", "rope"),
        ("rope-clip(clip=0)", "rope"),
        ("rope-clip(clip=1)", "rope"),
        ("rope-clip(clip=2)", "p-rope(p=0.75)"),  # the slowest of four pairs stops
        ("string(shift=5, local=5)", "rope"),
        ("alibi+temper(c=0, length=2)", "alibi"),
        ("temper(c=9)", "none"),  # up to the training length
        ("urpe", "rope"),
        ("xlnet", "transformer-xl"),
        ("rope-dynamic(factor=1)", "rope-ntk"),
        ("cable(start=-5)", "fox"),
        ("finite-span", "none"),  # at the start
        ("bam", "none"),  # at the start
        ("randomized-yarn(factor=4)", "yarn(factor=4)"),  # no step of a training has begun
        (f"randomized-yarn(max={LENGTH})", "yarn"),
        ("rope+random-floats", "rope-linear"),
    ],
)
def test_equal_by_their_options(one: str, other: str) -> None:
    assert_equal(fresh(one), fresh(other))


def test_up_to_the_training_length_hierarchical_is_learned_and_ssmax_starts_as_logn_there() -> None:
    x, pos, ids = draw(1, LENGTH, WIDTH, dtype=torch.float64), torch.arange(LENGTH), tokens(1, LENGTH)
    rows, table = (fresh(spec).embed(x, pos, ids) for spec in ("hierarchical", "learned"))
    torch.testing.assert_close(rows, table, rtol=0, atol=EXACT)
    at_l = fresh("ssmax").temperature(torch.tensor([LENGTH]))
    torch.testing.assert_close(at_l, torch.ones_like(at_l))


@pytest.mark.parametrize(
    "variant",
    [
        "p-rope(p=1, {})", "rope-linear(factor=1, {})", "rope-ntk(factor=1, {})", "rope-dynamic(factor=1, {})",
        "yarn(factor=1, {})", "llama3(factor=1, {})", "longrope(factor=1, {})", "self-extend(group=1, {})",
        "lerope({})", "adarope({})", "mobius(share=0, {})",
        f"rerope(window={21 * LENGTH}, {{}})", "rope-dropped({})", "rope-clip(clip=0, {})",
        "string(shift=5, local=5, {})", f"dual-chunk(chunk={LENGTH}, {{}})", "jet-long({})",
        "randomized-yarn(factor=1, {})",
    ],
)  # fmt: skip
def test_variants_of_rope_take_its_options(variant: str) -> None:
    """At the training length, where `rope-dynamic` is rope too."""
    options = "base=50, layout=interleaved, fraction=0.5"
    assert_equal(fresh(variant.format(options)), fresh(f"rope({options})"), strides=(1,))


SCALED = [name for name in names() if issubclass(get(name), RoPELinear) and name != "randomized-yarn"]


@pytest.mark.parametrize("name", SCALED)
def test_a_scaled_rope_without_a_factor_is_rope_and_then_follows_the_length(name: str) -> None:
    encoding, pos = fresh(name), torch.arange(4 * LENGTH)
    assert encoding.rescales
    assert_equal(encoding, fresh("rope"), strides=(1,))
    q = draw(1, HEADS, len(pos), HEAD_WIDTH, dtype=torch.float64)
    if name != "rope-dynamic":  # whose factor multiplies s
        fixed = fresh(f"{name}(factor=4)")
        assert not fixed.rescales
        torch.testing.assert_close(fixed.query(q, pos), encoding.query(q, pos), rtol=0, atol=1e3 * EXACT)
    assert not torch.allclose(encoding.angles(pos[:-LENGTH])[1], encoding.angles(pos)[1], rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("longrope(start=yarn)", "yarn"),
        ("longrope(start=ntk)", "rope-ntk"),
        ("longrope(start=pi)", "rope-linear"),
        ("llama3(low=0.1, high=2)", "yarn(beta_slow=0.1, beta_fast=2, ramp=turns)"),
    ],
)
def test_equal_angles_with_another_temperature(one: str, other: str) -> None:
    a, b, pos = fresh(one), fresh(other), torch.arange(5 * LENGTH)
    torch.testing.assert_close(a.angles(pos), b.angles(pos), rtol=1e-14, atol=0)
    q = draw(1, HEADS, len(pos), HEAD_WIDTH, dtype=torch.float64)
    assert not torch.allclose(a.query(q, pos), b.query(q, pos), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("spec", "equal"),
    [
        ("rerope(window=5)", 6), (f"rerope(window={LENGTH - 1})", LENGTH), ("string(shift=5)", 5),
        (f"string(shift={LENGTH})", LENGTH), ("dual-chunk(chunk=7)", 7), ("jet-long", LENGTH),
    ],
)  # fmt: skip
def test_rope_on_short_inputs(spec: str, equal: int) -> None:
    """For the first queries, and no longer; dual-chunk is rope nearby in later chunks, too."""
    apart = (attention(fresh(spec)) - attention(fresh("rope"))).abs().amax(dim=(0, 1, 3))
    assert float(apart[:equal].max()) <= 1e3 * EXACT
    assert equal == LENGTH or float(apart[equal:].max()) > 1e-6


def test_distances_of_dual_chunk_stay_within_training_and_are_those_of_the_text_nearby() -> None:
    """At 40 times the training length, and for the nearest w = L - s keys, also across the borders of chunks."""
    encoding, pos = fresh("dual-chunk"), torch.arange(40 * LENGTH)
    q, k = torch.stack(tuple(encoding.query_positions(pos))), torch.stack(tuple(encoding.key_positions(pos)))
    chosen = encoding.chosen(pos[:, None], pos)
    d = (q[:, :, None] - k[:, None]).gather(0, chosen[None])[0]
    true = pos[:, None] - pos
    assert int(d[true >= 0].min()) >= 0
    assert int(d.max()) == LENGTH - 1
    near = (true >= 0) & (true <= encoding.local)
    assert torch.equal(d[near], true[near])


@pytest.mark.parametrize(("tokens", "largest"), [(LENGTH, 15), (LENGTH + 1, 8), (2 * LENGTH, 15), (40 * LENGTH, 15)])
def test_distances_of_jet_long_stay_within_training_and_are_those_of_the_text_nearby(tokens: int, largest: int) -> None:
    """One token beyond the training length, groups of two halve all distances beyond the nearest."""
    encoding, pos = fresh("jet-long(near=3)"), torch.arange(tokens)
    near, far = (
        q[:, None] - k for q, k in zip(encoding.query_positions(pos), encoding.key_positions(pos), strict=True)
    )
    true = pos[:, None] - pos
    d = torch.where(encoding.chosen(pos[:, None], pos) == 0, near, far)[true >= 0]
    assert (int(d.min()), int(d.max())) == (0, largest)
    assert torch.equal(encoding.chosen(pos[:, None], pos) == 0, true <= 3)
    assert torch.equal(near, true)


@pytest.mark.parametrize("tokens", [2 * LENGTH, 5 * LENGTH])
def test_randomized_yarn_is_yarn_from_max_tokens_on(tokens: int) -> None:
    one, other, pos = fresh("randomized-yarn"), fresh("yarn"), torch.arange(tokens)
    q = draw(1, HEADS, tokens, HEAD_WIDTH, dtype=torch.float64)
    assert torch.equal(one.query(q, pos), other.query(q, pos))
    assert not torch.allclose(one.query(q, pos)[:, :, :9], other.query(q[:, :, :9], pos[:9]), rtol=1e-3, atol=1e-3)


def test_rope_dropped_is_rope_then_none() -> None:
    encoding, draws = fresh("rope-dropped"), torch.Generator()
    rope, none = attention(fresh("rope")), attention(fresh("none"))
    torch.testing.assert_close(attention(encoding), rope, rtol=0, atol=EXACT)
    for progress, expected in ((0.0, rope), (0.89, rope), (0.9, none), (0.99, none), (0.0, rope)):
        encoding.begin_step(progress, draws)
        torch.testing.assert_close(attention(encoding), expected, rtol=0, atol=EXACT)
    torch.testing.assert_close(attention(encoding.eval()), none, rtol=0, atol=EXACT)


# with weights of their own


def weighted(spec: str, **values: Tensor | float) -> Encoding:
    """An encoding with random weights, some of which are set."""
    encoding = make(spec, dtype=torch.float64)
    with torch.no_grad():
        for name, value in values.items():
            encoding.get_parameter(name.replace("__", ".")).copy_(torch.as_tensor(value))
    return encoding.requires_grad_(False)


def alibi(slope: Tensor) -> Encoding:
    return weighted("alibi(trainable=true)", slope=slope)


def test_encodings_that_are_alibi_without_content_or_with_a_linear_bias() -> None:
    fox = weighted("fox", w=0.0)
    assert_equal(fox, alibi(torch.log1p((-fox.b).exp())), strides=(1,))
    slopes = -fresh("alibi").distance_bias(torch.ones(1, dtype=torch.float64))[:, 0]
    assert_equal(weighted("grape-additive", w_p=0.0), alibi(slopes * math.log(2)), strides=(1,))
    line = weighted("polynomial(degree=1)")
    assert_equal(line, alibi(-line.a[0] / LENGTH), strides=(1,))
    power = weighted("kerple-power", r2=0.0)  # 2 sigmoid(0) = 1
    assert_equal(power, alibi(-power.distance_bias(torch.ones(1, dtype=torch.float64))[:, 0]))
    prior = weighted("bam", beta=1.0)
    assert_equal(prior, alibi(prior.a.exp()))


def test_encodings_that_are_clipped_up_to_what_the_softmax_cancels() -> None:
    convolution, offset = weighted("convolution(width=5)"), torch.tensor([[0.3], [-2.0], [7.0]])
    table = torch.cat([convolution.kernel + offset, offset], dim=1)
    assert_equal(convolution, weighted("clipped(clip=5)", table=table))
    query_bias = weighted("query-bias", u=30 * draw(HEADS, LENGTH))
    assert_equal(query_bias, weighted("clipped", table=query_bias.table))


@pytest.mark.parametrize("base", ["kerple-log", "t5", "fire", "fox"])
def test_without_its_network_dape_is_its_base(base: str) -> None:
    dape, alone = weighted(f"dape(base={base})", outer__weight=0.0), fresh(base)
    alone.load_state_dict(dape.parts[0].state_dict())
    assert_equal(dape, alone)


def test_encodings_that_are_none_at_zero() -> None:
    assert_equal(weighted("path", u=0.0, b=-1e3), fresh("none"))
    assert_equal(weighted("selective", u=0.0), fresh("none"))
    assert_equal(weighted("wall", w=0.0, b=1e3), fresh("none"))
    x = draw(1, 9, WIDTH, dtype=torch.float64)
    assert torch.equal(weighted("complex", omega=0.0).embed(x, torch.arange(9), tokens(1, 9)), x)
    assert torch.equal(weighted("smear", w=0.0).mix(x), x)
    assert_equal(weighted("repo", w=0.0), fresh("none"))


def test_rotations_that_the_text_decides_are_rope_where_it_says_nothing() -> None:
    assert_equal(weighted("selective-rope(bias=true)", up__weight=0.0, b=0.0), fresh("rope(base=500000)"), strides=(1,))
    carope, rope = weighted("carope", w=0.0), fresh("rope")
    speed = 1 / (1 + math.log(2))
    rope.theta = lambda pos: speed ** torch.arange(1, HEAD_WIDTH // 2 + 1, dtype=torch.float64)
    assert_equal(carope, rope, strides=(1,))


def test_a_sink_of_no_score_changes_nothing_and_one_of_score_0_adds_1_to_the_sum() -> None:
    assert_equal(fresh("sink-logit(start=-1000)+fox"), fresh("fox"))
    q, at = torch.zeros(1, HEADS, 1, 1, dtype=torch.float64), Positions(pos=torch.arange(1))  # a score of 0
    assert torch.equal(attend(ENGINES["reference"], fresh("sink-logit"), q, q, q + 1, at), q + 0.5)


def test_wall_with_one_gate_for_all_channels_multiplies_by_what_fox_adds_as_a_logarithm() -> None:
    fox, x_BTW = weighted("fox"), draw(1, LENGTH, WIDTH, dtype=torch.float64)
    wall = weighted("wall", w=fox.w.repeat_interleave(HEAD_WIDTH, 0), b=fox.b.repeat_interleave(HEAD_WIDTH))
    q, k = (draw(1, HEADS, LENGTH, HEAD_WIDTH, seed=n, dtype=torch.float64) for n in range(2))
    c_BHT = fox.potential(fox.features(x_BTW))
    x = operands(wall, q, k, k, wall.locate(LENGTH, x_BTW.device), wall.features(x_BTW))
    expected = (q @ k.mT) * (c_BHT[..., None] - c_BHT[..., None, :]).exp()
    torch.testing.assert_close(wall.similarity(x).tril(), expected.tril(), rtol=0, atol=1e3 * EXACT)


def test_cable_is_fox_with_the_other_sign() -> None:
    cable = weighted("cable")
    assert_equal(cable, weighted("fox", w=-cable.w, b=-cable.b))


def test_heads_of_lerope_and_adarope_with_the_same_frequencies_agree() -> None:
    heads = weighted("lerope(per=head)")
    assert_equal(weighted("adarope(scaling=false)", alpha=heads.alpha), heads)
    one = weighted("lerope")
    assert_equal(weighted("lerope(per=head)", alpha=one.alpha.expand(HEADS, 1, -1)), one)


def test_all_layers_of_lerope_have_the_same_frequencies() -> None:
    for spec, same in (("lerope", True), ("lerope(per=layer)", False), ("lerope(per=head)", False)):
        first, second = build(parse(spec), shape(), seed=1)
        assert (first.alpha is second.alpha) == same
    first, second = build(parse("adarope"), shape(), seed=1)
    assert first.alpha is not second.alpha


def test_a_training_window_turns_mobius_by_minus_one_and_two_of_them_by_one() -> None:
    encoding, k = fresh("mobius(share=1)"), draw(1, HEADS, 1, HEAD_WIDTH, dtype=torch.float64)
    at = [encoding.key(k, torch.tensor([3 + shift])) for shift in (0, LENGTH, 2 * LENGTH)]
    torch.testing.assert_close(at[1], -at[0], rtol=0, atol=EXACT)
    torch.testing.assert_close(at[2], at[0], rtol=0, atol=EXACT)


@pytest.mark.parametrize(("share", "heads", "expected"), [(0.25, 3, 1), (0.25, 8, 2), (0.5, 3, 2), (0.7, 10, 7)])
def test_the_share_of_heads_of_mobius_is_rounded_up(share: float, heads: int, expected: int) -> None:
    at = shape(heads=heads, width=8 * heads)
    theta = build(parse(f"mobius(share={share})"), at, seed=1)[0].theta(torch.arange(1))
    assert theta.shape == (heads, 1, 4)
    assert int((theta[:, 0, 0] != 1).sum()) == expected  # the first frequency of rope is 1


def test_every_pair_of_rope_id_that_turns_completes_two_turns_within_the_training_length() -> None:
    for length in (LENGTH, 512):
        encoding = build(parse("rope-id"), shape(length), seed=1)[0]
        turns = encoding.theta(torch.arange(1)) * length / (2 * math.pi)
        assert torch.equal(turns > 0, torch.tensor([True, True, False, False]))
        assert float(turns[:2].min()) >= 2 - 1e-9
        assert math.isclose(float(turns.max()), max(2, length / 32))


@pytest.mark.parametrize("k", [1, 200])
def test_a_sinusoidal_row_is_a_rotation_of_an_earlier_one(k: int) -> None:
    p = fresh("sinusoidal").table(torch.arange(400)).double()
    pairs = torch.complex(p[:, 1::2], p[:, 0::2])  # cos + i sin
    turn = torch.exp(1j * k * 10000.0 ** -(torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH))
    torch.testing.assert_close(pairs[k:], pairs[: 400 - k] * turn, rtol=0, atol=400 * EXACT)


def test_scores_of_an_added_encoding_split_in_four() -> None:
    encoding, x = fresh("sinusoidal"), draw(1, LENGTH, WIDTH, dtype=torch.float64)
    w_q, w_k = (draw(WIDTH, WIDTH, seed=n, dtype=torch.float64) for n in (1, 2))
    whole, p = (encoding.embed(y, torch.arange(LENGTH), tokens(1, LENGTH)) for y in (x, torch.zeros_like(x)))
    split = sum((a @ w_q) @ (b @ w_k).mT for a in (x, p) for b in (x, p))
    torch.testing.assert_close((whole @ w_q) @ (whole @ w_k).mT, split, rtol=0, atol=WIDTH**2 * EXACT)
