"""Properties of encodings that neither their oracles show nor `verify` checks; test_verify.py verifies all of them."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from oracles import libraries as lib
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils._python_dispatch import TorchDispatchMode
from toys import HEAD_WIDTH, HEADS, LENGTH, WIDTH, draw, make, model, shape

from poscli.attention import ENGINES, Place, attend, engines_for
from poscli.encodings import Encoding, Shape, get, names
from poscli.encodings.alibi import slopes
from poscli.encodings.fire import FIRE
from poscli.encodings.learned import noise
from poscli.encodings.path import reflect_all
from poscli.encodings.rope_linear import RoPELinear
from poscli.encodings.t5 import bucket
from poscli.equation import Positions, Unsupported
from poscli.equation.reference import operands
from poscli.specs import build, check, parse
from poscli.system.errors import UsageError

# Every encoding

FAR = 16 * LENGTH


def test_a_mixin_fills_blanks_too() -> None:
    class Mixin:
        def reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
            return p_BHTS

    class Child(Mixin, get("alibi")):
        def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
            return k_BHSD

    assert Child(shape()).blanks == {"distance_bias", "key", "reweight"}
    assert Child(shape()).tier == "row"
    assert Encoding(shape()).blanks == frozenset()


def test_a_subclass_that_changes_the_formula_loses_the_fast_forms_of_the_other() -> None:
    class Slower(FIRE):
        def bias(self, i: Tensor, j: Tensor, f_i: Tensor | None, f_j: Tensor | None) -> Tensor:
            return 2 * super().bias(i, j, f_i, f_j)

    class Same(FIRE):
        pass

    encoding, pos = Slower(shape()), torch.arange(5)
    assert torch.equal(encoding.fast_bias(pos, pos, None, None), encoding.bias(pos, pos, None, None))
    assert Same(shape()).has_kernel_form
    assert not encoding.has_kernel_form


def test_a_composition_that_changes_a_blank_of_its_parts_computes_it_everywhere() -> None:
    class Doubled(get("urpe")):
        def reweight(self, p_BHTS: Tensor, d_TS: Tensor) -> Tensor:
            return 2 * super().reweight(p_BHTS, d_TS)

    encoding, d = Doubled(shape(), base="none"), (torch.arange(30)[:, None] - torch.arange(30)).clamp(min=0)
    with torch.no_grad():
        encoding.parts[1].c.copy_(draw(HEADS, LENGTH))
    p, c = draw(2, HEADS, 30, 30, seed=1), encoding.parts[1].c[:, d.clamp(max=LENGTH - 1)]
    for blank in (encoding.reweight, encoding.fast_reweight):
        torch.testing.assert_close(blank(p, d), 2 * p * c)


def test_an_option_that_leaves_a_blank_empty_does_not_change_the_class() -> None:
    assert make("rope+shaw(values=false)").blanks == {"query", "key", "relative_keys"}
    assert make("shaw").blanks == {"relative_keys", "relative_values"}


def test_a_join_is_as_short_as_its_shortest_part() -> None:
    short, long = make("xpos(scale_base=64)"), make("xpos(scale_base=512)")
    for joined in ("xpos(scale_base=64)+xpos(scale_base=512)", "xpos(scale_base=512)+alibi+xpos(scale_base=64)"):
        assert make(joined).longest(torch.float16) == short.longest(torch.float16) < long.longest(torch.float16)
    assert make("alibi+none").longest(torch.float16) is None


# Content-dependent encodings: long texts, extreme scores, and what layers share


@pytest.mark.parametrize("start", [0, 5])
def test_potentials_of_a_long_text_keep_float32_precision(start: int) -> None:
    """Differences of potentials are exact to float32; those of float32 sums are ten times worse, or more."""
    count, rows = 16384, 64
    log_f = logsigmoid(start + draw(1, HEADS, count, 1))
    c = make("fox").potential(log_f)
    past = slice(0, count - rows)
    found = (c[..., -rows:, None] - c[..., None, past]).float()
    from_the_end = log_f.double().squeeze(-1).flip(-1).cumsum(-1).flip(-1)
    later = from_the_end - log_f.squeeze(-1)
    exact = later[..., None, past] - later[..., -rows:, None]
    error = (found - exact).abs()
    assert (error <= 2**-24 * exact.abs() + count * 2**-52 * exact.abs().max()).all()
    single = log_f.squeeze(-1).cumsum(-1)
    rough = (single[..., -rows:, None] - single[..., None, past] - exact).abs()
    seen = exact > -20  # smaller differences have almost no weight in a softmax
    assert rough[seen].max() > 10 * error[seen].max()


@pytest.mark.parametrize("size", [1, 1e4])
@pytest.mark.parametrize("spec", ["stick-breaking", "stick-breaking(current=false)", "stick-breaking+window(3)"])
def test_weights_of_stick_breaking_sum_to_at_most_one(spec: str, size: float) -> None:
    """For scores of any size, hidden keys have no weight, and gradients are finite."""
    encoding, reach, current = make(spec), make(spec).reach or 9, "current" not in spec
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


def test_a_path_of_reflections_keeps_lengths() -> None:
    """With beta = 2 every H_t is orthogonal, so 2000 of them preserve the norm of a query."""
    count = 2000
    w = torch.nn.functional.normalize(draw(1, 1, count, HEAD_WIDTH), dim=-1)
    q, beta = draw(1, 1, 1, HEAD_WIDTH, seed=1), torch.full((1, 1, count, 1), 2.0)
    walked = []
    for axis in torch.eye(HEAD_WIDTH):  # the channels of the query after all reflections
        k = torch.cat([axis.expand(1, 1, 1, -1), torch.zeros(1, 1, count - 1, HEAD_WIDTH)], dim=2)
        walked.append(q[0, 0, 0] @ reflect_all(k, w, beta, tokens_per_chunk=64)[0, 0, 0])
    # One unit of rounding of float32 for each reflection.
    assert torch.stack(walked).norm() == pytest.approx(float(q.norm()), rel=count * 2**-23)


@pytest.mark.parametrize(("base", "shared"), [("t5", True), ("kerple-log", False)])
def test_a_shared_base_of_dape_is_one_for_all_layers(base: str, shared: bool) -> None:
    first, second = build(parse(f"dape(base={base})"), shape(), seed=0)
    assert (first.parts[0] is second.parts[0]) is shared
    assert first.inner is not second.inner


# Position embeddings and drawn positions


def added(spec: str, pos: torch.Tensor) -> torch.Tensor:
    """The term `[T, W]` that an encoding adds to the embeddings."""
    return make(spec).embed(torch.zeros(1, len(pos), WIDTH), pos, torch.zeros(1, len(pos), dtype=torch.long))[0]


@pytest.mark.parametrize("spec", ["hierarchical", "learned(beyond=interpolate)", "learned(beyond=random)"])
def test_every_position_has_a_row_of_its_own(spec: str) -> None:
    rows = added(spec, torch.arange(FAR))
    apart = torch.cdist(rows, rows) + 100 * torch.eye(FAR)
    assert apart.min() > 1e-2


def test_positions_beyond_a_hierarchy_are_refused() -> None:
    with pytest.raises(Unsupported, match=f"{LENGTH} rows reach {FAR} positions, not position {FAR}"):
        added("hierarchical", torch.arange(FAR + 1))
    for alpha in (0, 0.5, 1, -0.2, 1.4):
        with pytest.raises(UsageError, match=rf"alpha must lie between 0 and 1 and not be 0.5, got {alpha}"):
            check(f"hierarchical(alpha={alpha})", shape())


@pytest.mark.parametrize("beyond", ["refuse", "interpolate", "random", "hierarchical"])
def test_rows_are_interpolated_between_whole_positions(beyond: str) -> None:
    low, quarter, high = added(f"learned(beyond={beyond})", torch.tensor([3, 3.25, 4], dtype=torch.float64))
    torch.testing.assert_close(quarter, 0.75 * low + 0.25 * high)


def test_random_rows_are_normal_and_depend_on_their_positions_only() -> None:
    many = noise(torch.arange(3000), 64)
    alone = torch.cat([noise(torch.tensor([k]), 64) for k in (0, 255, 256, 2999)])
    assert torch.equal(many[[0, 255, 256, 2999]], alone)
    errors = 5 / many.numel() ** 0.5  # five standard errors
    assert abs(float(many.mean())) < errors
    assert abs(float(many.std()) - 1) < errors


def test_floater_evaluates_its_net_four_times_a_step() -> None:
    """Runge-Kutta 4 needs that; a solver that chooses its steps may need a hundred times as many."""
    encoding = get("floater")(Shape(width=128, heads=4, layers=4, length=512), step=8)
    evaluated: list[int] = []
    encoding.h.register_forward_hook(lambda *_: evaluated.append(1))
    with torch.inference_mode():
        assert encoding.path(torch.arange(8192)).isfinite().all()
    assert len(evaluated) <= 4 * (8192 // 8) + 1  # and one for the slopes between steps


def test_positions_are_drawn_once_per_step_for_all_layers_and_from_a_fixed_seed_in_evaluation() -> None:
    trained, stream, index = model("randomized(40)"), torch.Generator().manual_seed(7), torch.arange(LENGTH)
    fixed = model("randomized(40)", seed=3).encodings[0].positions(index)  # no step has begun
    drawn = []
    for _ in range(2):
        trained.begin_step(0.5, stream)
        drawn.append(trained.encodings[0].positions(index))
        assert torch.equal(trained.encodings[1].positions(index), drawn[-1])
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], fixed)
    again = model("randomized(40)")
    again.begin_step(0.5, torch.Generator().manual_seed(7))
    assert torch.equal(again.encodings[0].positions(index), drawn[0])
    encoding = trained.eval().encodings[0]
    assert torch.equal(encoding.positions(index), fixed)
    with pytest.raises(Unsupported, match="41 tokens need as many positions, and randomized has 40"):
        encoding.positions(torch.arange(41))


def test_every_position_is_drawn() -> None:
    encoding, stream = make("randomized"), torch.Generator().manual_seed(7)
    drawn = torch.cat([encoding.subset(LENGTH, stream) for _ in range(200)])
    counts = torch.bincount(drawn, minlength=FAR)
    assert len(counts) == FAR
    assert counts.min() > 0
    assert counts.max() < 40  # 12.5 on average


def test_randomized_yarn_draws_from_a_range_that_grows_and_evaluates_at_the_positions_of_the_text() -> None:
    trained, stream, index = model("randomized-yarn(max=116)"), torch.Generator().manual_seed(7), torch.arange(LENGTH)
    first, second = trained.encodings
    assert torch.equal(first.positions(index), index)  # no step has begun
    for progress, end in ((0.0, 16), (0.2, 41), (0.4, 66), (0.6, 116), (0.99, 116)):
        drawn = []
        for _ in range(200):
            trained.begin_step(progress, stream)
            drawn.append(first.positions(index))
            assert torch.equal(second.positions(index), drawn[-1])
            assert (drawn[-1].diff() > 0).all()
            assert float(first.s(drawn[-1])) == 116 / LENGTH
        assert torch.cat(drawn).unique().tolist() == list(range(end))
    assert torch.equal(first.positions(torch.arange(5)), torch.arange(5))  # not a training window
    assert torch.equal(first.eval().positions(index), index)
    at_once = make("randomized-yarn(max=116, curriculum=false)")
    at_once.begin_step(0.0, stream)
    assert int(at_once.positions(index)[-1]) > 41
    with pytest.raises(UsageError, match="max must be at least the training length 16, got 15"):
        check("randomized-yarn(max=15)", shape())


def test_random_floats_are_uniform_in_training_and_evenly_spaced_in_evaluation() -> None:
    trained, stream, index = model("random-floats(span=3)"), torch.Generator().manual_seed(7), torch.arange(LENGTH)
    first, second = trained.encodings
    evenly = first.positions(index)
    assert evenly.tolist() == [3 * (2 * k - 1) / (2 * LENGTH) for k in range(1, LENGTH + 1)]
    drawn = []
    for _ in range(400):
        trained.begin_step(0.5, stream)
        drawn.append(first.positions(index))
        assert torch.equal(second.positions(index), drawn[-1])
        assert (drawn[-1].diff() > 0).all()
    counts = torch.histc(torch.cat(drawn), bins=8, min=0, max=3)
    assert counts.sum() == 400 * LENGTH
    assert (counts - 800).abs().max() < 5 * 27  # five standard deviations
    assert torch.equal(first.eval().positions(index), evenly)
    assert float(first.positions(torch.arange(FAR))[-1]) == 3 * (1 - 1 / (2 * FAR))
    with pytest.raises(UsageError, match="span must be above 0, got 0"):
        check("random-floats(span=0)", shape())


def test_near_of_jet_long_lies_within_training() -> None:
    for near, rule in ((-1, "at least 0"), (LENGTH, f"below the training length {LENGTH}")):
        with pytest.raises(UsageError, match=f"near must be {rule}, got {near}"):
            check(f"jet-long(near={near})", shape())


# What only a fast form of a blank does: skip work


class Counting(TorchDispatchMode):
    """Counts the numbers that an operator computes."""

    def __init__(self, operator: object) -> None:
        super().__init__()
        self.operator, self.computed = operator, []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function == self.operator:
            self.computed.append(result.numel())
        return result


def test_stick_breaking_stops_at_the_key_that_uses_up_the_stick() -> None:
    with Counting(torch.ops.aten.softplus.default) as count:
        weights = make("stick-breaking").fast_weights(torch.full((1, 1, 1, 41), 60.0), keys_per_chunk=4)
    assert count.computed == [1, 4]
    assert weights.count_nonzero() == 2  # the share of the last key, and e^-60 of it
    with Counting(torch.ops.aten.softplus.default) as count:  # beside another encoding, too, by 128 keys
        make("stick-breaking+alibi").fast_weights(torch.full((1, 1, 1, 300), 60.0))
    assert count.computed == [44]


@pytest.mark.parametrize(
    ("spec", "plain", "fast", "chunk"),
    [
        ("cope(max_pos=5)", "scores", "fast_scores", "keys_per_chunk"),
        ("dape(base=alibi)", "scores", "fast_scores", "pairs_per_chunk"),
        ("dape(base=fox)", "scores", "fast_scores", "pairs_per_chunk"),
        ("path", "similarity", "fast_similarity", "tokens_per_chunk"),
        ("selective", "scores", "fast_scores", "tokens_per_chunk"),
        ("stick-breaking", "weights", "fast_weights", "keys_per_chunk"),
    ],
)
def test_a_fast_form_is_the_plain_one_in_chunks_of_any_size(spec: str, plain: str, fast: str, chunk: str) -> None:
    """With its gradient. Of 13 keys, chunks of 1, 5, 12 and 13; DAPE's of 1, 5, 12 and 13 queries."""
    encoding = make(spec, dtype=torch.float64)
    q, k, x = (
        draw(2, n, t, w, seed=t + w, dtype=torch.float64)
        for n, t, w in ((HEADS, 13, 8), (HEADS, 13, 8), (1, 13, WIDTH))
    )
    at = operands(encoding, q, k, k, encoding.locate(13, torch.device("cpu")), encoding.features(x[:, 0]))
    s = (q @ k.mT).masked_fill(~at.visible(), -math.inf).requires_grad_()
    given = {"similarity": (at,), "scores": (s, at), "weights": (s,)}[plain]
    learned, visible = [*encoding.parameters(), s], at.visible()

    def with_gradients(name: str, **options: int) -> list[Tensor]:
        out = getattr(encoding, name)(*given, **options).masked_fill(~visible, 0)
        grads = torch.autograd.grad((out * draw(13, 13, seed=9)).sum(), learned, allow_unused=True, retain_graph=True)
        return [out, *(g for g in grads if g is not None)]

    exact = with_gradients(plain)
    for size in (1, 5, 12, 13):
        found = with_gradients(fast, **{chunk: size * (13 if chunk == "pairs_per_chunk" else 1)})
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)


def test_selective_adds_up_the_tokens_before_the_first_query_in_chunks_of_any_size() -> None:
    encoding = make("selective", dtype=torch.float64)
    q, k, x = (
        draw(2, n, t, w, seed=t, dtype=torch.float64) for n, t, w in ((HEADS, 3, 8), (HEADS, 13, 8), (1, 13, WIDTH))
    )
    at = operands(encoding, q, k, k, encoding.locate(13, torch.device("cpu")), encoding.features(x[:, 0]))
    exact = encoding.scores(q @ k.mT, at)
    assert not torch.allclose(exact, q @ k.mT)
    for size in (1, 4, 10, 11):
        torch.testing.assert_close(encoding.fast_scores(q @ k.mT, at, tokens_per_chunk=size), exact)


@pytest.mark.parametrize("b", [8.0, 0.0, -3.0, -200.0])
def test_wall_takes_gates_of_any_strength_at_any_length(b: float) -> None:
    """In float32, with finite gradients, up to gates of e^-190, whose products no number of float64 can hold."""
    wall, count = make("wall"), FAR + 3
    with torch.no_grad():
        wall.b += b
    given = [draw(1, HEADS, count, HEAD_WIDTH, seed=n).requires_grad_() for n in range(3)]
    given += [draw(1, count, WIDTH, seed=3).requires_grad_(), *wall.parameters()]

    def attention(engine: str, encoding: Encoding, inputs: list[Tensor]) -> Tensor:
        at = encoding.locate(count, torch.device("cpu"))
        return attend(ENGINES[engine], encoding, *inputs[:3], at, encoding.features(inputs[3]))

    exact = attention("reference", copy.deepcopy(wall).double(), [x.detach().double() for x in given[:4]])
    out = attention("blocks", wall, given)
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad((out * draw(*out.shape)).sum(), given))
    with torch.no_grad():
        for engine in engines_for(wall, Place(gradient=False)):
            torch.testing.assert_close(attention(engine.name, wall, given).double(), exact, rtol=0, atol=1e-4)


def test_cope_stops_at_the_last_row_of_its_table() -> None:
    encoding = make("cope(max_pos=3)", dtype=torch.float64)
    q, k = (draw(2, HEADS, n, HEAD_WIDTH, seed=n, dtype=torch.float64) for n in (1, 41))
    x = operands(encoding, q, k, k, encoding.locate(41, torch.device("cpu")))
    with Counting(torch.ops.aten.sigmoid.default) as count:
        encoding.fast_scores(torch.full((2, HEADS, 1, 41), 60.0, dtype=torch.float64), x, keys_per_chunk=1)
    assert count.computed == [2 * HEADS] * 2  # gates of 1: the second key is at the last row already


@pytest.mark.parametrize("rows", [1, 100])
def test_fire_computed_by_linear_pieces_equals_its_network(rows: int) -> None:
    """Units that bend inside the unit interval, at its ends, outside it on either side, or not at all."""
    encoding = make("fire(hidden=13)", dtype=torch.float64)
    first = encoding.f[0]
    with torch.no_grad():
        first.weight[:, 0] = torch.tensor([2, -2, 1, -1, 1, -1, 0, 0, 3.0, 1, -1, 1, -1])
        first.bias[:] = torch.tensor([-1, 1, 2, -2, -2, 2, 1, -1, -0.5, 0, 0, -1, 1])
    assert sorted(encoding.pieces()[2].flatten().tolist()) == pytest.approx([0, 1 / 6, 0.5, 0.5])
    i, j = torch.arange(32, 41), torch.arange(41)
    fast = encoding.fast_bias(i, j, None, None, hidden_per_chunk=rows * 41 * 4)
    torch.testing.assert_close(fast, encoding.bias(i, j, None, None), rtol=0, atol=16 * 13 * 2**-52)


# ALiBi's slopes in every variant that checkpoints have

FLOAT32, BFLOAT16 = 2**-24, 2**-8  # the largest relative error of rounding to the nearest number


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 40, 71, 112, 128])
def test_bloom_mpt_and_falcon_have_the_slopes_of_the_authors(heads: int) -> None:
    """Of any number of heads, in one order. A power of a rounded base multiplies its error by the exponent <= H."""
    ours = torch.tensor(slopes(heads), dtype=torch.float64)
    two = torch.ones(1, 2)
    mpt = -lib.mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    bloom, falcon = (each.build_alibi_tensor(two, heads, torch.float32)[:, 0, 1] for each in (lib.bloom, lib.falcon))
    for theirs, unit in ((mpt, FLOAT32), (bloom, FLOAT32), (falcon, BFLOAT16)):
        assert float((theirs.double() / ours - 1).abs().max()) <= (heads + 4) * FLOAT32 + unit


def test_falcon_adds_its_term_before_the_division() -> None:
    """Its attention, without the last projection, for slopes and positions that bfloat16 holds: those of 8 heads."""
    heads, width, count = 8, 8, 50
    torch.manual_seed(0)
    config = lib.transformers.FalconConfig(
        hidden_size=heads * width, num_attention_heads=heads, alibi=True, multi_query=False
    )
    config._attn_implementation = "eager"
    layer = lib.falcon.FalconAttention(config, layer_idx=0).eval()
    layer.dense.weight.data, x = torch.eye(heads * width), torch.randn(1, count, heads * width)
    alibi = lib.falcon.build_alibi_tensor(torch.ones(1, count, dtype=torch.long), heads, torch.float32)
    hidden = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        theirs = layer(x, alibi=alibi, attention_mask=hidden)[0].unflatten(2, (heads, width)).transpose(1, 2)
        q, k, v = (each.transpose(1, 2) for each in layer._split_heads(layer.query_key_value(x)))
    encoding = make("alibi(before_scale=true)", shape(heads=heads, width=heads * width))
    ours = attend(ENGINES["reference"], encoding, q, k, v, Positions(pos=torch.arange(count), step=1.0))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


# Formulas over their whole range, which the oracles sample only, and options that these leave alone

POSITIONS = torch.tensor([0, 1, 2, 100, 511, 512, 5000, 16 * 512 - 1])  # sixteen times a usual training length
ROTARY = ["rope", "p-rope", *(name for name in names() if issubclass(get(name), RoPELinear))]


@pytest.mark.parametrize(
    ("buckets", "far"), [(32, 128), (32, 1024), (16, 64), (8, 20), (2, 2), (3, 9), (7, 100), (64, 33)]
)
def test_t5_buckets(buckets: int, far: int) -> None:
    d = torch.arange(100_001)
    found = bucket(d, buckets, far)
    theirs = lib.t5.T5Attention._relative_position_bucket(
        -d, bidirectional=False, num_buckets=buckets, max_distance=far
    )
    assert torch.equal(found, theirs)
    assert found.max() == buckets - 1


def test_fire_with_a_far_threshold_is_a_function_of_the_distance() -> None:
    encoding, length = get("fire")(shape(), threshold=2), shape().length
    first = torch.arange(length)
    assert torch.equal(encoding.ratio(first, first), encoding.ratio(first + length, first + length))
    beyond = first + length + 2  # the last two queries are at 2 L and after it
    assert not torch.equal(encoding.ratio(first, first), encoding.ratio(beyond, beyond))
    assert float(encoding.ratio(torch.tensor([2 * length]), torch.tensor([0])).detach()) == pytest.approx(1)
    assert [name for name, part in encoding.named_parameters() if not part.requires_grad] == ["threshold"]


def test_a_threshold_of_fire_counts_by_its_size() -> None:
    encoding, pos, ratios = make("fire"), torch.arange(23), []
    for threshold in (1.7, -1.7):
        with torch.no_grad():
            encoding.threshold.fill_(threshold)
        ratios.append(encoding.ratio(pos, pos))
    assert torch.equal(*ratios)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", ROTARY)
def test_rotations_are_accurate_at_large_positions_in_any_dtype(spec: str, dtype: torch.dtype) -> None:
    """bfloat16 holds no odd numbers past 256: angles computed in it would be off by radians."""
    x, encoding = draw(1, 2, len(POSITIONS), 32, dtype=dtype), make(spec, shape(heads=2, width=64))
    exact, found = encoding.query(x.double(), POSITIONS), encoding.query(x, POSITIONS)
    assert torch.equal(encoding.key(x, POSITIONS), found)
    assert found.dtype == dtype
    assert float((found - exact).abs().max()) < 4 * torch.finfo(dtype).eps * float(exact.abs().max())


@pytest.mark.parametrize("spec", ROTARY)
def test_rotations_copy_no_number_from_the_device(spec: str) -> None:
    """Tensors on the device `meta` hold no numbers: copying one raises an error."""
    q, pos = torch.empty(1, 3, 48, HEAD_WIDTH, device="meta"), torch.arange(48, device="meta")
    assert make(spec).query(q, pos).shape == q.shape


def test_phases_of_pope_have_its_base() -> None:
    phases = make("pope(base=50)").phases(torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert phases[0].tolist() == [0.0] * HEAD_WIDTH
    assert phases[1].tolist() == pytest.approx([2 * 50 ** (-c / HEAD_WIDTH) for c in range(HEAD_WIDTH)])


def test_a_unit_of_time_of_floater_is_dt_positions() -> None:
    pos = torch.arange(40)
    fine, coarse = (make(f"floater({options})", dtype=torch.float64) for options in ("step=30", "step=3, dt=0.1"))
    torch.testing.assert_close(coarse.path(pos), fine.path(10 * pos), rtol=0, atol=1e-12)
