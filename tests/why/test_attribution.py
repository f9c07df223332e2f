"""Why a model breaks: each change against formulas that share no code with it, and its rows over the whole registry.

L = LENGTH tokens in a training window. B batch, T queries, S keys, H heads, D head width, N distances.
"""

from __future__ import annotations

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from pieces_task import Pieces
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, VOCAB, WIDTH, Squares, draw, make, model, perturbed, rounding

from poscli.attention import Engine, attend
from poscli.attention.engines import engine_named
from poscli.encodings import Encoding, names
from poscli.model.transformer import Model, Precision
from poscli.system.errors import UsageError
from poscli.why import attribution as why
from poscli.why import crowd
from poscli.why.attribution import Relocated, attribution, measure, relocate, without_first
from poscli.why.crowd import by_difference, crowd_engine, refuses
from poscli.why.sample import Sample

KEYS = 3 * LENGTH + 5  # tokens of a long window
LAST = LENGTH - 1  # the largest distance of training
IN_SIGHT = "the first tokens of a long window stay in sight"
EXACT = 2**-42  # for float64: a thousand units of rounding; sums have a hundred terms of the order of 10


class Liar(Squares):
    """Positions that grow with the square of the order, in a class that claims to depend on differences only."""

    relative = True


class Whisperer(Encoding):
    """Adds a ten-thousandth of a function of the position, in a class that claims to depend on differences only."""

    def embed(self, x_BTW: Tensor, pos: Tensor, ids_BT: Tensor) -> Tensor:
        return x_BTW + pos[:, None].cos() / 10_000


def given(count: int = KEYS) -> dict[str, Tensor]:
    sizes = dict.fromkeys("qkv", (2, HEADS, count, HEAD_WIDTH)) | {"x": (2, count, WIDTH)}
    return {name: draw(*size, seed=n, dtype=torch.float64) for n, (name, size) in enumerate(sizes.items())}


def attended(encoding: Encoding, at: dict[str, Tensor], engine: Engine | str) -> Tensor:
    features = encoding.features(at["x"])
    positions = encoding.locate(at["q"].shape[2], torch.device("cpu"))
    return attend(
        engine_named(engine) if isinstance(engine, str) else engine,
        encoding,
        at["q"],
        at["k"],
        at["v"],
        positions,
        features,
    )


@torch.no_grad()
def crowded(spec: str, at: dict[str, Tensor] | None = None) -> Tensor:
    told = Relocated(make(spec, dtype=torch.float64), lambda index: index.clamp(max=LAST))
    return attended(told, at or given(), crowd_engine(LENGTH))


def dense(s_BHTS: Tensor, v_BHSD: Tensor) -> Tensor:
    """Causal softmax attention from scores."""
    hidden = torch.ones(s_BHTS.shape[-2:], dtype=torch.bool).triu(1)
    return s_BHTS.masked_fill(hidden, -math.inf).softmax(-1) @ v_BHSD


def clipped(count: int = KEYS) -> Tensor:
    """min(t - j, L - 1) `[T, S]`, 0 for the future."""
    return (torch.arange(count)[:, None] - torch.arange(count)).clamp(0, LAST)


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=EXACT)


def sample(length: int = KEYS, scored: int = 5, windows: int = 3) -> Sample:
    random = np.random.default_rng(0)
    documents = [random.integers(VOCAB, size=length + 3).tolist() for _ in range(windows)]
    task = Pieces(documents)
    spans = np.array([[n, length + n % 3] for n in range(windows)])
    sizes = {"train_length": LENGTH, "length": length, "scored": scored}
    return Sample(task=task, text=task.text(length), spans=spans, device=torch.device("cpu"), **sizes)


def trained(spec: str) -> Model:
    return perturbed(model(spec)).eval().requires_grad_(False)


def losses_by_change(of: Model, at: Sample) -> dict[str, np.ndarray]:
    """The loss of each scored token, `[n, scored]`, under every change that can be made."""
    return {change: made.losses for change, made in measure(of, at).items() if made.losses is not None}


def tolerance(of: Model, at: Sample) -> float:
    """How far two correct losses of a token may be apart: its logit may fall by a rounding, and all others rise."""
    return 2 * rounding(of, at.tokens(LENGTH)[:, :-1])


# Crowd, attention only


@pytest.mark.parametrize("spec", ["rope", "rope(layout=interleaved)+logn", "p-rope+alibi", "rope+sink-logit", "pope"])
def test_products_that_see_differences_only_are_the_same_in_place(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_place = crowded(spec)
    assert by_difference(make(spec))
    monkeypatch.setattr("poscli.why.crowd.by_difference", lambda encoding: False)
    assert_same(in_place, crowded(spec))


@pytest.mark.parametrize("spec", ["yarn", "rope+randomized", "self-extend", "shaw", "sinusoidal", "alibi"])
def test_other_products_need_the_places_of_training(spec: str) -> None:
    assert not by_difference(make(spec))


def test_crowd_of_rope_is_a_rotation_by_the_clipped_distance() -> None:
    at, half = given(), HEAD_WIDTH // 2
    q, k = (torch.complex(at[n][..., :half], at[n][..., half:]) for n in "qk")
    theta = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    turn = torch.exp(1j * clipped()[..., None] * theta)
    s = torch.einsum("bhtm,bhsm,tsm->bhts", q, k.conj(), turn).real / math.sqrt(HEAD_WIDTH)
    assert_same(crowded("rope", at), dense(s, at["v"]))


def test_crowd_of_alibi_stops_its_penalty_at_the_last_distance() -> None:
    at, slope = given(), torch.tensor([2.0**-4, 2.0**-8, 2.0**-2], dtype=torch.float64)
    s = at["q"] @ at["k"].mT / math.sqrt(HEAD_WIDTH) - slope[:, None, None] * clipped()
    assert_same(crowded("alibi", at), dense(s, at["v"]))


def test_crowd_of_fire_by_a_loop_over_pairs() -> None:
    at, e = given(), make("fire", dtype=torch.float64)
    w, b, v, a = (p.detach() for p in e.f.parameters())
    c, limit = math.log1p(math.exp(e.c.item())), abs(e.threshold.item()) * LENGTH / 4
    s = at["q"] @ at["k"].mT / math.sqrt(HEAD_WIDTH)
    for t in range(KEYS):
        for j in range(t + 1):
            i, d = min(t, LAST), min(t - j, LAST)
            ratio = math.log(1 + c * d) / math.log(1 + c * max(i, limit))
            s[:, :, t, j] += v @ torch.relu(w[:, 0] * ratio + b) + a
    assert_same(crowded("fire", at), dense(s, at["v"]))


def test_crowd_of_fox_counts_the_gates_of_the_last_tokens_only() -> None:
    at, e = given(), make("fox", dtype=torch.float64)
    gate = torch.nn.functional.logsigmoid(at["x"] @ e.w.T + e.b).mT.detach()  # [B, H, S]
    s = at["q"] @ at["k"].mT / math.sqrt(HEAD_WIDTH)
    for t in range(KEYS):
        for j in range(t + 1):
            s[:, :, t, j] += gate[:, :, max(j, t - LAST) + 1 : t + 1].sum(-1)
    assert_same(crowded("fox", at), dense(s, at["v"]))


def test_crowd_of_tupe_needs_no_row_beyond_its_table() -> None:
    at, e = given(), make("tupe", dtype=torch.float64)
    p, u_q, u_k = (x.detach() for x in (e.p, e.u_q, e.u_k))
    places = (p @ u_q.mT) @ (p @ u_k.mT).mT  # [H, L, L]
    i = torch.arange(KEYS)[:, None].clamp(max=LAST)
    n = clipped()
    s = (at["q"] @ at["k"].mT + places[:, i, (i - n).clamp(min=0)]) / math.sqrt(2 * HEAD_WIDTH)
    assert_same(crowded("tupe", at), dense(s + e.b.distance_bias(n.flatten()).detach().unflatten(1, n.shape), at["v"]))


def _measured(spec: str) -> bool:
    encoding = make(spec)
    seen_beyond = {"embed", "sinks"}  # whatever the window
    return encoding.axes == 1 and not refuses(encoding) and not encoding.blanks & seen_beyond


@pytest.mark.parametrize(
    "spec",
    [
        *(name for name in names() if _measured(name)),
        "toys:Quarters",
        "toys:Squares",
        "toys:SquaredVectors",
        "toys:Paced",
        "rope+fox",
        "fire+shaw",
    ],
)
def test_inside_a_window_the_last_query_of_a_training_window_stands_for_every_later_one(spec: str) -> None:
    """With a window of L tokens, a late query gives what it gives if the last L tokens are the whole text."""
    at, windowed = given(), f"{spec}+window({LENGTH})"
    found, encoding = crowded(windowed, at), make(windowed, dtype=torch.float64)
    for t in (LAST, LENGTH, LENGTH + 7, KEYS - 1):
        cut = {name: x[..., t - LAST : t + 1, :] for name, x in at.items()}
        assert_same(found[:, :, t], attended(encoding, cut, "reference")[:, :, -1])


@pytest.mark.parametrize(
    "spec",
    [
        "none", "clipped(clip=9)", f"shaw(clip={LAST})", f"deberta(span={LAST})", f"transformer-xl(clamp={LAST})",
        "t5(buckets=6, far=11)", "clipped(clip=9)+urpe(base=none)", "rerope(window=9)", "stick-breaking",
        "clipped(clip=9)+ssmax", "clipped(clip=9)+sink(2)+window(5)", "convolution(width=9)", "toys:Untied",
        "toys:Disentangled", "toys:Toeplitz", "shaw(clip=9)+urpe(base=none)",
    ],
)  # fmt: skip
def test_crowd_changes_nothing_where_all_far_distances_are_equal(spec: str) -> None:
    assert_same(crowded(spec), attended(make(spec, dtype=torch.float64), given(), "reference"))


@pytest.mark.parametrize("spec", ["rope", "fire", "fox", "shaw", "deberta", "tupe", "toys:Paced", "rerope"])
def test_small_blocks_of_queries_give_the_same(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = crowded(spec)
    monkeypatch.setattr(crowd, "ENTRIES", 2 * HEADS * KEYS * HEAD_WIDTH * 3)
    assert_same(crowded(spec), whole)


# The changed models


@pytest.mark.parametrize("spec", ["rope", "fire", "fox", "shaw", "rope-linear", "xpos", "alibi|rope", "t5+ssmax"])
def test_crowd_of_a_training_window_is_the_model_itself(spec: str) -> None:
    at = sample(length=LENGTH)
    rows = {row["change"]: row for row in attribution(trained(spec), at)}
    limit = tolerance(trained(spec), at)
    assert abs(rows["crowd"]["harm"]) <= limit
    assert abs(rows["offset"]["harm"]) <= limit
    assert abs(rows["gap"]["harm"]) <= limit


def test_offset_of_sinusoids_adds_the_rows_of_the_long_window() -> None:
    ours, at = trained("sinusoidal"), sample()
    other = copy.deepcopy(ours)
    k = np.arange(KEYS - LENGTH, KEYS)[:, None] / 10000 ** (np.arange(0, WIDTH, 2) / WIDTH)
    rows = torch.from_numpy(np.stack([np.sin(k), np.cos(k)], axis=-1).reshape(LENGTH, WIDTH)).float()
    for encoding in other.encodings:
        encoding.embed = lambda x, pos, ids: x + rows  # type: ignore[method-assign]
    apart = losses_by_change(ours, at)["offset"] - at.losses(other, LENGTH)
    assert np.abs(apart).max() <= tolerance(ours, at)
    assert np.abs(losses_by_change(ours, at)["base"] - at.losses(other, LENGTH)).max() > 0.01


@pytest.mark.parametrize("length", [4 * LENGTH, 5 * LENGTH // 2, 3 * LENGTH + 3])
def test_a_gap_of_rope_turns_the_second_half_further(length: int) -> None:
    ours, at = trained("rope"), sample(length=length)
    other, half = copy.deepcopy(ours), LENGTH // 2
    places = torch.tensor([*range(half), *range(length - half, length)]).double()
    for encoding in other.encodings:
        encoding.angles = lambda pos: places[pos.long(), None] * 10000.0 ** -(torch.arange(4.0).double() / 4)
    apart = losses_by_change(ours, at)["gap"] - at.losses(other, LENGTH)
    assert np.abs(apart).max() <= tolerance(ours, at)


@torch.no_grad()
def test_later_queries_of_alibi_do_not_see_the_first_four_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    at, slope = given(LENGTH), torch.tensor([2.0**-4, 2.0**-8, 2.0**-2], dtype=torch.float64)
    s = at["q"] @ at["k"].mT / math.sqrt(HEAD_WIDTH) - slope[:, None, None] * clipped(LENGTH)
    for t in range(LENGTH // 2, LENGTH):
        s[:, :, t, :4] = -math.inf
    blind = Engine("blind", partial(without_first, length=LENGTH + 1), lambda *_: "", "")
    losing = make(f"alibi+window({LENGTH})", dtype=torch.float64)
    assert_same(attended(losing, at, blind), dense(s, at["v"]))
    monkeypatch.setattr(why, "PAIR_NUMBERS", 5 * at["q"][:, :, 0, 0].numel() * LENGTH)  # five queries at a time
    assert_same(attended(losing, at, blind), dense(s, at["v"]))


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ("rope", "void"),
        ("rope+window(9)", "ok"),
        ("cope+window(9)", "ok"),
        ("shaw+window(9)|none", "ok"),
        (f"rope+window({KEYS})", "void"),
        ("sink(4)+window(9)", "void"),
        ("sink(3)+window(9)", "ok"),
    ],
)
def test_first_tokens_are_lost_only_where_a_window_hides_them(spec: str, status: str) -> None:
    assert measure(trained(spec), sample(windows=1))["sinkless"].status == status


def test_layers_that_see_the_first_tokens_of_the_long_window_keep_them() -> None:
    """The second half of a training window, from query 8 on, never saw tokens 0 to 3 through a window of 5."""
    losses = losses_by_change(trained("rope+window(5)|none"), sample())
    assert losses["sinkless"] == pytest.approx(losses["base"], abs=1e-5)


def test_crowd_of_a_model_of_rope_is_that_of_rerope() -> None:
    """The encoding is told no place beyond L - 1, and the engine that is used shortens every distance."""
    at, clipped_too = sample(), trained(f"rerope(window={LAST})")
    found = losses_by_change(trained("rope"), at)
    expected = at.losses(clipped_too, at.length)
    assert found["crowd"] == pytest.approx(expected, abs=1e-3)
    assert np.abs(found["full"] - expected).max() > 0.1
    assert found["base"] == pytest.approx(at.losses(clipped_too, LENGTH), abs=1e-3)  # the weights are the same


def test_an_encoding_is_told_whole_places_before_its_own_positions() -> None:
    at = torch.device("cpu")
    length = 2.5 * LENGTH
    squares = Relocated(make("toys:Squares"), lambda index: index * int(length) // LENGTH)
    assert squares.locate(4, at).pos.tolist() == [0 // 16, 2**2 // 16, 5**2 // 16, 7**2 // 16]
    shared = trained("alibi")
    copied = relocate(shared, lambda index: index + 3)
    assert copied.encodings[0] is copied.encodings[1]
    assert copied.encodings[0].locate(2, at).pos.tolist() == [3, 4]
    assert all(a is b for a, b in zip(copied.parameters(), shared.parameters(), strict=True))
    assert not isinstance(shared.encodings[0], Relocated)


@pytest.mark.parametrize("name", ["Liar", "Whisperer"])
def test_a_class_that_falsely_claims_to_be_relative_is_found_out(name: str) -> None:
    row = attribution(trained(f"test_attribution:{name}"), sample())[2]
    assert (row["change"], row["status"]) == ("offset", "fault")
    assert row["reason"].startswith("by definition nothing may change (scores depend on differences of positions only)")
    assert "the loss of a token changes by " in row["reason"]


def test_rounding_in_bfloat16_is_not_a_fault() -> None:
    coarse = perturbed(model("xpos", precision=Precision(attention=torch.bfloat16))).eval().requires_grad_(False)
    found = measure(coarse, sample())
    assert found["offset"].status == "void"
    assert found["offset"].losses is not None
    assert found["base"].losses is not None
    assert np.abs(found["offset"].losses - found["base"].losses).max() > 1e-3  # more than float32 would explain


@pytest.mark.parametrize(
    ("spec", "offset", "crowd"),
    [
        ("none|rope", "void", "ok"),
        ("none|toys:Squares", "ok", "ok"),
        ("toys:Squares|none", "ok", "ok"),
        ("rope|toys:Squares", "ok", "ok"),
        ("rope|cope", "void", "not measured"),
        ("cope|rope", "void", "not measured"),
        ("sinusoidal+rope", "ok", "not measured"),
    ],
)
def test_one_layer_is_enough_for_a_change_to_matter_or_not_to_be_defined(spec: str, offset: str, crowd: str) -> None:
    found = measure(trained(spec), sample(windows=1))
    assert (found["offset"].status, found["crowd"].status) == (offset, crowd)
    if offset == "ok":
        assert found["offset"].losses is not None
        assert found["base"].losses is not None
        assert np.abs(found["offset"].losses - found["base"].losses).max() > 1e-3


@pytest.mark.parametrize(("harm", "known"), [(0.0099, False), (0.0101, True), (-1.0, False)])
def test_losses_harms_and_shares_of_the_harm_by_hand(harm: float, known: bool) -> None:
    """A share is told of a harm from 0.01 nats on, relative to the base."""
    parts = {"base": 0, "full": 1, "offset": 0.25, "crowd": -0.5}
    outcomes = {change: why.ChangeOutcome(np.full((3, 5), 2 + part * harm)) for change, part in parts.items()}
    rows = why.rows(outcomes, sample())
    assert [row["nll"] for row in rows] == pytest.approx([2 + part * harm for part in parts.values()])
    assert [row["harm"] for row in rows] == pytest.approx([part * harm for part in parts.values()])
    assert [row["share"] for row in rows] == pytest.approx([*parts.values()] if known else [math.nan] * 4, nan_ok=True)


# Rows


@pytest.mark.parametrize(
    ("error", "reason"),
    [(torch.OutOfMemoryError("no"), f"{LENGTH} tokens do not fit the memory"), (None, "a loss is not finite")],
)
def test_a_change_that_fails_is_a_row(error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def losses(self: Sample, of: Model, window: int, *, whole: bool) -> np.ndarray:
        if isinstance(of.encodings[0], Relocated) and window == LENGTH:
            if error is not None:
                raise error
            return np.where(np.arange(5) == 2, math.inf, np.ones((3, 1)))  # of one token in every window
        return np.ones((3, 5))

    monkeypatch.setattr(Sample, "losses", losses)
    rows = attribution(trained("fire"), sample())
    assert [row["reason"] for row in rows] == ["", "", reason, reason, "", IN_SIGHT]
    assert [row["status"] for row in rows] == ["ok", "ok", "not measured", "not measured", "ok", "void"]


def test_other_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd.Late, "products", lambda late: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        attribution(trained("rope"), sample())


def test_an_engine_that_no_table_lists_is_used_or_refused() -> None:
    ours = trained("rope")
    ours.use_engine(engine := crowd_engine(LENGTH))
    assert all(choice.engine is engine for choice in ours.choices)
    assert ours.engine == "crowd"
    with pytest.raises(UsageError, match="the engine crowd cannot run cope: it computes whole rows"):
        trained("cope").use_engine(engine)
