"""Content-dependent encodings beyond their oracles: long inputs, extreme scores, and the bases of dape."""

from __future__ import annotations

import math

import pytest
import torch
from oracles import Content
from torch import Tensor
from torch.nn.functional import logsigmoid
from toys import HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make, shape, tokens

from poscli.attention import ENGINES, BlockSizes, attend
from poscli.encodings import Encoding
from poscli.encodings.path import reflect_all
from poscli.equation import Positions
from poscli.specs import build, parse

# Float64: gradients are sums of up to 120 terms of the order of 10.
EXACT = 1e3 * 2**-52


def content(count: int) -> Content:
    q, k, v = (draw(2, HEADS, count, HEAD_WIDTH, seed=n, dtype=torch.float64).requires_grad_() for n in range(3))
    x = draw(2, count, WIDTH, seed=3, dtype=torch.float64)
    return Content(q, k, v, x, tokens(2, count), torch.arange(count, dtype=torch.float64))


def double(spec: str) -> Encoding:
    return make(spec, dtype=torch.float64)


def out(encoding: Encoding, c: Content, engine: str = "reference", sizes: BlockSizes | None = None) -> Tensor:
    features = encoding.features(c.x)
    at = Positions(pos=c.pos.long())
    return attend(ENGINES[engine], encoding, c.q, c.k, c.v, at, features, sizes or BlockSizes())


def with_gradients(result: Tensor, encoding: Encoding, c: Content) -> list[Tensor]:
    inputs = [c.q, c.k, c.v, *encoding.parameters()]
    loss = (result * draw(*result.shape, seed=4, dtype=result.dtype)).sum()
    return [result, *torch.autograd.grad(loss, inputs, materialize_grads=True)]


def assert_same(one: list[Tensor], other: list[Tensor], atol: float = EXACT) -> None:
    for x, y in zip(one, other, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol)


# forget gates


def test_cable_can_start_as_fox_does() -> None:
    fox, cable = (build(parse(spec), shape(), seed=0)[0].double() for spec in ("fox", "cable(start=-5)"))
    c = content(40)
    torch.testing.assert_close(out(cable, c), out(fox, c), rtol=0, atol=EXACT)


@pytest.mark.parametrize("start", [0, 5])
def test_potentials_of_a_long_text_keep_float32_precision(start: int) -> None:
    """Differences of potentials are exact to float32; those of float32 sums are ten times worse, or more."""
    count, rows = 16384, 64
    log_f = logsigmoid(start + draw(1, HEADS, count, 1))
    c = make("fox").potential(log_f)
    found = (c[..., -rows:, None] - c[..., None, :]).float()
    from_the_end = log_f.double().squeeze(-1).flip(-1).cumsum(-1).flip(-1)
    later = from_the_end - log_f.squeeze(-1)
    past = slice(0, count - rows)
    exact = later[..., None, past] - later[..., -rows:, None]
    error = (found[..., past] - exact).abs()
    assert (error <= 2**-24 * exact.abs() + count * 2**-52 * exact.abs().max()).all()
    single = log_f.squeeze(-1).cumsum(-1)
    rough = (single[..., -rows:, None] - single[..., None, past] - exact).abs()
    seen = exact > -20  # smaller differences have almost no weight in a softmax
    assert rough[seen].max() > 10 * error[seen].max()


# stick-breaking


@pytest.mark.parametrize("size", [1, 30, 1e4])
@pytest.mark.parametrize("spec", ["stick-breaking", "stick-breaking(current=false)", "stick-breaking+window(3)"])
def test_weights_of_stick_breaking_sum_to_at_most_one(spec: str, size: float) -> None:
    """For scores of any size, rows sum to at most 1, hidden keys have no weight, and gradients are finite."""
    encoding, reach = make(spec), make(spec).reach or 9
    current = "current" not in spec
    s = (size * draw(2, HEADS, 9, 9)).requires_grad_()
    apart = torch.arange(9)[:, None] - torch.arange(9)
    hidden = (apart < 0) | (apart >= reach)
    p = encoding.weights(s.masked_fill(hidden, -math.inf))
    assert (p >= 0).all()
    # Nine weights, each exp of a difference of numbers as large as the scores.
    assert p.sum(-1).max() <= 1 + (9 + float(s.detach().abs().max())) * 2**-23
    assert not p[..., hidden | (apart < (0 if current else 1))].any()
    (p * draw(*p.shape, seed=1)).sum().backward()
    assert s.grad is not None
    assert s.grad.isfinite().all()


def test_the_rest_of_a_stick_is_the_product_of_refusals() -> None:
    s = draw(2, HEADS, 1, 9, dtype=torch.float64)
    left = (1 - torch.sigmoid(s)).prod(-1)
    torch.testing.assert_close(1 - make("stick-breaking").weights(s).sum(-1), left, rtol=0, atol=EXACT)


def test_without_the_current_token_the_first_query_has_output_zero() -> None:
    encoding, c = double("stick-breaking(current=false)"), content(9)
    everything = with_gradients(out(encoding, c), encoding, c)
    assert not everything[0][:, :, 0].any()
    assert all(x.isfinite().all() for x in everything)


# PaTH


def test_a_path_of_reflections_keeps_lengths() -> None:
    """With beta = 2 every H_t is orthogonal, so 2000 of them preserve the norm of a query."""
    count = 2000
    w = torch.nn.functional.normalize(draw(1, 1, count, HEAD_WIDTH), dim=-1)
    q, k = draw(1, 1, 1, HEAD_WIDTH, seed=1), torch.zeros(1, 1, count, HEAD_WIDTH)
    beta = torch.full((1, 1, count, 1), 2.0)
    walked = []
    for axis in range(HEAD_WIDTH):  # the channels of the query after all reflections
        k[:, :, 0] = torch.eye(HEAD_WIDTH)[axis]
        walked.append(q[0, 0, 0] @ reflect_all(k, w, beta, tokens_per_chunk=64)[0, 0, 0])
    # One unit of rounding of float32 for each reflection.
    assert torch.stack(walked).norm() == pytest.approx(float(q.norm()), rel=count * 2**-23)


# CoPE


def test_far_keys_of_cope_equal_the_reference() -> None:
    """Late blocks, in which every query has keys at the last position, equal the reference over all queries."""
    encoding, c = double("cope(max_pos=5)"), content(120)
    whole = with_gradients(out(encoding, c), encoding, c)
    assert_same(with_gradients(out(encoding, c, "blocks", BlockSizes(block_queries=8)), encoding, c), whole)


# DAPE


def test_a_shared_base_of_dape_is_one_for_all_layers() -> None:
    first, second = build(parse("dape(base=t5)"), shape(), seed=0)
    assert first.parts[0] is second.parts[0]
    assert first.inner is not second.inner
    first, second = build(parse("dape"), shape(), seed=0)
    assert first.parts[0] is not second.parts[0]


def test_dape_sees_the_scores_of_the_whole_layer() -> None:
    """Composed with rope, the network of dape sees the scores of rotated queries and keys."""
    c = content(LENGTH)
    dape, joined = double("dape"), double("dape+rope")
    joined.load_state_dict({f"parts.0.{name}": x for name, x in dape.state_dict().items()})
    rope = double("rope")
    turned = Content(rope.query(c.q, c.pos), rope.key(c.k, c.pos), c.v, c.x, c.ids, c.pos)
    torch.testing.assert_close(out(joined, c), out(dape, turned), rtol=0, atol=EXACT)
