"""Content-dependent encodings beyond their oracles: long inputs, extreme scores, and what each is equal to."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from conftest import HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make, shape, tokens
from oracles import Content, attention
from oracles.content import path as by_products
from torch import Tensor
from torch.nn.functional import logsigmoid

from poscli.attention import ENGINES, Positions, attend, biases
from poscli.encodings import Encoding
from poscli.encodings.path import approached
from poscli.errors import UsageError
from poscli.spec import build, parse

EXACT = 1e3 * 2**-52


def content(count: int) -> Content:
    q, k, v = (draw(2, HEADS, count, HEAD_WIDTH, seed=n, dtype=torch.float64).requires_grad_() for n in range(3))
    x = draw(2, count, WIDTH, seed=3, dtype=torch.float64)
    return Content(q, k, v, x, tokens(2, count), torch.arange(count, dtype=torch.float64))


def double(spec: str) -> Encoding:
    return make(spec, dtype=torch.float64)


def out(encoding: Encoding, c: Content, engine: str = "reference") -> Tensor:
    features = encoding.features(c.x) if "features" in encoding.blanks else None
    return attend(ENGINES[engine], encoding, c.q, c.k, c.v, Positions(pos=c.pos.long()), features)


def with_gradients(result: Tensor, encoding: Encoding, c: Content) -> list[Tensor]:
    inputs = [c.q, c.k, c.v, *encoding.parameters()]
    loss = (result * draw(*result.shape, seed=4, dtype=result.dtype)).sum()
    return [result, *torch.autograd.grad(loss, inputs, materialize_grads=True)]


def assert_same(one: list[Tensor], other: list[Tensor], atol: float = EXACT) -> None:
    for x, y in zip(one, other, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol)


# forget gates


def test_cable_is_fox_with_the_signs_flipped() -> None:
    cable, fox, c = double("cable"), double("fox"), content(40)
    with torch.no_grad():
        fox.w.copy_(-cable.w)
        fox.b.copy_(-cable.b)
    torch.testing.assert_close(out(cable, c), out(fox, c), rtol=0, atol=EXACT)


def test_cable_can_start_as_fox_does() -> None:
    fox, cable = (build(parse(spec), shape(), seed=0)[0].double() for spec in ("fox", "cable(start=-5)"))
    c = content(40)
    torch.testing.assert_close(out(cable, c), out(fox, c), rtol=0, atol=EXACT)


def test_a_gate_that_sees_nothing_is_alibi() -> None:
    fox, alibi, c = double("fox"), double("alibi(trainable=true)"), content(40)
    with torch.no_grad():
        fox.w.zero_()
        alibi.slope.copy_(torch.log1p(torch.exp(-fox.b)))
    torch.testing.assert_close(out(fox, c), out(alibi, c), rtol=0, atol=EXACT)


@pytest.mark.parametrize("start", [0, 5])
def test_gates_of_a_long_text_add_up(start: int) -> None:
    """To what float32 can hold of the result; differences of float32 sums are ten times further off, and more."""
    count, rows = 16384, 64
    log_f = logsigmoid(start + draw(1, HEADS, count, 1))
    c = make("fox").potential(log_f)
    found = (c[..., -rows:, None] - c[..., None, :]).float()
    later = log_f.double().squeeze(-1).flip(-1).cumsum(-1).flip(-1) - log_f.squeeze(-1)  # summed from the other end
    past = slice(0, count - rows)
    exact = later[..., None, past] - later[..., -rows:, None]
    error = (found[..., past] - exact).abs()
    assert (error <= 2**-24 * exact.abs() + count * 2**-52 * exact.abs().max()).all()
    single = log_f.squeeze(-1).cumsum(-1)
    rough = (single[..., -rows:, None] - single[..., None, past] - exact).abs()
    seen = exact > -20  # what a softmax tells from nothing
    assert rough[seen].max() > 10 * error[seen].max()


# stick-breaking


@pytest.mark.parametrize("size", [1, 30, 1e4])
@pytest.mark.parametrize("spec", ["stick-breaking", "stick-breaking(current=false)", "stick-breaking+window(3)"])
def test_a_stick_is_never_overdrawn(spec: str, size: float) -> None:
    """Rows sum to at most 1, what is hidden gets nothing, and gradients stay finite, for scores of any size."""
    encoding, reach = make(spec), make(spec).reach or 9
    current = "current" not in spec
    s = (size * draw(2, HEADS, 9, 9)).requires_grad_()
    apart = torch.arange(9)[:, None] - torch.arange(9)
    hidden = (apart < 0) | (apart >= reach)
    p = encoding.weights(s.masked_fill(hidden, -math.inf))
    assert (p >= 0).all()
    # nine weights, and exponents that are differences of numbers as large as the scores
    assert p.sum(-1).max() <= 1 + (9 + float(s.detach().abs().max())) * 2**-23
    assert not p[..., hidden | (apart < (0 if current else 1))].any()
    (p * draw(*p.shape, seed=1)).sum().backward()
    assert s.grad is not None
    assert s.grad.isfinite().all()


def test_what_is_left_of_a_stick() -> None:
    s = draw(2, HEADS, 1, 9, dtype=torch.float64)
    left = (1 - torch.sigmoid(s)).prod(-1)
    torch.testing.assert_close(1 - make("stick-breaking").weights(s).sum(-1), left, rtol=0, atol=EXACT)


def test_without_the_current_token_the_first_gets_nothing() -> None:
    encoding, c = double("stick-breaking(current=false)"), content(9)
    everything = with_gradients(out(encoding, c), encoding, c)
    assert not everything[0][:, :, 0].any()
    assert all(x.isfinite().all() for x in everything)


# PaTH


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
@pytest.mark.parametrize("engine", ["reference", "blocks"])
def test_queries_walk_through_many_chunks(engine: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("poscli.encodings.path"), "CHUNK", chunk)
    monkeypatch.setattr(biases, "BLOCK", 7)
    encoding, c = double("path"), content(41)
    expected = with_gradients(attention(by_products(encoding, c), c), encoding, c)
    assert_same(with_gradients(out(encoding, c, engine), encoding, c), expected)


def test_a_path_of_reflections_keeps_lengths() -> None:
    """With beta = 2 every H_t is orthogonal: 2000 of them in float32 leave a query as long as it was."""
    count = 2000
    w = torch.nn.functional.normalize(draw(1, 1, count, HEAD_WIDTH), dim=-1)
    q, k = draw(1, 1, 1, HEAD_WIDTH, seed=1), torch.zeros(1, 1, count, HEAD_WIDTH)
    beta = torch.full((1, 1, count, 1), 2.0)
    walked = []
    for axis in range(HEAD_WIDTH):  # the query, as the first key met it
        k[:, :, 0] = torch.eye(HEAD_WIDTH)[axis]
        walked.append(q[0, 0, 0] @ approached(k, w, beta)[0, 0, 0])
    assert torch.stack(walked).norm() == pytest.approx(float(q.norm()), rel=1e-5)


def test_a_path_that_reflects_nothing_is_none() -> None:
    encoding, c = double("path"), content(41)
    with torch.no_grad():
        encoding.u.zero_()
        encoding.b.fill_(-1000)
    torch.testing.assert_close(out(encoding, c), out(double("none"), c), rtol=0, atol=EXACT)


# CoPE


def test_far_keys_of_cope_are_no_special_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of queries that all see a key at the last position, beside the reference, where some queries see none."""
    monkeypatch.setattr(biases, "BLOCK", 8)
    encoding, c = double("cope(max_pos=5)"), content(120)
    whole = with_gradients(out(encoding, c), encoding, c)
    assert_same(with_gradients(out(encoding, c, "blocks"), encoding, c), whole)


# DAPE


@pytest.mark.parametrize("base", ["kerple-log", "t5", "fire", "fox"])
def test_dape_without_its_network_is_its_base(base: str) -> None:
    dape, alone, c = double(f"dape(base={base})"), double(base), content(40)
    alone.load_state_dict(dape.parts[0].state_dict())
    with torch.no_grad():
        dape.outer.weight.zero_()
    torch.testing.assert_close(out(dape, c), out(alone, c), rtol=0, atol=EXACT)


@pytest.mark.parametrize("base", ["rope", "none", "window", "cope", "dape"])
def test_dape_needs_a_bias(base: str) -> None:
    with pytest.raises(UsageError, match=f"base must be an encoding that adds a bias to the scores, got {base}"):
        make(f"dape(base={base})")


def test_dape_names_the_near_base() -> None:
    with pytest.raises(UsageError, match=r"dape\(base=alibo\): base: there is no encoding 'alibo': did you mean alibi"):
        make("dape(base=alibo)")


def test_a_shared_base_of_dape_is_one_for_all_layers() -> None:
    first, second = build(parse("dape(base=t5)"), shape(), seed=0)
    assert first.parts[0] is second.parts[0]
    assert first.inner is not second.inner
    first, second = build(parse("dape"), shape(), seed=0)
    assert first.parts[0] is not second.parts[0]


def test_dape_sees_scores_as_the_layer_has_them() -> None:
    """Joined with rope, the content is what rope makes of q and k; with a window, what that hides stays hidden."""
    c = content(LENGTH)
    dape, joined = double("dape"), double("dape+rope")
    joined.load_state_dict({f"parts.0.{name}": x for name, x in dape.state_dict().items()})
    rope = double("rope")
    turned = Content(rope.query(c.q, c.pos), rope.key(c.k, c.pos), c.v, c.x, c.ids, c.pos)
    torch.testing.assert_close(out(joined, c), out(dape, turned), rtol=0, atol=EXACT)
