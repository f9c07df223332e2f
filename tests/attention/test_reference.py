"""The reference against the equation of poscli/equation/blanks.py, by hand, and what the operands of a call say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from toys import COMPOSITES, HEAD_WIDTH, HEADS, TOYS, WIDTH, draw, make, perturbed

from poscli.attention import ENGINES, attend, choose
from poscli.encodings import Encoding, names
from poscli.equation.composed import Composed
from poscli.equation.operands import Operands, Positions, snapped
from poscli.equation.reference import operands, scores

SPECS = [*names(), *COMPOSITES, *TOYS]


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
