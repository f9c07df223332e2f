"""Gradients of the forms of scores that compiled kernels know, against the reference in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import pytest
import torch
from test_native import Wrong, kernels, needs_kernels, randoms
from test_native_forms import UNIT, changed
from torch import Tensor, nn
from toys import HEAD_WIDTH, HEADS, WIDTH, draw, make

from poscli.attention import ENGINES, attend, choose
from poscli.encodings import Encoding, names
from poscli.native import Block, Costs, Factors, Form, Gates, Mixing, Stick, Visible, attention, proof
from poscli.native.fields import CallFields

LEARNED = [name for name in names() if make(name).kernel_form_has_gradient]
# A table of 64 positions is long enough for a position to come within rounding of a whole number, where the slope of
# the table changes; short tables or texts are not.
OPTIONS = [
    "stick-breaking(current=false)", "stick-breaking+window(9)", "stick-breaking+alibi(trainable=true)",
    "rope+stick-breaking", "cope(max_pos=5)", "cope(max_pos=5)+window(150)", "rope+cope(max_pos=2)",
    "shaw+cope(max_pos=5)", "grape-additive+window(150)", "grape-additive+alibi(trainable=true)",
    "shaw(values=false)+grape-additive", "urpe(base=none)", "urpe(base=t5)", "shaw+urpe(base=none)", "urpe+window(9)",
    "dape(base=t5)", "dape(base=alibi, hidden=5)", "dape+window(150)", "rope+dape(base=t5, hidden=40)",
]  # fmt: skip
CASES = [(1, 170, 170), (2, 40, 301), (1, 9, 140)]  # texts, queries, keys: several tiles of keys, of odd sizes
SHORT = (2, 33, 33)
TIMES = [(spec, case) for spec in OPTIONS for case in CASES] + [(spec, SHORT) for spec in LEARNED]


def gradients(
    engine: str, spec: str, case: tuple[int, int, int], dtype: torch.dtype, off: int = 0, scale: float = 1
) -> dict[str, Tensor]:
    """Output and gradients in float64; with a seed `off`, every input is changed by a unit of rounding of float32."""
    texts, queries, keys = case

    def near(x: Tensor, seed: int) -> Tensor:
        moved = x.double() * (1 + UNIT * draw(*x.shape, seed=off + seed, dtype=torch.float64).sign()) if off else x
        return moved.to(dtype).requires_grad_()

    def drawn(*shape: int, seed: int) -> Tensor:
        return near(draw(*shape, seed=seed, dtype=torch.float32), seed)

    encoding = learned(make(spec)).to(dtype)
    for n, p in enumerate(encoding.parameters()):
        p.data = near(p.detach().float(), 50 + n).detach()
    q, k, v = (drawn(texts, HEADS, n, HEAD_WIDTH, seed=s) for s, n in enumerate((queries, keys, keys)))
    leaves = {"q": q, "k": k, "v": v} | dict(encoding.named_parameters())
    features = None
    if "features" in encoding.blanks:
        leaves["x"] = drawn(texts, keys, WIDTH, seed=5)
        features = encoding.features(leaves["x"])
    positions = encoding.locate(keys, torch.device("cpu"))
    out = attend(ENGINES[engine], encoding, scale * q, k, v, positions, features)
    grads = torch.autograd.grad(out, list(leaves.values()), drawn(*out.shape, seed=9).detach())
    return {name: x.detach().double() for name, x in zip(["output", *leaves], [out, *grads], strict=True)}


def learned(encoding: Encoding) -> Encoding:
    """The encoding with random numbers in place of zeros."""
    for n, p in enumerate(encoding.parameters()):
        if not p.any():
            nn.init.normal_(p, generator=torch.Generator().manual_seed(n))
    return encoding


def assert_near_the_reference(spec: str, case: tuple[int, int, int], scale: float = 1) -> None:
    exact = gradients("reference", spec, case, torch.float64, scale=scale)
    moved = [gradients("reference", spec, case, torch.float64, off, scale) for off in (100, 200)]
    moved.append(gradients("reference", spec, case, torch.float32, scale=scale))
    found = gradients("native", spec, case, torch.float32, scale=scale)
    for name, x in exact.items():
        # Rounding of the inputs and of the formula itself, and of sums over all keys and channels, whose roundings
        # differ in sign.
        limit = 16 * max(float((m[name] - x).abs().max()) for m in moved)
        limit += UNIT * 4 * case[2] ** 0.5 * float(x.abs().max())
        assert float((found[name] - x).abs().max()) <= limit, name


@needs_kernels
@pytest.mark.parametrize("spec", ["alibi", "shaw", "cope(max_pos=5)", "grape-additive", "dape(base=t5)"])
def test_the_weights_of_a_query_sum_to_one_however_large_its_scores_are(spec: str) -> None:
    """What all values gain is then what the outputs gain. Scores of 500 are rounded to 1 / 32,000."""
    case = _, queries, _ = (1, 60, 140)
    found = gradients("native", spec, case, torch.float32, scale=200.0)["v"].sum(dim=2)
    upstream = draw(1, HEADS, queries, HEAD_WIDTH, seed=9, dtype=torch.float64)
    assert ((found - upstream.sum(dim=2)).abs() <= 16 * UNIT * upstream.abs().sum(dim=2)).all()


@needs_kernels
@pytest.mark.parametrize(("spec", "case"), TIMES)
def test_gradients_equal_those_of_the_reference(spec: str, case: tuple[int, int, int]) -> None:
    assert choose(make(spec)).name == "native"
    assert_near_the_reference(spec, case)


@needs_kernels
@pytest.mark.parametrize("spec", ["stick-breaking", "grape-additive"])
def test_gradients_of_texts_whose_far_keys_have_no_weight(spec: str) -> None:
    assert_near_the_reference(spec, (1, 700, 700))


@needs_kernels
def test_queries_whose_stick_is_used_up_read_no_further_values() -> None:
    """NaN in the values of keys that have no weight would be seen in the gradients."""
    q, k, v = (torch.ones(1, HEADS, 400, HEAD_WIDTH) for _ in "qkv")
    v[:, :, :64] = torch.nan
    at = make("none").locate(400, torch.device("cpu"))
    out = attend(ENGINES["native"], make("stick-breaking"), q.requires_grad_(), k, v, at)
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert grad[:, :, 368:].isfinite().all()
    assert grad[:, :, 64].isnan().all()


@needs_kernels
@pytest.mark.parametrize("scale", [0.01, 30])
@pytest.mark.parametrize("spec", ["stick-breaking", "cope(max_pos=5)", "grape-additive"])
def test_gradients_of_small_and_large_scores(spec: str, scale: float) -> None:
    assert_near_the_reference(spec, (1, 65, 130), scale)


@needs_kernels
@pytest.mark.parametrize("spec", LEARNED)
def test_a_nan_is_not_lost(spec: str) -> None:
    """In a key, it reaches the gradients of all later queries, whose scores it enters."""
    q, k, v = randoms((1, HEADS, 40, HEAD_WIDTH), (1, HEADS, 40, HEAD_WIDTH), (1, HEADS, 40, HEAD_WIDTH))
    encoding = learned(make(spec))
    k.data[:, :, 20, 0] = torch.nan
    x = draw(1, 40, WIDTH, seed=5, dtype=torch.float32)
    features = encoding.features(x)
    out = attend(ENGINES["native"], encoding, q, k, v, encoding.locate(40, torch.device("cpu")), features)
    (grad,) = torch.autograd.grad(out.square().sum(), q)
    assert grad[:, :, 20:].isnan().any(-1).all()
    assert out[:, :, :20].isfinite().all()


def forms() -> list[tuple[list[Tensor], Callable[..., Form]]]:
    """The tensors of each form, and how it is made of them: 3 texts, 2 heads, 200 tokens."""
    y, z, factor, table, factors = randoms((3, 2, 200, 4), (3, 2, 200, 4), (2,), (3, 2, 200, 9), (2, 399), seed=1)
    network = randoms((5, 2), (5, 399), (2, 5), seed=2)
    mixing = partial(Mixing, leak=0.1)
    return [([], Stick), ([table], Gates), ([y, z, factor], Costs), ([factors], Factors), (network, mixing)]


@needs_kernels
@pytest.mark.parametrize("form", range(5))
def test_gradients_have_the_same_bits_on_any_number_of_threads(form: int) -> None:
    given, made = forms()[form]
    inputs = randoms((3, 2, 200, 16), (3, 2, 200, 16), (3, 2, 200, 16))

    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        whole = [Block(slice(0, 200), slice(0, 200))]
        out = attention(kernels(), tuple(inputs), whole, scale=0.25, form=made(*given))  # type: ignore[arg-type]
        return [out, *torch.autograd.grad(out.square().sum(), [*inputs, *given])]

    try:
        one, three = run(1), run(3)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(x, y) for x, y in zip(one, three, strict=True))


@needs_kernels
@pytest.mark.parametrize("form", range(1, 5))
def test_only_the_gradients_that_are_asked_for_are_computed(form: int) -> None:
    """Those of a form's tensors without others, and of others without them."""
    given, made = forms()[form]
    inputs = randoms((3, 2, 200, 16), (3, 2, 200, 16), (3, 2, 200, 16))

    def run(asked: list[Tensor]) -> list[Tensor]:
        for x in [*inputs, *given]:
            x.requires_grad_(any(x is other for other in asked))
        whole = [Block(slice(0, 200), slice(0, 200))]
        out = attention(kernels(), tuple(inputs), whole, scale=0.25, visible=Visible(reach=150), form=made(*given))  # type: ignore[arg-type]
        return list(torch.autograd.grad(out.square().sum(), asked))

    everything = run([*inputs, *given])
    parts = run(inputs) + [grad for x in given for grad in run([x])]
    assert all(torch.equal(x, y) for x, y in zip(everything, parts, strict=True))


def shifted(real: Callable, call: ctypes.Structure) -> bool:
    """Gradients by query land one token too far."""
    fields: CallFields = call._obj
    if fields.passed.grad_of_queries:
        fields.passed.grad_of_queries += 4 * fields.passed.grad_of_queries_at.token
        fields.queries -= 1
    return real(call)


@needs_kernels
@pytest.mark.parametrize(
    ("field", "by", "form"),
    [
        ("passed.factor", lambda x: x + 4, "costs"),
        ("passed.of_keys", lambda x: x + 4, "costs"),
        ("passed.grad_of_keys", lambda _: 0, "costs"),
        ("passed.grad_factor", lambda _: 0, "costs"),
        ("passed.without_own", lambda _: 0, "stick"),
        ("factors", lambda x: x + 4, "factors"),
        ("grad_factors", lambda x: x + 4, "factors"),
        ("mixing.leak", lambda x: x + 0.01, "mixing"),
        ("mixing.of_distance", lambda x: x + 4, "mixing"),
        ("mixing.grad_out", lambda _: 0, "mixing"),
        ("mixing.grad_of_scores", lambda _: 0, "mixing"),
        ("mixing.grad_of_distance", lambda _: 0, "mixing"),
        ("scale", lambda x: x * 1.0001, "costs"),
    ],
)
def test_a_wrong_gradient_of_a_form_is_found(field: str, by: Callable, form: str) -> None:
    """No gradient is moved beyond its tensor: some are left out (0) instead."""

    def fault(real: Callable, call: ctypes.Structure) -> bool:
        fields: CallFields = call._obj
        of_form = (
            fields.passed.kind or fields.factors or fields.mixing.hidden
        )  # not the plain calls, which are compared first
        return changed(field, by)(real, call) if of_form else real(call)

    wrong = proof.disagreement(Wrong("attention_backward", fault))  # type: ignore[arg-type]
    assert wrong.startswith("the gradient of ")
    assert f"of the form {form} differs" in wrong


@needs_kernels
def test_a_gradient_of_another_table_is_found() -> None:
    assert "of the form costs differs" in proof.disagreement(Wrong("attention_backward", shifted))  # type: ignore[arg-type]
