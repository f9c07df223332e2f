"""Attention: the reference against the equation by hand, and every engine against the reference."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from toys import COMPOSITES, ENDS, HEAD_WIDTH, HEADS, NARROW, TOYS, WIDTH, draw, make, perturbed, shape, wide

from poscli.attention import ENGINES, BlockSizes, Engine, Place, attend, choose, engines_for
from poscli.attention.tiles import ScoreBounds, TileInputs
from poscli.encodings import Encoding, names
from poscli.equation.composed import Composed
from poscli.equation.operands import Operands, Positions, snapped
from poscli.equation.reference import operands, scores
from poscli.verify.noise import tolerances

SPECS = [*names(), *COMPOSITES, *TOYS]
# Sums of terms that no single encoding gives to a tile.
TILED = ["t5+fox", "fox+alibi", "window(7)+shaw(clip=3)", "deberta+alibi", "transformer-xl+fox", "alibi+window(5)"]

UNIT = 2**-23  # the unit of rounding of float32

Case = tuple[tuple[int, int, int], BlockSizes]  # (batch, queries, keys), and the block sizes
# A chunk of the backward pass holds one text. With block_entries=1 a block that materialises has at most 16 queries.
WHOLE = BlockSizes(block_queries=512, backward_entries=1)
CASES: dict[str, Case] = {
    "one block": ((3, 41, 41), WHOLE),
    "several blocks": (
        (1, 41, 41),
        BlockSizes(block_queries=7, block_entries=1, backward_entries=1, backward_queries=8),
    ),
    "a block of one row": ((2, 33, 33), BlockSizes(block_queries=16, training_tokens=32, backward_entries=1)),
    "a longer past": ((2, 20, 41), BlockSizes(block_queries=6, block_entries=1, backward_entries=1)),
    "one token": ((3, 1, 41), WHOLE),
    "the first token": ((1, 1, 1), WHOLE),
    "two tokens": ((1, 2, 2), BlockSizes(block_queries=1, block_entries=1, backward_entries=1)),
}
# `poscli verify` compares the engines on every registered encoding, for 16 tokens in several blocks.
BEYOND_VERIFY = ["a block of one row", "the first token", "two tokens"]


def run(
    engine: Engine, encoding: Encoding, case: Case, dtype: torch.dtype, off: int | None = None
) -> dict[str, Tensor]:
    """Attention output on random input, and every gradient of a random loss, in float64.

    `off` is a seed by which every number is moved by one unit of rounding of float32, up or down.
    """
    (batch, queries, keys), sizes = case
    encoding, inputs, x_BSW = given(encoding, case[0], dtype, off)
    learned = inputs | {f"encoding.{name}": p for name, p in encoding.named_parameters()}
    features = encoding.features(x_BSW)
    at = encoding.locate(keys, torch.device("cpu"))
    out = attend(engine, encoding, *(x.requires_grad_() for x in inputs.values()), at, features, sizes)
    assert out.dtype == dtype
    assert out.shape == (batch, HEADS, queries, HEAD_WIDTH)
    (out * draw(*out.shape, seed=4, dtype=dtype)).sum().backward()
    found = {"output": out} | {f"d{n}": torch.zeros(()) if x.grad is None else x.grad for n, x in learned.items()}
    return {name: x.detach().double() for name, x in found.items()}


def given(
    encoding: Encoding, size: Sequence[int], dtype: torch.dtype, off: int | None
) -> tuple[Encoding, dict[str, Tensor], Tensor]:
    """The encoding in a dtype, and q, k, v and x drawn for it."""
    batch, queries, keys = size
    encoding = copy.deepcopy(encoding).to(dtype)
    tokens = {"q": queries, "k": keys, "v": keys}
    inputs = {n: draw(batch, HEADS, t, HEAD_WIDTH, seed=m, dtype=dtype) for m, (n, t) in enumerate(tokens.items())}
    x_BSW = draw(batch, keys, WIDTH, seed=3, dtype=dtype)
    if off is not None:
        with torch.no_grad():
            for n, x in enumerate([*inputs.values(), x_BSW, *encoding.parameters()]):
                x *= 1 + UNIT * draw(*x.shape, seed=100 * off + n, dtype=dtype).sign()
    return encoding, inputs, x_BSW


def make_for(spec: str, tokens: int) -> Encoding:
    """The encoding of a small model, whose training length is `tokens` if the encoding is undefined beyond it."""
    at = shape()
    return make(spec, replace(at, length=tokens) if ENDS & set(spec.split("+")) else at)


@cache
def expected(spec: str, case: str) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The reference's results in float64, and the largest errors to allow in float32: once for all engines."""
    encoding, reference = make_for(spec, CASES[case][0][2]), ENGINES["reference"]
    exact = run(reference, encoding, CASES[case], torch.float64)
    moved = [run(reference, encoding, CASES[case], torch.float64, off) for off in (1, 2)]
    return exact, tolerances(exact, moved, HEAD_WIDTH, CASES[case][0][2])


@pytest.mark.parametrize(
    ("spec", "engine", "case"),
    [
        pytest.param(
            spec, engine, case, id=f"{spec}-{engine.name}-{case}", marks=[] if spec in NARROW else [pytest.mark.wide]
        )
        for spec in SPECS
        for engine in engines_for(make(spec))
        if engine.name != "reference"
        for case in (BEYOND_VERIFY if spec in names() else CASES)
    ],
)
def test_engines_equal_the_reference(spec: str, engine: Engine, case: str) -> None:
    encoding = make_for(spec, CASES[case][0][2])
    exact, limits = expected(spec, case)
    for dtype, roundings in ((torch.float32, 1), (torch.float64, 2)):  # in float64 the reference rounds as well
        if engine.refuses(encoding, Place(dtype=dtype)):
            assert (engine.name, dtype) == ("native", torch.float64)
            continue
        for name, found in run(engine, encoding, CASES[case], dtype).items():
            error = float((found - exact[name]).abs().max())
            assert error <= roundings * limits[name] * torch.finfo(dtype).eps / UNIT, (name, dtype)


def tiled(queries: int, keys: int, multiple: int) -> BlockSizes:
    return BlockSizes(tile_queries=queries, tile_keys=keys, skip_multiple=multiple, weighted_queries=5)


TILINGS: dict[str, Case] = {
    "one tile": ((2, 41, 41), BlockSizes()),
    "several tiles": ((2, 41, 41), tiled(8, 8, 4)),
    "more queries than keys": ((1, 41, 41), tiled(16, 4, 1)),
    "a longer past": ((2, 20, 41), tiled(16, 4, 2)),
    "one token": ((2, 1, 41), tiled(16, 4, 2)),
    "the first token": ((1, 1, 1), tiled(16, 4, 2)),
}
EVALUATION = Place(gradient=False)


@pytest.mark.parametrize("case", TILINGS.values(), ids=TILINGS.keys())
@pytest.mark.parametrize(
    "spec", wide(s for s in (*SPECS, *TILED) if ENGINES["tiles"] in engines_for(make(s), EVALUATION))
)
@torch.no_grad()
def test_tiles_equal_the_reference(spec: str, case: Case) -> None:
    encoding, reference = make_for(spec, case[0][2]), ENGINES["reference"]
    exact = output(reference, encoding, case, torch.float64)
    moved = [{"output": output(reference, encoding, case, torch.float64, off)} for off in (1, 2)]
    limit = tolerances({"output": exact}, moved, HEAD_WIDTH, case[0][2])["output"]
    for dtype, roundings in ((torch.float32, 1), (torch.float64, 2)):  # in float64 the reference rounds as well
        error = float((output(ENGINES["tiles"], encoding, case, dtype) - exact).abs().max())
        # Scores 104 below the largest are skipped; their weight is 0 in float32 and up to e^-104 in float64.
        assert error <= max(roundings * limit * torch.finfo(dtype).eps / UNIT, 1e-44), dtype


def output(engine: Engine, encoding: Encoding, case: Case, dtype: torch.dtype, off: int | None = None) -> Tensor:
    """Attention output on random input, in float64; `off` as in `run`."""
    encoding, inputs, x_BSW = given(encoding, case[0], dtype, off)
    features = encoding.features(x_BSW)
    at = encoding.locate(case[0][2], torch.device("cpu"))
    out = attend(engine, encoding, *inputs.values(), at, features, case[1])
    assert out.dtype == dtype
    return out.double()


@torch.no_grad()
def test_tiles_skip_keys_without_weight() -> None:
    """The steepest slope of ALiBi leaves the first tokens no weight after a few hundred; the gentlest one does."""
    case: Case = ((1, 2048, 2048), BlockSizes())
    encoding, inputs, _ = given(make("alibi"), case[0], torch.float32, None)
    x = operands(encoding, *inputs.values(), encoding.locate(2048, torch.device("cpu")))
    first_keys = ScoreBounds.of(TileInputs.of(encoding, x)).first_keys(slice(1024, 2048), case[1].skip_multiple)
    assert first_keys[0][0] == 0
    assert first_keys[-1][0] >= 256
    assert sorted(head for _, heads in first_keys for head in heads) == list(range(HEADS))
    exact, found = (output(ENGINES[name], encoding, case, torch.float32) for name in ("reference", "tiles"))
    # Both outputs round weights that sum to 1 and scores of the order of 10.
    assert float((found - exact).abs().max()) <= 64 * UNIT * float(exact.abs().max())


@pytest.mark.parametrize("queries", [1, 6, 11])
@pytest.mark.parametrize("spec", SPECS)
def test_the_reference_is_the_equation(spec: str, queries: int) -> None:
    encoding, keys = make(spec, dtype=torch.float64), 11
    q, k, v = (draw(2, HEADS, t, HEAD_WIDTH, seed=n, dtype=torch.float64) for n, t in enumerate((queries, keys, keys)))
    x_BSW = draw(2, keys, WIDTH, seed=3, dtype=torch.float64)
    features = encoding.features(x_BSW)
    positions = encoding.locate(keys, torch.device("cpu"))
    found = attend(ENGINES["reference"], encoding, q, k, v, positions, features)
    expected = by_hand(encoding, q, k, v, positions, features)
    # Sums of D and of S terms of order 1: one unit of rounding per term, and as much again for the softmax.
    torch.testing.assert_close(found, expected, rtol=0, atol=2 * (keys + HEAD_WIDTH) * 2**-52 * float(v.abs().max()))


def by_hand(encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, at: Positions, features: Tensor | None) -> Tensor:
    """The equation of poscli/equation/blanks.py, query by query, over tensors that hold the visible past only."""
    has, queries, keys = encoding.blanks, q.shape[2], k.shape[2]
    pos_T, pos = at.pos[keys - queries :], at.of_keys
    rotated, values = encoding.query(encoding.content_query(q), pos_T), encoding.value(v, pos)
    rotated_k, relative_q = encoding.key(k, pos), encoding.relative_query(q) if "relative_keys" in has else q
    rows = []
    for t in range(queries):
        seen = keys - queries + t + 1
        d, i = snapped(pos_T[t] - pos[:seen]), slice(t, t + 1)
        s = torch.einsum("bhtd,bhjd->bhtj", rotated[:, :, i], rotated_k[:, :, :seen])
        if "relative_keys" in has:
            s = s + torch.einsum("bhtd,hjd->bhtj", relative_q[:, :, i], _per_head(encoding.relative_keys(d)))
        if "relative_queries" in has:
            s = s + torch.einsum("bhjd,hjd->bhj", k[:, :, :seen], _per_head(encoding.relative_queries(d)))[:, :, None]
        x = at_query(rotated[:, :, i], rotated_k[:, :, :seen], q[:, :, i], k[:, :, :seen], pos[:seen], features)
        if "similarity" in has:
            s = encoding.similarity(x) + s - torch.einsum("bhtd,bhjd->bhtj", x.q_BHTD, x.k_BHSD)
        s = s * encoding.scale
        if "distance_bias" in has:
            s = s + encoding.distance_bias(d)[None, :, None]
        if "potential" in has:
            assert features is not None
            c = encoding.potential(features)[..., :seen]
            s = s + (c[..., -1:] - c)[:, :, None]
        if "bias" in has:
            f_j = None if features is None else features[:, :, :seen]
            s = s + encoding.bias(pos_T[i], pos[:seen], None if f_j is None else f_j[:, :, -1:], f_j)
        if "temperature" in has:
            visible = torch.tensor([min(seen, (encoding.reach or seen) + encoding.sinks)])
            s = s * encoding.temperature(visible)[..., None]
        if encoding.reach is not None:
            s[..., encoding.sinks : max(encoding.sinks, seen - encoding.reach)] = -math.inf
        if "scores" in has:
            s = encoding.scores(s, x).masked_fill(s == -math.inf, -math.inf)
        p = encoding.weights(s)
        if "reweight" in has:
            p = encoding.reweight(p, d[None])
        o = torch.einsum("bhtj,bhje->bhte", p, values[:, :, :seen])
        if "relative_values" in has:
            o = o + torch.einsum("bhtj,hje->bhte", p, _per_head(encoding.relative_values(d)))
        rows.append(o)
    return encoding.output(torch.cat(rows, dim=2), pos_T)


def at_query(q: Tensor, k: Tensor, raw_q: Tensor, raw_k: Tensor, pos: Tensor, features: Tensor | None) -> Operands:
    """The operands of one query, for the blanks that take operands."""
    f = None if features is None else features[:, :, : len(pos)]
    shared = {"raw_q_BHTD": raw_q, "raw_k_BHSD": raw_k, "pos_S": pos, "features_BHSF": f}
    return Operands(q_BHTD=q, k_BHSD=k, v_BHSE=raw_k, step=None, **shared)


def _per_head(x_HND: Tensor) -> Tensor:
    return x_HND.expand(HEADS, -1, -1)


@pytest.mark.parametrize("blank", ["scores", "weights"])
def test_keys_beyond_a_window_stay_hidden(blank: str) -> None:
    """Keys beyond a window have no weight, even where an encoding replaces scores or softmax."""
    encoding = make({"scores": "toys:Capped", "weights": "toys:Gated"}[blank] + "+window(3)")
    q, k, v = (draw(1, HEADS, 20, HEAD_WIDTH, seed=n) for n in range(3))
    for engine in (ENGINES["reference"], choose(encoding).engine):
        positions = encoding.locate(20, torch.device("cpu"))
        v_far = torch.cat([v[:, :, :17] + 100, v[:, :, 17:]], dim=2)
        before, after = (attend(engine, encoding, q, k, x, positions)[:, :, -1] for x in (v, v_far))
        assert torch.equal(before, after)  # one computation, in which the changed values have the weight 0


def test_terms_of_the_scores_are_added() -> None:
    """The scores of `a+b` are q . k, plus the terms of a, plus the terms of b."""
    q, k, v = (draw(1, HEADS, 9, HEAD_WIDTH, seed=n, dtype=torch.float64) for n in range(3))
    parts = ["toys:Untied", "shaw(clip=4, values=false)", "alibi"]
    assert_scores_add_up(parts, q, k, v)


def test_every_relative_query_meets_its_own_keys() -> None:
    """Two encodings with relative vectors, each with a relative query of its own as in Transformer-XL."""
    q, k, v = (draw(1, HEADS, 9, HEAD_WIDTH, seed=n, dtype=torch.float64) for n in range(3))
    assert_scores_add_up(["toys:Untied", "toys:Untied"], q, k, v)


def assert_scores_add_up(parts: list[str], q: Tensor, k: Tensor, v: Tensor) -> None:
    def of(encoding: Encoding) -> Tensor:
        pos = torch.arange(q.shape[2])
        x = Operands(q_BHTD=q, k_BHSD=k, v_BHSE=v, raw_q_BHTD=q, raw_k_BHSD=k, pos_S=pos, step=1)
        return scores(encoding, x).nan_to_num(neginf=0)

    alone = [perturbed(make(part, dtype=torch.float64), seed=n) for n, part in enumerate(parts)]
    content = of(make("none", dtype=torch.float64))
    expected = content + sum(of(encoding) - content for encoding in alone)
    # Sums of a few dozen numbers of order 1.
    torch.testing.assert_close(of(Composed(alone)), expected, rtol=0, atol=64 * 2**-52)


# sinks


def test_sinks_stay_visible_beyond_the_reach() -> None:
    """With sinks 2 and reach 5, query 9 sees the tokens 0, 1 and 5 to 9, also within a block."""
    q, k, v = (draw(1, HEADS, t, HEAD_WIDTH, seed=n) for n, t in enumerate((4, 10, 10)))
    encoding = make("sink(2)+window(5)")
    x = operands(encoding, q, k, v, encoding.locate(10, torch.device("cpu")))
    assert x.visible()[-1].nonzero().flatten().tolist() == [0, 1, 5, 6, 7, 8, 9]
    assert torch.equal(x.block(1, 3).visible(), x.visible()[1:3, :9])


def test_a_temperature_counts_the_sinks() -> None:
    """`temperature` is given the number of visible tokens: all up to reach + sinks."""
    q, k, v = (draw(1, HEADS, 12, HEAD_WIDTH, seed=n) for n in range(3))
    encoding = make("sink(2)+window(5)+toys:Sharper")
    x = operands(encoding, q, k, v, encoding.locate(12, torch.device("cpu")))
    expected = encoding.temperature(x.visible().sum(-1))
    assert x.temperature_HT is not None
    assert torch.equal(x.temperature_HT, expected)
