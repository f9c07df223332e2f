"""The compiled kernels: exactness, numbers that are lost nowhere, threads, memory, and the proof of a library.

That they equal the formula is asked in tests/attention/test_hard_input.py, of the engine that runs them.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from compiled import UNIT, Wrong, kernels, needs_kernels, randoms
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import softplus
from toys import HEAD_WIDTH, HEADS, WIDTH, draw, make

from poscli.attention import ENGINES, attend
from poscli.encodings import Encoding, names
from poscli.model.transformer import RMSNorm, gated
from poscli.native import proof
from poscli.native.attention import native_attention
from poscli.native.call import Block, Costs, Factors, Form, Gates, Mixing, Pieces, Relative, Stick, Term, line_of_cells
from poscli.native.layers import rms_norm, swiglu

pytestmark = needs_kernels
LEARNED = [name for name in names() if make(name).kernel_form_has_gradient]


@torch.no_grad()
def test_functions_in_the_kernels_are_exact_to_some_units_of_rounding() -> None:
    """Weights and gates of a single number, which are its sigmoid: no sum over keys hides an error of a few units."""
    x = torch.cat([torch.linspace(-30, 30, 2000), torch.linspace(-1, 1, 2001), torch.tensor([-80.0, 80.0])])
    one, exact = torch.ones(len(x), 1, 1, 1), x.double().sigmoid()
    block = [Block(slice(0, 1), slice(0, 1))]
    stick = native_attention(kernels(), (x.view(-1, 1, 1, 1), one, one), block, scale=1.0, form=Stick()).flatten()
    ends = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1).expand(len(x), -1, -1, -1)
    two = [Block(slice(0, 1), slice(0, 2))]
    of_two = native_attention(kernels(), (x.view(-1, 1, 1, 1), ends, ends), two, scale=1.0).flatten()
    factor, nothing = torch.ones(1), torch.zeros(len(x), 1, 1, 1)
    costs = Costs(x.view(-1, 1, 1, 1), torch.ones(len(x), 1, 2, 1), factor)
    other = native_attention(kernels(), (nothing, ends, 1 - ends), two, scale=1.0, form=costs).flatten()
    gated = swiglu(kernels(), x, torch.ones(len(x)))
    # Near 0 their logarithms are of the order of x, which is rounded, too.
    units = 6 + 2 * x.double().abs()
    for what, found, right in (
        ("stick", stick, exact),
        ("softmax", of_two, exact),
        ("costs", other, 1 / (1 + torch.exp(-softplus(x.double(), threshold=90)))),
        ("swiglu", gated, x * exact),
    ):
        off = ((found.double() - right).abs() / right.abs().clamp(min=1e-30) / 2.0**-24 / units).max()
        assert off <= 1, f"{what} is {off:.3g} times as far off as it may be"


@torch.no_grad()
def test_numbers_that_stand_once_in_memory_are_read_as_often_as_they_count() -> None:
    sizes = [(1, 2, 33, 1), (1, 2, 40, 1), (1, 2, 40, 1), (1, 2, 33, 1), (1, 2, 1, 1)]
    spread = [x.expand(*x.shape[:3], n) for x, n in zip(randoms(*sizes), (8, 8, 8, 8, 72), strict=True)]

    def output(q: Tensor, k: Tensor, v: Tensor, met: Tensor, table: Tensor) -> Tensor:
        block, vectors = Block(slice(0, 33), slice(0, 40), (Term(table, skewed=True),)), randoms((2, 72, 8))[0]
        return native_attention(kernels(), (q, k, v), [block], scale=0.5, vectors=(Relative(vectors, met), None, None))

    assert torch.equal(output(*spread), output(*(x.contiguous() for x in spread)))


# Numbers that are lost nowhere


def test_far_keys_without_weight_are_skipped_and_a_nan_among_them_is_not() -> None:
    q, k, v = (x.detach() for x in randoms((1, 1, 400, 8), (1, 1, 400, 8), (1, 1, 400, 8)))
    steep = -2.0 * torch.arange(399, -400, -1).clamp(min=0).float()[None, None, None]
    whole = [Block(slice(0, 400), slice(0, 400), (Term(steep, skewed=True),))]
    entry = 399 - (torch.arange(400)[:, None] - torch.arange(400))
    hidden = torch.ones(400, 400, dtype=torch.bool).triu(1)
    exact = (q.double() @ k.double().mT + steep[0, 0, 0][entry]).masked_fill(hidden, -math.inf).softmax(-1) @ v.double()
    found = native_attention(kernels(), (q, k, v), whole, scale=1.0)
    assert float((found - exact).abs().max()) <= 64 * UNIT * float(exact.abs().max())
    k[0, 0, 0] = math.nan
    assert native_attention(kernels(), (q, k, v), whole, scale=1.0).isnan().all()


def learned(encoding: Encoding) -> Encoding:
    """The encoding with random numbers in place of zeros."""
    for n, p in enumerate(encoding.parameters()):
        if not p.any():
            nn.init.normal_(p, generator=torch.Generator().manual_seed(n))
    return encoding


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


def test_queries_whose_stick_is_used_up_read_no_further_keys() -> None:
    """NaN in the values of keys that have no weight would be seen."""
    q, k, v = (torch.ones(1, HEADS, 400, HEAD_WIDTH) for _ in "qkv")
    v[:, :, :64] = torch.nan
    at = make("none").locate(400, torch.device("cpu"))
    with torch.no_grad():
        out = attend(ENGINES["native"], make("stick-breaking"), q, k, v, at)
    assert out[:, :, 368:].isfinite().all()
    assert out[:, :, 64].isnan().all()


@pytest.mark.parametrize("spec", ["alibi", "shaw", "cope(max_pos=5)", "grape-additive", "dape(base=t5)"])
def test_the_weights_of_a_query_sum_to_one_however_large_its_scores_are(spec: str) -> None:
    """What all values gain is then what the outputs gain. Scores of 500 are rounded to 1 / 32,000."""
    q, k, v, upstream = (draw(1, HEADS, n, HEAD_WIDTH, seed=n) for n in (60, 140, 141, 61))
    k, v, upstream = k.requires_grad_(), v[:, :, :140].requires_grad_(), upstream[:, :, :60]
    encoding, at = learned(make(spec)), make(spec).locate(140, torch.device("cpu"))
    features = encoding.features(draw(1, 140, WIDTH, seed=5))
    (grad,) = torch.autograd.grad(attend(ENGINES["native"], encoding, 200 * q, k, v, at, features), v, upstream)
    gained, given = grad.double().sum(dim=2), upstream.double()
    assert ((gained - given.sum(dim=2)).abs() <= 16 * UNIT * given.abs().sum(dim=2)).all()


# Threads and memory


def called(
    q: tuple[int, ...] = (1, 2, 5, 4),
    k: tuple[int, ...] = (1, 2, 9, 4),
    v: tuple[int, ...] = (1, 2, 9, 3),
    keys: int = 9,
    *,
    terms: Sequence[Term] = (),
    vectors: tuple[int, ...] | None = None,
    met: tuple[int, ...] = (1, 2, 5, 6),
    first_key: Tensor | None = None,
    null: tuple[int, ...] | None = None,
    form: Form | None = None,
    dtype: torch.dtype = torch.float32,
    blocks: int = 1,
) -> None:
    """A call of five queries and nine keys, of which some tensors have other sizes."""
    qkv = tuple(torch.zeros(size, dtype=dtype) for size in (q, k, v))
    relative = None if vectors is None else Relative(torch.zeros(vectors), torch.zeros(met))
    all_blocks = [Block(slice(0, 5), slice(0, keys), tuple(terms), first_key)] * blocks
    with torch.no_grad():
        how = {"vectors": (relative, None, None), "null": None if null is None else torch.zeros(null), "form": form}
        native_attention(kernels(), qkv, all_blocks, scale=1.0, **how)  # type: ignore[arg-type]


def zeros(*sizes: tuple[int, ...]) -> list[Tensor]:
    return [torch.zeros(size) for size in sizes]


RIGHT = [
    {"terms": [Term(torch.zeros(1, 1, 1, 9)), Term(torch.zeros(1, 2, 5, 9))]},
    {"terms": [Term(torch.zeros(1, 1, 1, 13), skewed=True)]},
    {"terms": [Term(torch.zeros(1, 1, 1, 60), columns=4)]},
    {"vectors": (1, 13, 6)}, {"first_key": torch.zeros(2, 1, dtype=torch.int32)}, {"null": (1, 2, 5, 1)},
    {"form": Pieces(*zeros((2, 13), (2, 5), (2, 4), (2, 4), (3,)))},
    {"form": Costs(*zeros((1, 2, 5, 6), (1, 2, 9, 6), (2,)))},
    {"form": Gates(torch.zeros(1, 2, 5, 6))}, {"form": Mixing(*zeros((7, 2), (7, 13), (2, 7)), 0.1)},
    {"form": Factors(torch.zeros(2, 13))},
]  # fmt: skip
TOO_FEW_OR_MANY = [
    *({"k": size} for size in ((1, 2, 9, 3), (1, 2, 9, 5), (1, 1, 9, 4), (1, 3, 9, 4), (2, 2, 9, 4))),
    *({"v": size} for size in ((1, 2, 8, 3), (1, 1, 9, 3), (1, 3, 9, 3), (2, 2, 9, 3))),
    {"keys": 4}, {"dtype": torch.float64}, {"blocks": 2, "vectors": (1, 13, 6)},
    {"blocks": 2, "form": Factors(torch.zeros(2, 13))},
    *({"terms": [Term(torch.zeros(1, 1, *size))]} for size in ((1, 8), (4, 9), (6, 9), (2, 9))),
    *({"terms": [Term(torch.zeros(1, 1, *size), skewed=True)]} for size in ((1, 12), (5, 13))),
    *({"terms": [Term(torch.zeros(1, 1, *size), columns=4)]} for size in ((1, 59), (5, 60))),
    {"terms": [Term(torch.zeros(1, 1, 1, 9))] * 5},
    *({"null": size} for size in ((1, 2, 4, 1), (1, 1, 5, 1), (2, 2, 5, 1), (1, 2, 5, 2))),
    *({"vectors": size} for size in ((1, 12, 6), (1, 14, 6), (1, 13, 5), (1, 13, 7))),
    *({"first_key": torch.zeros(size, dtype=torch.int32)} for size in ((1, 1), (2, 2), (3, 1))),
    {"first_key": torch.zeros(2, 1)}, {"first_key": torch.zeros(2, 2, dtype=torch.int32)[:, :1]},
    *({"form": Pieces(*zeros((u, n), (y, t), (h, k), (h, m), (3,)))} for u, n, y, t, h, k, m in (
        (2, 12, 2, 5, 2, 4, 4), (2, 14, 2, 5, 2, 4, 4), (2, 13, 2, 4, 2, 4, 4), (2, 13, 2, 6, 2, 4, 4),
        (1, 13, 2, 5, 2, 4, 4), (3, 13, 2, 5, 2, 4, 4), (2, 13, 1, 5, 2, 4, 4), (2, 13, 3, 5, 2, 4, 4),
        (2, 13, 2, 5, 1, 4, 4), (2, 13, 2, 5, 3, 4, 4), (2, 13, 2, 5, 2, 3, 4), (2, 13, 2, 5, 2, 4, 5))),
    *({"form": Costs(*zeros((1, 2, t, 6), (1, 2, s, p), (h,)))} for t, s, p, h in (
        (4, 9, 6, 2), (6, 9, 6, 2), (5, 8, 6, 2), (5, 10, 6, 2),
        (5, 9, 5, 2), (5, 9, 7, 2), (5, 9, 6, 1), (5, 9, 6, 3))),
    *({"form": Gates(torch.zeros(1, h, t, 6))} for h, t in ((1, 5), (3, 5), (2, 4), (2, 6))),
    *({"form": Mixing(*zeros((7, h), (g, n), (2, o)), 0.1)} for h, g, n, o in (
        (1, 7, 13, 7), (3, 7, 13, 7), (2, 6, 13, 7), (2, 8, 13, 7),
        (2, 7, 12, 7), (2, 7, 14, 7), (2, 7, 13, 6), (2, 7, 13, 8))),
    *({"form": Factors(torch.zeros(h, n))} for h, n in ((1, 13), (3, 13), (2, 12), (2, 14))),
]  # fmt: skip


def test_no_kernel_reads_beyond_a_tensor_that_is_smaller_than_it_should_be_or_another() -> None:
    for right in RIGHT:
        called(**right)  # type: ignore[arg-type]
    for wrong in TOO_FEW_OR_MANY:
        with pytest.raises(AssertionError):
            called(**wrong)  # type: ignore[arg-type]


def forms() -> list[tuple[list[Tensor], Callable[..., Form]]]:
    """The tensors of each form, and how it is made of them: 3 texts, 2 heads, 200 tokens."""
    y, z, factor, table, factors = randoms((3, 2, 200, 4), (3, 2, 200, 4), (2,), (3, 2, 200, 9), (2, 399), seed=1)
    network = randoms((5, 2), (5, 399), (2, 5), seed=2)
    mixing = partial(Mixing, leak=0.1)
    of_pairs, lines = randoms((2, 399), (2, 200), seed=4), randoms((2, 4), (2, 4), seed=5)
    pieces = partial(Pieces, bends_M=torch.tensor([-0.5, 0.1, 0.7]))
    return [
        ([], Stick), ([table], Gates), ([y, z, factor], Costs), ([factors], Factors), (network, mixing),
        ([*of_pairs, *lines], lambda u, *others: pieces(u.sort(descending=True).values, *others)),
    ]  # fmt: skip


@pytest.mark.parametrize("form", range(-1, 6))
def test_results_have_the_same_bits_on_any_number_of_threads(form: int) -> None:
    """Attention with tables and vectors, or under a form, and the norm: outputs and gradients."""
    given, made = ([], lambda: None) if form < 0 else forms()[form]
    q, k, v = randoms((3, 2, 200, 16), (3, 2, 200, 16), (3, 2, 200, 16))
    table, a, x, weight, cells = randoms((1, 2, 1, 399), (1, 399, 16), (7, 33, 20), (20,), (2, 418), seed=3)
    (null,) = randoms((3, 2, 200, 1), seed=4)

    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        terms = (Term(table, skewed=True), Term(line_of_cells(cells, 16), columns=16)) if form < 0 else ()
        vectors = (Relative(a, q), None, None) if form < 0 else (None, None, None)
        whole = [Block(slice(0, 200), slice(0, 200), terms)]
        how = {"scale": 0.25, "vectors": vectors, "null": null}
        out = native_attention(kernels(), (q, k, v), whole, form=made(*given), **how)  # type: ignore[arg-type]
        normed = rms_norm(kernels(), x, weight, 1e-6)
        learned = [q, k, v, null, x, weight, *([table, cells, a] if form < 0 else given)]
        return [out, normed, *torch.autograd.grad(out.square().sum() + normed.square().sum(), learned)]

    try:
        one, three = run(1), run(3)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(x, y) for x, y in zip(one, three, strict=True))


STARVED = """
import resource, torch
from poscli.native import library
from poscli.native.attention import native_attention
from poscli.native.call import Block

torch.set_num_threads(1)  # the stacks of threads that start later would need room, too
tokens, width = 1_000_000, 32
q, k, v = (torch.randn(1, 1, *shape) for shape in ((1, width), (tokens, width), (tokens, 1)))
whole = [Block(slice(0, 1), slice(0, tokens))]
run = lambda: native_attention(library(), (q.requires_grad_(), k, v), whole, scale=1.0)
if {backward}:
    out = run()
    run = out.sum().backward
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int({copies} * k.nbytes)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
run()
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="Linux says how much a process has, and heeds a limit"
)
@pytest.mark.parametrize("backward", [False, True])
def test_kernels_that_find_too_little_memory_end_in_that_error(backward: bool) -> None:
    """They need copies of the keys, and there is room for half of one, beside the gradient that torch allocates."""
    code = STARVED.format(backward=backward, copies=0.5 + backward)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stderr.splitlines()[-1:] == ["MemoryError: the kernels of attention could not allocate memory"]


# The layers beside attention


@pytest.mark.parametrize("same", [False, True])  # with True, all rows of the gradient are one row in memory
@pytest.mark.parametrize("shape", [(1, 1), (3, 37), (2, 70, 64)])
def test_layers_equal_their_formulas(shape: tuple[int, ...], same: bool) -> None:
    x, up, weight = randoms(shape, shape, shape[-1:])
    x = (30 * x).detach().requires_grad_()
    upstream = torch.randn(shape[-1:] if same else shape).expand(shape)
    pairs = [
        (lambda x, up, _: swiglu(kernels(), x, up), lambda x, up, _: F.silu(x) * up, [x, up, None]),
        (
            lambda x, _, w: rms_norm(kernels(), x, w, 1e-6),
            lambda x, _, w: F.rms_norm(x, w.shape, w, 1e-6),
            [x, None, weight],
        ),
    ]
    for ours, torchs, inputs in pairs:
        exact = [None if each is None else each.detach().double().requires_grad_() for each in inputs]
        found = run_with_gradients(ours, inputs, upstream)
        for one, other in zip(found, run_with_gradients(torchs, exact, upstream.double()), strict=True):
            assert float((one - other).abs().max()) <= 32 * UNIT * max(0.1, float(other.abs().max()))


def run_with_gradients(of: Callable, inputs: list, upstream: Tensor) -> list[Tensor]:
    out = of(*inputs)
    grads = torch.autograd.grad(out, [x for x in inputs if x is not None], upstream)
    return [x.detach() for x in (out, *grads)]


def test_the_model_uses_them_for_float32_alone() -> None:
    norm = RMSNorm(8)
    assert "Norm" in str(norm(torch.ones(2, 8)).grad_fn)
    assert "_Norm" in str(norm(torch.ones(2, 8)).grad_fn)
    assert "_Norm" not in str(norm.double()(torch.ones(2, 8, dtype=torch.float64)).grad_fn)
    half = torch.ones(2, 8, dtype=torch.bfloat16, requires_grad=True)
    assert torch.equal(gated(half, half), F.silu(half) * half)


# The proof: a library with a planted fault is found, whatever the fault


def test_the_kernels_are_proven_and_the_proof_draws_nothing_from_the_global_generator() -> None:
    """Otherwise a process that compiles them would draw other numbers than one that finds them kept."""
    before = torch.get_rng_state()
    assert proof.disagreement(kernels()) == ""
    assert torch.equal(torch.get_rng_state(), before)


def changed(field: str, by: Callable) -> Callable:
    """A kernel whose call has another number in a field, where it has one: `term.0.x` is field x of the first term."""

    def fault(real: Callable, call: ctypes.Structure) -> bool:
        *path, name = field.split(".")
        owner = call._obj
        for step in path:
            owner = owner[int(step)] if step.isdigit() else getattr(owner, step)
        if getattr(owner, name):
            setattr(owner, name, by(getattr(owner, name)))
        return real(call)

    return fault


@pytest.mark.parametrize(
    ("field", "by", "said"),
    [
        ("scale", lambda x: x * 1.0001, "differs"),
        ("reach", lambda x: x - 1, "differs"),
        ("null", lambda _: 0, "the output differs"),
        ("null", lambda x: x + 4, "the output differs"),
        ("term.0.x", lambda x: x + 4, "differs"),
        ("pieces.of_distance", lambda x: x + 4, "the form pieces differs"),
        ("pieces.bends", lambda x: x + 4, "the form pieces differs"),
        ("passed.factor", lambda x: x + 4, "the form costs differs"),
        ("passed.width", lambda x: x - 1, "the form costs differs"),
        ("passed.without_own", lambda _: 0, "the form stick differs"),
        ("mixing.leak", lambda x: x + 0.01, "the form mixing differs"),
        ("mixing.of_distance", lambda x: x + 4, "the form mixing differs"),
        ("factors", lambda x: x + 4, "the form factors differs"),
    ],
)
def test_a_wrong_output_is_found(field: str, by: Callable, said: str) -> None:
    assert said in proof.disagreement(Wrong("attention_forward", changed(field, by)))  # type: ignore[arg-type]


def shifted(real: Callable, call: ctypes.Structure) -> bool:
    """Gradients by query land one token too far."""
    fields = call._obj
    if fields.passed.grad_of_queries:
        fields.passed.grad_of_queries += 4 * fields.passed.grad_of_queries_at.token
        fields.queries -= 1
    return real(call)


@pytest.mark.parametrize(
    "fault",
    [
        *(changed("scale", lambda x: x * 1.0001), changed("term.0.grad", lambda x: x + 4)),
        *(changed("a.head", lambda _: 0), changed("null", lambda x: x + 4), changed("grad_null", lambda _: 0)),
    ],
)
def test_a_wrong_gradient_is_found(fault: Callable) -> None:
    assert "differs" in proof.disagreement(Wrong("attention_backward", fault))  # type: ignore[arg-type]


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
        ("pieces.grad_of_distance", lambda _: 0, "pieces"),
        ("pieces.grad_of_query", lambda _: 0, "pieces"),
        ("pieces.grad_constant", lambda _: 0, "pieces"),
        ("pieces.grad_slope", lambda _: 0, "pieces"),
        ("mixing.leak", lambda x: x + 0.01, "mixing"),
        ("mixing.of_distance", lambda x: x + 4, "mixing"),
        ("mixing.grad_out", lambda _: 0, "mixing"),
        ("mixing.grad_of_scores", lambda _: 0, "mixing"),
        ("mixing.grad_of_distance", lambda _: 0, "mixing"),
        ("scale", lambda x: x * 1.0001, "pieces"),
    ],
)
def test_a_wrong_gradient_of_a_form_is_found(
    field: str, by: Callable, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No gradient is moved beyond its tensor: some are left out (0) instead."""
    monkeypatch.setattr(proof, "CASES", ())  # plain calls, which are compared first, and which stay right

    def fault(real: Callable, call: ctypes.Structure) -> bool:
        fields = call._obj
        of_form = fields.pieces.lines or fields.passed.kind or fields.factors or fields.mixing.hidden
        return changed(field, by)(real, call) if of_form else real(call)

    wrong = proof.disagreement(Wrong("attention_backward", fault))  # type: ignore[arg-type]
    assert wrong.startswith("the gradient of ")
    assert f"of the form {form} differs" in wrong


def test_a_gradient_of_another_table_is_found() -> None:
    assert "of the form costs differs" in proof.disagreement(Wrong("attention_backward", shifted))  # type: ignore[arg-type]
