"""Encodings that equal each other under a condition: the facts that `poscli ls encodings --verbose` shows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make, shape, tokens

from poscli.attention import ENGINES, attend
from poscli.encodings import Encoding
from poscli.equation import Positions
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


def assert_equal(one: Encoding, other: Encoding) -> None:
    for stride in (1, 21):
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
        ("ssmax", "logn"),  # at the training length: ssmax starts as a factor of 1 there
        ("grape(planes=false, frequencies=false)", "rope"),
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
        ("hierarchical", "learned"),
    ],
)
def test_equal_by_their_options(one: str, other: str) -> None:
    if one == "hierarchical":
        x, pos = draw(1, LENGTH, WIDTH, dtype=torch.float64), torch.arange(LENGTH)
        ours, theirs = (fresh(spec).embed(x, pos, tokens(1, LENGTH)) for spec in (one, other))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=EXACT)
        return
    if one == "ssmax":
        n = torch.tensor([LENGTH])
        torch.testing.assert_close(
            fresh(one).temperature(n).expand(HEADS, 1), fresh(other).temperature(n).expand(HEADS, 1).double()
        )
        return
    assert_equal(fresh(one), fresh(other))


@pytest.mark.parametrize("options", ["base=50", "layout=interleaved", "fraction=0.5", "50, interleaved, 0.5"])
@pytest.mark.parametrize(
    "variant",
    [
        "p-rope(p=1, {})", "rope-linear(factor=1, {})", "rope-ntk(factor=1, {})", "rope-dynamic(factor=1, {})",
        "yarn(factor=1, {})", "llama3(factor=1, {})", "longrope(factor=1, {})", "self-extend(group=1, {})",
        f"rerope(window={21 * LENGTH}, {{}})", "rope-dropped({})", "rope-clip(clip=0, {})",
        "string(shift=5, local=5, {})", f"dual-chunk(chunk={LENGTH}, {{}})",
    ],
)  # fmt: skip
def test_variants_of_rope_take_its_options(variant: str, options: str) -> None:
    """At the training length, where `rope-dynamic` is rope too."""
    named = "base=50, layout=interleaved, fraction=0.5" if options.startswith("50") else options
    torch.testing.assert_close(
        attention(fresh(variant.format(named))), attention(fresh(f"rope({options})")), rtol=0, atol=1e3 * EXACT
    )


@pytest.mark.parametrize("spec", ["grape(planes=false, frequencies=false)", "self-extend(group=1)", "urpe(base=t5)"])
def test_equal_initial_values_do_not_stay_equal(spec: str) -> None:
    """The encodings above that equal another one do have an effect."""
    other = {"urpe(base=t5)": "t5"}.get(spec, "none")
    assert float((attention(make(spec, dtype=torch.float64)) - attention(fresh(other))).abs().max()) > 1e-3


@pytest.mark.parametrize("window", [5, LENGTH - 1, LENGTH])
def test_rerope_is_rope_within_its_window(window: int) -> None:
    rerope, rope = fresh(f"rerope(window={window})"), fresh("rope")
    apart = (attention(rerope) - attention(rope)).abs().amax(dim=(0, 1, 3))
    assert float(apart[: window + 1].max()) <= 1e3 * EXACT
    assert window >= LENGTH - 1 or float(apart[window + 1 :].min()) > 1e-6


@pytest.mark.parametrize(
    ("spec", "until"), [("string(shift=5)", 5), (f"string(shift={LENGTH})", LENGTH), ("dual-chunk(chunk=7)", 7)]
)
def test_string_and_dual_chunk_are_rope_on_short_inputs(spec: str, until: int) -> None:
    apart = (attention(fresh(spec)) - attention(fresh("rope"))).abs().amax(dim=(0, 1, 3))
    assert float(apart[:until].max()) <= 1e3 * EXACT
    assert until == LENGTH or float(apart[until:].max()) > 1e-6


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


def test_rope_dropped_is_rope_then_none() -> None:
    encoding, draws = fresh("rope-dropped"), torch.Generator()
    rope, none = attention(fresh("rope")), attention(fresh("none"))
    torch.testing.assert_close(attention(encoding), rope, rtol=0, atol=EXACT)
    for progress, expected in ((0.0, rope), (0.89, rope), (0.9, none), (0.99, none)):
        encoding.begin_step(progress, draws)
        torch.testing.assert_close(attention(encoding), expected, rtol=0, atol=EXACT)
    encoding.begin_step(0.0, draws)
    torch.testing.assert_close(attention(encoding.eval()), none, rtol=0, atol=EXACT)


def set_to(encoding: Encoding, **values: Tensor | float) -> Encoding:
    with torch.no_grad():
        for name, value in values.items():
            encoding.get_parameter(name.replace("__", ".")).copy_(torch.as_tensor(value))
    return encoding


def slopes_of_alibi() -> Tensor:
    return -fresh("alibi").distance_bias(torch.ones(1, dtype=torch.float64))[:, 0]


def test_without_content_fox_and_grape_additive_are_alibi() -> None:
    fox = set_to(make("fox", dtype=torch.float64), w=0.0)
    slope = torch.log1p((-fox.b.detach()).exp())
    assert_equal_at_1(fox, set_to(fresh("alibi(trainable=true)"), slope=slope))
    grape = set_to(make("grape-additive", dtype=torch.float64), w_p=0.0)
    assert_equal_at_1(grape, set_to(fresh("alibi(trainable=true)"), slope=slopes_of_alibi() * math.log(2)))


def test_a_polynomial_of_degree_1_is_alibi_up_to_l() -> None:
    line = make("polynomial(degree=1)", dtype=torch.float64)
    slope = -line.a.detach()[0] / LENGTH
    assert_equal_at_1(line, set_to(fresh("alibi(trainable=true)"), slope=slope))


def assert_equal_at_1(one: Encoding, other: Encoding) -> None:
    """Equal attention at consecutive positions within the training length."""
    torch.testing.assert_close(attention(one), attention(other), rtol=0, atol=1e3 * EXACT)


def test_a_convolution_is_clipped_up_to_a_constant() -> None:
    convolution = make("convolution(width=5)", dtype=torch.float64)
    kernel, offset = convolution.kernel.detach(), torch.tensor([[0.3], [-2.0], [7.0]], dtype=torch.float64)
    table = torch.cat([kernel + offset, offset], dim=1)
    assert_equal(convolution, set_to(fresh("clipped(clip=5)"), table=table))


@pytest.mark.parametrize("base", ["kerple-log", "t5", "fire", "fox"])
def test_without_its_network_dape_is_its_base(base: str) -> None:
    dape = set_to(make(f"dape(base={base})", dtype=torch.float64), outer__weight=0.0)
    alone = fresh(base)
    alone.load_state_dict(dape.parts[0].state_dict())
    assert_equal(dape, alone)


def test_without_reflections_path_is_none() -> None:
    assert_equal(set_to(make("path", dtype=torch.float64), u=0.0, b=-1e3), fresh("none"))


def test_complex_with_omega_0_is_none() -> None:
    encoding, x = set_to(make("complex", dtype=torch.float64), omega=0.0), draw(1, 9, WIDTH, dtype=torch.float64)
    assert torch.equal(encoding.embed(x, torch.arange(9), tokens(1, 9)), x)


def test_kerple_power_at_1_is_alibi_with_learned_slopes() -> None:
    power, alibi = fresh("kerple-power"), make("alibi(trainable=true)", dtype=torch.float64)
    d = torch.arange(1.0, 9.0, dtype=torch.float64)
    bias = power.distance_bias(d)
    # doubling the distance shows r2 of each head
    r2 = torch.log2(bias[:, 1] / bias[:, 0])
    assert ((r2 > 0) & (r2 <= 2)).all()
    with torch.no_grad():
        set_exponent(power, 1.0)
        alibi.slope.copy_(-power.distance_bias(torch.ones(1, dtype=torch.float64))[:, 0])
    assert_equal(power, alibi)


def set_exponent(power: Encoding, wanted: float) -> None:
    """Set the exponent of every head by bisection on the free number behind it, whatever its parametrisation."""
    two = torch.tensor([1.0, 2.0], dtype=torch.float64)
    low, high = torch.full_like(power.r2, -50), torch.full_like(power.r2, 50)
    for _ in range(100):
        power.r2.copy_((low + high) / 2)
        bias = power.distance_bias(two)
        over = torch.log2(bias[:, 1] / bias[:, 0]) > wanted
        low, high = torch.where(over, low, power.r2), torch.where(over, power.r2, high)


def test_cable_is_fox_with_the_other_sign() -> None:
    cable, fox = make("cable", dtype=torch.float64), make("fox", dtype=torch.float64)
    ours, theirs = dict(cable.named_parameters()), dict(fox.named_parameters())
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(-ours[name] if name in ours else torch.zeros_like(parameter))
    assert_equal(cable, fox)


@pytest.mark.parametrize("k", [1, 5, 200])
def test_a_sinusoidal_row_is_a_rotation_of_an_earlier_one(k: int) -> None:
    p = fresh("sinusoidal").table(torch.arange(400)).double()
    theta = 10000.0 ** -(torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    m = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for pair, angle in enumerate((k * theta).tolist()):
        a = 2 * pair
        cos, sin = math.cos(angle), math.sin(angle)
        m[a : a + 2, a : a + 2] = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
    torch.testing.assert_close(p[k:], p[: 400 - k] @ m.T, rtol=0, atol=400 * EXACT)
    torch.testing.assert_close(m @ m.T, torch.eye(WIDTH, dtype=torch.float64), rtol=0, atol=EXACT)


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_scores_of_an_absolute_encoding_split_in_four(name: str) -> None:
    encoding, x = fresh(name), draw(1, LENGTH, WIDTH, dtype=torch.float64)
    ids, pos = tokens(1, LENGTH), torch.arange(LENGTH)
    w_q, w_k = (draw(WIDTH, WIDTH, seed=n, dtype=torch.float64) for n in (1, 2))
    with torch.no_grad():
        whole = encoding.embed(x, pos, ids)
        p = encoding.embed(torch.zeros_like(x), pos, ids)

    def terms(a: Tensor, b: Tensor) -> Tensor:
        return (a @ w_q) @ (b @ w_k).mT

    split = terms(x, x) + terms(x, p) + terms(p, x) + terms(p, p)
    torch.testing.assert_close(terms(whole, whole), split, rtol=0, atol=WIDTH**2 * EXACT)
