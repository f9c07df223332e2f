"""Joins `a+b` equal an oracle in float64, for every two blanks that can meet on one layer; so do whole models."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable

import pytest
import torch
from oracles import Content
from oracles.layer import attention_of, embedded, parts_of
from oracles.measure import with_gradients
from oracles.model import logits
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make, model, perturbed, rounding, tokens

from poscli.attention import ENGINES, BlockSizes, Place, attend, engines_for
from poscli.encodings import Encoding, names
from poscli.equation.composed import scale_of
from poscli.model.cache import Cache

MODEL = {"mix"}  # acts before the projections, so that only whole models show how it meets others
Meeting = frozenset[str]  # two blanks, or one blank that both encodings fill

# Encodings that fill every blank, most blanks twice, so that two different ones can meet in a blank.
REPRESENTATIVES = [
    "interpolated(3)", "randomized(40)", "sinusoidal", "learned", "transformer-xl", "xlnet", "rope",
    "tupe(table=sinusoidal)", "pope", "grape", "fox", "cable", "grape-additive", "fire", "query-bias", "path",
    "rerope(window=5)", "ssmax", "logn(5)", "alibi", "t5(buckets=6, far=11)", "window(5)", "window(8)",
    "sink(2)+window(7)", "sink(3)+window(6)", "shaw(clip=4)", "shaw(clip=7)", "deberta(span=5)", "deberta(span=7)",
    "cope(max_pos=5)", "cope(max_pos=9)", "dape", "stick-breaking", "urpe", "urpe(base=none)", "selective-rope",
    "sink-logit", "sink-logit(start=2)",
]  # fmt: skip
# Joins in which the order matters, or in which three encodings meet.
MORE = [
    "cope(max_pos=5)+dape", "dape+cope(max_pos=5)", "rope+pope", "pope+rope", "pope+grape",
    "tupe(table=sinusoidal)+pope", "rope+tupe(table=sinusoidal)", "sinusoidal(combine=multiply)+learned",
    "learned+sinusoidal(combine=multiply)", "alibi+interpolated(3)", "interpolated(3)+rope+fire", "dape+ssmax",
    "ssmax+dape(base=fox)+cable", "dape(base=fire)+logn(5)+shaw(clip=4)", "dape(base=cable)+path",
    "rope+cope(max_pos=5)", "rope+fox+ssmax", "fox+ssmax+window(5)", "sink(2)+window(5)+dape+ssmax",
    "sink(2)+window(5)+cope(max_pos=5)+alibi", "stick-breaking+alibi+window(5)", "stick-breaking+query-bias+ssmax",
    "fox+grape-additive+path", "urpe(base=t5)+fox", "rope+alibi+fire+shaw(clip=4)+fox",
    "transformer-xl+deberta(span=5)+shaw(clip=4)+ssmax", "rope+temper(c=0.7, length=5)+fox+ssmax",
    "rope+selective-rope", "repo+pope", "selective-rope+fox+window(5)",
    "fox+ssmax+sink-logit+window(5)", "fox+shaw(clip=4)+sink-logit+sink-logit(start=2)",
    "finite-span(span=5, rank=4)+fox+shaw(clip=4)", "transformer-xl+cable+finite-span(span=3, alpha=1)",
]  # fmt: skip


def meetings(a: Encoding, b: Encoding) -> set[Meeting]:
    """The pairs of blanks that meet where two encodings act together; empty if they cannot."""
    try:
        scale_of([a, b])
    except ValueError:
        return set()
    return {frozenset((x, y)) for x in a.blanks - MODEL for y in b.blanks - MODEL}


def union(sets: Iterable[set[Meeting]]) -> set[Meeting]:
    return set().union(*sets)


def representative_pairs() -> dict[str, set[Meeting]]:
    """Pairs of representatives, one after the other the pair with the most meetings that no earlier pair has."""
    alone = [(spec, make(spec)) for spec in REPRESENTATIVES]
    pairs = {f"{a}+{b}": meetings(of_a, of_b) for (a, of_a), (b, of_b) in itertools.combinations(alone, 2)}
    left, chosen = union(pairs.values()), {}
    while left:
        spec = max(pairs, key=lambda pair: len(pairs[pair] & left))
        chosen[spec] = pairs[spec]
        left -= pairs[spec]
    return chosen


PAIRS = representative_pairs()


def test_every_two_blanks_that_can_meet_meet_in_a_pair() -> None:
    """A new blank needs an encoding among the representatives and a part in tests/oracles."""
    alone, again = ([make(name) for name in names()] for _ in "ab")
    assert union(meetings(a, b) for a, b in itertools.product(alone, again)) <= union(PAIRS.values())
    assert {blank for meeting in union(PAIRS.values()) for blank in meeting} >= union(e.blanks - MODEL for e in alone)


TOKENS = 13
# Every kind of block is smaller than the text.
SMALL = BlockSizes(
    block_queries=5, training_queries=4, backward_queries=5, backward_entries=1,
    tile_queries=5, tile_keys=4, skip_multiple=2, weighted_queries=3,
)  # fmt: skip
ROUNDING = 2**-40  # of sums of a few hundred numbers of order 1 in float64; a wrong formula is off by far more


def drawn() -> Content:
    q, k, v = (draw(2, HEADS, TOKENS, HEAD_WIDTH, seed=n, dtype=torch.float64).requires_grad_() for n in range(3))
    x = draw(2, TOKENS, WIDTH, seed=3, dtype=torch.float64).requires_grad_()
    return Content(q, k, v, x, tokens(2, TOKENS), torch.arange(TOKENS, dtype=torch.float64))


def assert_equal(found: dict[str, Tensor], exact: dict[str, Tensor], what: str) -> None:
    for name, value in found.items():
        error = float((value - exact[name]).abs().max())
        assert error <= ROUNDING * max(1.0, float(exact[name].abs().max())), (what, name, error)


@pytest.mark.parametrize("spec", [*PAIRS, *MORE])
def test_every_engine_equals_the_oracle_of_a_join(spec: str) -> None:
    encoding = make(spec, dtype=torch.float64)
    at, exact = encoding.locate(TOKENS, torch.device("cpu")), drawn()
    if "embed" in encoding.blanks:
        found = encoding.embed(exact.x, at.pos, exact.ids).detach()
        assert_equal({"embed": found}, {"embed": embedded(parts_of(encoding), exact).detach()}, spec)
    expected = with_gradients(attention_of(parts_of(encoding), exact), encoding, exact)
    for engine in engines_for(encoding, Place(dtype=torch.float64, gradient=False)):
        if engine.name == "flex":  # takes few joins; test_hard_input.py has it
            continue
        own, c = copy.deepcopy(encoding).requires_grad_(), drawn()
        own.zero_grad()
        if engine.gradient:
            features = own.features(c.x)
            out = attend(engine, own, c.q, c.k, c.v, at, features, SMALL)
            assert_equal(with_gradients(out, own, c), expected, engine.name)
        with torch.no_grad():
            features = own.features(c.x)
            for queries in (TOKENS, 6, 1):
                out = attend(engine, own, c.q[:, :, -queries:], c.k, c.v, at, features, SMALL)
                last = expected["result"][:, :, -queries:]
                assert_equal({"result": out}, {"result": last}, f"{engine.name} without gradient, {queries} queries")


@torch.no_grad()
def test_values_and_outputs_may_depend_on_positions() -> None:
    """No encoding of the registry does so."""
    carried, plain, c = make("toys:Carried"), make("none"), drawn()
    at, pos = plain.locate(TOKENS, torch.device("cpu")), c.pos[:, None]
    found = attend(ENGINES["reference"], carried, c.q, c.k, c.v, at, None)
    exact = attend(ENGINES["reference"], plain, c.q, c.k, c.v * (1 + pos / 8), at, None) / (2 + pos / 4)
    assert_equal({"result": found}, {"result": exact}, "toys:Carried")


@pytest.mark.parametrize(
    "spec",
    [
        "rope+alibi|none", "cope(max_pos=5)|fire+fox", "shaw(clip=4)+window(5)|transformer-xl|dape+ssmax",
        "sinusoidal+alibi+ssmax", "learned+sinusoidal(combine=multiply)+interpolated(3)+rope",
        "sink(2)+window(5)+t5+path", "urpe(base=t5)+fox+logn(5)", "selective-rope+smear",
        "smear+smear(tokens=2)|smear+none", "carope+smear+fox|rope+window(5)|smear(tokens=7)+repo",
    ],
)  # fmt: skip
@torch.no_grad()
def test_a_model_equals_its_oracle(spec: str) -> None:
    """Decoding in parts, too."""
    trained, text = perturbed(model(spec, layers=3)), tokens(2, LENGTH)
    exact, limit, cache = logits(trained, text), rounding(trained, text), Cache()
    with torch.enable_grad():
        differentiable = trained(text).detach()
    decoded = torch.cat([trained(part, cache=cache) for part in text.split([5, 1, 7, 3], dim=1)], dim=1)
    for found in (trained(text), differentiable, decoded):
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=limit)
