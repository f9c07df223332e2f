"""Engines on hard input equal the reference: texts unlike each other in one batch, large norms, several blocks.

With and without gradients, in one piece and in chunks that continue a cache. `test_attention.py` and `poscli verify`
use normal numbers, on which no score is far from any other.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import ENDS, HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make, model, perturbed, rounding, tokens, wide

from poscli.attention import ENGINES, BlockSizes, Engine, Place, attend, engines_for
from poscli.attention.tiles import ScoreBounds, TileInputs
from poscli.encodings import Encoding, names
from poscli.equation.operands import columns_of
from poscli.equation.reference import operands, scores, tempered, weights
from poscli.model.cache import Cache
from poscli.model.transformer import Model
from poscli.verify.noise import FLOAT32

TOKENS, FEW = 72, 21  # all tokens are queries, or the last ones, after a cache or a memory
TEXTS = 4
# Several blocks of every kind. Sizes differ, so that the edges of blocks and tiles fall on different tokens.
SMALL = BlockSizes(
    block_queries=16, block_entries=1, training_queries=12, training_tokens=64, backward_queries=20,
    backward_entries=1, tile_queries=8, tile_keys=12, skip_multiple=4, weighted_queries=5,
)  # fmt: skip
# Training takes all tokens in one call, and a tile of evaluation is longer than the distances at which keys matter.
LARGER = BlockSizes(
    training_queries=12, backward_queries=20, backward_entries=1, tile_queries=24, tile_keys=20, skip_multiple=1
)  # fmt: skip
SIZES = {"whole": BlockSizes(), "blocks": SMALL, "larger blocks": LARGER}

# One encoding for every tier and every path through the engines, with values of some parameters.
STEEP = {"slope": [5.0, 12.0, 30.0]}  # ALiBi that leaves far keys no weight, at distances that differ by head
GAP = {"kernel": [0.0, *[-2000.0] * 29]}  # hides all keys at distances 1 to 29, but none that are farther away
FORGET = {"w": 0.3, "b": 2.0}  # the sign of the text x decides what is forgotten
CASES: dict[str, dict[str, object]] = {
    "none": {},
    "rope": {},
    "rope+ssmax": {},
    "rope+window(9)": {},
    "sink(2)+window(9)+rope": {},
    "alibi(trainable=true)": STEEP,
    "alibi(trainable=true)+window(30)": STEEP,
    "alibi(trainable=true)+rope+fox": STEEP | FORGET,
    "alibi(trainable=true)+interpolated(3)": STEEP,
    "alibi(trainable=true)+logn(5)": STEEP,
    "t5(buckets=6, far=11)": {},
    "convolution(width=5)": {},
    "convolution(width=30)": GAP,
    "fox": FORGET,
    "cable": FORGET | {"b": -2.0},
    "fox+window(20)": FORGET,
    "fox+ssmax": FORGET,
    "fox+shaw(clip=4)": FORGET,
    "fox+transformer-xl": FORGET,
    "shaw(clip=4)": {},
    "shaw(clip=4)+window(30)": {},
    "deberta(span=9)": {},
    "transformer-xl": {},
    "fire": {},
    "grape-additive": {},
    "cope(max_pos=9)": {},
    "dape": {},
    "path": {},
    "stick-breaking": {},
    "toys:Capped+window(9)": {},
    "urpe": {},
    "rerope(window=7)": {},
    "alibi+randomized(200)": {},
    "rope-dynamic": {},  # its angles depend on the position of the last key of all
}


def prepared(spec: str) -> Encoding:
    encoding = make(spec)
    with torch.no_grad():
        for name, parameter in encoding.named_parameters():
            if (value := CASES[spec].get(name.split(".")[-1])) is not None:
                parameter.copy_(torch.as_tensor(value).expand_as(parameter))
    return encoding


def unlike(dtype: torch.dtype, off: int | None = None) -> dict[str, Tensor]:
    """q, k, v `[B, H, T, D]` and x `[B, T, W]` of four texts: constant, normal, large, and large with opposite signs.

    In the last text every query is opposite to all keys but the first six, so its largest scores are as far back as
    possible; the same text has the strongest
    gates. `off` is a seed by which every number is moved by one unit of rounding of float32, up or down.
    """
    q, k, v = (draw(TEXTS, HEADS, TOKENS, HEAD_WIDTH, seed=n, dtype=torch.float64) for n in range(3))
    x = draw(TEXTS, TOKENS, WIDTH, seed=3, dtype=torch.float64)
    direction = 8 * draw(HEADS, 1, HEAD_WIDTH, seed=4, dtype=torch.float64).sign()
    q[0], k[0] = q[0, :, :1], k[0, :, :1]
    for y in (q, k, x):
        y[2] *= 4
    q[3], k[3] = direction, -direction
    k[3, :, :6] = direction
    x[0], x[3] = -1, -2.2
    drawn = {"q": q, "k": k, "v": v, "x": x}
    if off is not None:
        drawn = {
            n: y * (1 + FLOAT32 * draw(*y.shape, seed=100 * off + m).sign()) for m, (n, y) in enumerate(drawn.items())
        }
    return {name: y.to(dtype) for name, y in drawn.items()}


def attention(
    engine: Engine, encoding: Encoding, inputs: dict[str, Tensor], queries: int, sizes: BlockSizes = SIZES["whole"]
) -> Tensor:
    """Attention output of the last queries."""
    features = encoding.features(inputs["x"])
    at = encoding.locate(TOKENS, torch.device("cpu"))
    return attend(engine, encoding, inputs["q"][:, :, -queries:], inputs["k"], inputs["v"], at, features, sizes)


def with_gradients(
    engine: Engine, encoding: Encoding, queries: int, *, off: int | None = None, sizes: BlockSizes | None = None
) -> dict[str, Tensor]:
    """The output for the last queries and its gradients under a random loss, in float64.

    They are computed in float32, or in float64 by the reference; `off` moves inputs and parameters.
    """
    dtype = torch.float64 if sizes is None else torch.float32
    own, inputs = copy.deepcopy(encoding).to(dtype), unlike(dtype, off)
    with torch.no_grad():
        for n, p in enumerate(own.parameters()):
            p *= 1 if off is None else 1 + FLOAT32 * draw(*p.shape, seed=100 * off + 10 + n).sign()
    learned = {name: y.requires_grad_() for name, y in inputs.items()}
    learned |= {f"encoding.{name}": p for name, p in own.named_parameters()}
    out = attention(engine, own, inputs, queries, sizes or SIZES["whole"])
    (out * draw(*out.shape, seed=5, dtype=dtype)).sum().backward()
    grads = {f"d{name}": torch.zeros(()) if p.grad is None else p.grad for name, p in learned.items()}
    return {name: y.detach().double() for name, y in ({"output": out} | grads).items()}


def limits(encoding: Encoding, exact: dict[str, Tensor], moved: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The largest errors to allow: one per text `[B, 1, ...]`, or one for all numbers of a parameter.

    As in `poscli.verify.noise.tolerances`: the change if every input moves by one unit of rounding, or a unit of a sum
    of D products, per key for parameters. A weight exp(s - log sum exp s) is also off by one unit of the score s
    itself, which a change of the inputs does not show where the softmax is saturated. Sixteen such units are allowed
    because a kernel's exponential and its sums in another order are off by a few each; at most 7 were seen.
    """
    largest, found = largest_scores(encoding), {}
    for name, x in exact.items():
        per_text = name in ("output", "dq", "dk", "dv", "dx")
        rest = tuple(range(1 if per_text else 0, x.ndim))
        change = torch.stack([(other[name] - x).abs().amax(rest, keepdim=True) for other in moved]).amax(0)
        unit = FLOAT32 * (HEAD_WIDTH + (largest.view(-1, *[1] * len(rest)) if per_text else largest.max()))
        found[name] = 16 * torch.maximum(change, unit * (TOKENS if name == "dx" or not per_text else 1))
    return found


@torch.no_grad()
def largest_scores(encoding: Encoding) -> Tensor:
    """The largest numbers of each text `[B]` that an engine adds up to scores and that may cancel there."""
    given, at = unlike(torch.float32), encoding.locate(TOKENS, torch.device("cpu"))
    features = encoding.features(given["x"])
    x = operands(encoding, given["q"], given["k"], given["v"], at, features)
    largest = (tempered(x, x.q_BHTD) @ x.k_BHSD.mT * encoding.scale).abs().amax((1, 2, 3))
    if "potential" in encoding.blanks:
        c_BHS = encoding.potential(features)
        largest = largest + (c_BHS.amax(-1) - c_BHS.amin(-1)).amax(-1)
    return largest


@dataclass(frozen=True)
class Case:
    """An encoding, the reference's results for the last queries in float64, and the largest errors in float32."""

    encoding: Encoding
    queries: int
    exact: dict[str, Tensor]
    allowed: dict[str, Tensor]


def given() -> list[Any]:
    """Every spec with all queries and with few; `make test` takes the two in turn."""
    pairs = itertools.product(enumerate(CASES), enumerate((TOKENS, FEW)))
    return [
        pytest.param((spec, queries), id=f"{spec}-{queries}", marks=[] if (n + m) % 2 else [pytest.mark.wide])
        for (n, spec), (m, queries) in pairs
    ]


@pytest.fixture(scope="module", params=given())
def case(request: pytest.FixtureRequest) -> Case:
    spec, queries = request.param
    encoding, reference = prepared(spec), ENGINES["reference"]
    exact = with_gradients(reference, encoding, queries)
    moved = [with_gradients(reference, encoding, queries, off=off) for off in (1, 2)]
    return Case(encoding, queries, exact, limits(encoding, exact, moved))


def assert_within(found: Tensor, exact: Tensor, allowed: Tensor, what: str) -> None:
    excess = float(((found.double() - exact).abs() / allowed).max())
    assert excess <= 1, f"{what} is {excess:.3g} times as far off as rounding can be"


def test_outputs_and_gradients_equal_the_reference(case: Case) -> None:
    for engine in engines_for(case.encoding):
        if engine.name == "reference":
            continue
        for cut, sizes in SIZES.items():
            for name, found in with_gradients(engine, case.encoding, case.queries, sizes=sizes).items():
                assert_within(found, case.exact[name], case.allowed[name], f"{name} of {engine.name}, {cut}")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_outputs_without_gradient_equal_the_reference(case: Case, mode) -> None:
    inputs, exact = unlike(torch.float32), case.exact["output"]
    with mode():
        for engine in engines_for(case.encoding, Place(gradient=False)):
            for cut, sizes in SIZES.items():
                for queries, first in itertools.product((case.queries, 1), (0, TEXTS - 1)):  # all texts; the last alone
                    texts = {name: y[first:] for name, y in inputs.items()}
                    found = attention(engine, case.encoding, texts, queries, sizes)
                    what = f"{engine.name}, {cut}, {queries} queries, from text {first}"
                    assert_within(found, exact[first:, :, -queries:], case.allowed["output"][first:], what)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # on CPU it is not compiled
@torch.no_grad()
def test_flex_equals_the_reference(case: Case) -> None:
    """FlexAttention, which runs eagerly on CPU for this test alone."""
    if reason := ENGINES["flex"].refuses(case.encoding, Place(gradient=False)):
        pytest.skip(reason)
    found = attention(ENGINES["flex"], case.encoding, unlike(torch.float32), case.queries)
    assert_within(found, case.exact["output"], case.allowed["output"], "flex")


@torch.no_grad()
def test_the_hard_input_is_hard() -> None:
    """Tiles skip keys that have no weight in any text, while one text has all its weight on the keys furthest back."""
    inputs, encoding = unlike(torch.float32), prepared("alibi(trainable=true)")
    x = operands(encoding, inputs["q"], inputs["k"], inputs["v"], encoding.locate(TOKENS, torch.device("cpu")))
    bounds = ScoreBounds.of(TileInputs.of(encoding, x))
    assert [first for first, _ in bounds.first_keys(slice(64, 72), SMALL.skip_multiple)] == [0, 24, 48]
    p_BHTS = weights(encoding, x, scores(encoding, x))
    assert float(p_BHTS[3, 0, 64:, :6].sum(-1).min()) > 0.99


@torch.no_grad()
def test_heads_that_begin_at_one_key_need_not_be_neighbours() -> None:
    """The outer heads skip the same keys, the one between them fewer."""
    encoding, reference = make("alibi(trainable=true)"), ENGINES["reference"]
    encoding.slope.copy_(torch.tensor([30.0, 5.0, 30.0]))
    inputs, at = unlike(torch.float32), encoding.locate(TOKENS, torch.device("cpu"))
    x = operands(encoding, inputs["q"], inputs["k"], inputs["v"], at)
    firsts = ScoreBounds.of(TileInputs.of(encoding, x)).first_keys(slice(64, 72), SMALL.skip_multiple)
    assert [heads for _, heads in firsts] == [[1], [0, 2]]
    with torch.enable_grad():
        exact = with_gradients(reference, encoding, TOKENS)
        allowed = limits(encoding, exact, [with_gradients(reference, encoding, TOKENS, off=off) for off in (1, 2)])
    found = attention(ENGINES["tiles"], encoding, inputs, TOKENS, SMALL)
    assert_within(found, exact["output"], allowed["output"], "tiles")


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@torch.no_grad()
def test_a_text_that_forgets_everything_takes_no_keys_from_one_that_forgets_nothing(order: list[int]) -> None:
    """One call of both: 7.2 below the gates' bias of 2, or above it, at every token."""
    encoding, given = prepared("fox"), unlike(torch.float64)
    inputs = {name: y[:2] for name, y in given.items()}
    inputs["x"] = torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None, None].expand_as(inputs["x"])
    inputs = {name: y[order] for name, y in inputs.items()}
    exact = attention(ENGINES["reference"], copy.deepcopy(encoding).double(), inputs, TOKENS)
    narrow = {name: y.float() for name, y in inputs.items()}
    # Units of the largest score, 5 per token of the text that forgets, and of q . k.
    limit = 16 * FLOAT32 * (5 * TOKENS + float(inputs["q"].norm(dim=-1).max() * inputs["k"].norm(dim=-1).max()))
    for engine in engines_for(encoding, Place(gradient=False)):
        for cut, sizes in SIZES.items():
            found = attention(engine, encoding, narrow, TOKENS, sizes)
            assert float((found - exact).abs().max()) <= limit, f"{engine.name}, {cut}"


# Cached decoding in chunks

CHUNKS = [7, 20, 1, 1, 30]
JOINS = ["rope+window(9)", "sink(2)+window(9)+rope", "alibi+window(30)", "fox+ssmax", "fox+shaw(clip=4)", "cope+fire"]


def prefilled(trained: Model, text: Tensor) -> Tensor:
    """Logits of a text that is read in chunks."""
    cache = Cache(columns=columns_of(text.shape[1]))
    return torch.cat([trained(part, cache=cache) for part in text.split(CHUNKS, dim=1)], dim=1)


@pytest.mark.parametrize("spec", wide([*names(), *JOINS]))
def test_a_prefill_in_chunks_equals_the_full_forward(spec: str) -> None:
    """With every engine and in both modes without gradient, for one constant text and one random text."""
    rescales = make(spec).rescales  # keys of deeper layers are made when the text is shorter, by definition
    if rescales and "embed" in make(spec).blanks:
        pytest.skip("what is embedded depends on the total length, by definition")
    length = sum(CHUNKS) if ENDS & set(spec.split("+")) else LENGTH
    trained = perturbed(model(spec, layers=1 if rescales else 2, length=length)).requires_grad_(False)
    text = tokens(2, sum(CHUNKS))
    text[0] = 3
    limit = rounding(trained, text)
    dense = copy.deepcopy(trained)
    dense.use_engine("reference")
    if rescales:
        stops = itertools.accumulate(CHUNKS)
        full = torch.cat([dense(text[:, :n])[:, n - chunk :] for n, chunk in zip(stops, CHUNKS, strict=True)], dim=1)
    else:
        full = dense(text)
    for engine in engines_for(make(spec), Place(gradient=False)):
        trained.use_engine(engine.name)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found = prefilled(trained, text)
            error = float((found - full).abs().max())
            assert error <= limit, f"{engine.name} is {error:.1g} off, {limit:.1g} would be rounding"
