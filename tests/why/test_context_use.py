"""Saturation, receptive field, dilution and key tokens, against models whose use of the context is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pieces_task import PIECES, Pieces
from torch import Tensor, nn
from torch.nn import functional as F
from toys import ALTERNATING, COMPOSITES, ENDS, HEADS, VOCAB, WIDTH, draw, perturbed, tokens, wide

from poscli.config.run import ModelConfig
from poscli.encodings import Encoding, names
from poscli.equation import Unsupported
from poscli.equation.reference import reference, scores, weights
from poscli.model.initialise import build_model
from poscli.model.transformer import Linear, Model, Precision
from poscli.runs.schema import (
    DILUTION_COLUMNS,
    KEY_TOKEN_COLUMNS,
    RECEPTIVE_COLUMNS,
    SATURATION_COLUMNS,
    frame,
)
from poscli.why import context_use, dilution
from poscli.why.context_use import input_gradient
from poscli.why.sample import Sample

L = 16
CERTAIN = 10.0  # the logit of the token that a Recaller expects; those of all others are 0
RIGHT, UNKNOWN = math.log(1 + (PIECES - 1) * math.exp(-CERTAIN)), math.log(PIECES)  # its losses; a wrong guess: + 10


class Shift(nn.Module):
    """Moves every token `back` places on, with zeros before the first."""

    def __init__(self, back: int) -> None:
        super().__init__()
        self.back = back

    def forward(self, x_BTW: Tensor) -> Tensor:
        return F.pad(x_BTW, (0, 0, self.back, 0))[:, : x_BTW.shape[1]]


class Scripted(nn.Module):
    """A model whose logits come in one slice."""

    def logits_in_slices(self, tokens_BT: Tensor, last: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        yield slice(None), self(tokens_BT)[:, -(last or tokens_BT.shape[1]) :]


class Recaller(Scripted):
    """Predicts that the token `back` places before the last one comes next; it guesses if it cannot see that token."""

    def __init__(self, back: int, length: int = L) -> None:
        super().__init__()
        self.embedding = nn.Parameter(CERTAIN * torch.eye(PIECES))
        self.layers = nn.ModuleList([Shift(back)])
        self.shape = SimpleNamespace(length=length)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.layers[0](F.embedding(tokens_BT, self.embedding))


def periodic(period: int, symbols: tuple[int, ...], count: int = 150) -> list[int]:
    """A text that repeats every `period` tokens, in which neighbours differ."""
    return [symbols[(n % period) % len(symbols)] for n in range(count)]


def sample_of(documents: list[list[int]], spans: list[tuple[int, int]], uncounted=(), **changes) -> Sample:
    task = Pieces(documents, uncounted=uncounted)
    options = {"scored": 8, "train_length": L, "length": 64, "device": torch.device("cpu")} | changes
    return Sample(task=task, text=task.text(0), spans=np.array(spans), **options)


TWENTY = [periodic(20, (1, 2, 3)), periodic(20, (4, 5, 6, 7))]  # no token in common


# saturation


@pytest.mark.parametrize(("scored", "partly"), [(8, 0.0), (16, 3 / 16)])
def test_the_loss_stops_falling_at_the_window_that_shows_the_period(scored: int, partly: float) -> None:
    """Period 20: a window of 32 shows it to its inputs 19 to 31, of which the last 8 or 16 are scored."""
    rows = context_use.saturation(Recaller(19), sample_of(TWENTY, [(0, 100), (1, 120)], scored=scored))
    frame(rows, SATURATION_COLUMNS)
    assert [row["window"] for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    expected = [*[UNKNOWN] * 5, partly * UNKNOWN + (1 - partly) * RIGHT, RIGHT]
    assert [row["nll"] for row in rows] == pytest.approx(expected, abs=1e-5)
    assert [row["excess"] for row in rows] == pytest.approx([nll - RIGHT for nll in expected], abs=1e-5)
    assert {row["saturates_at"] for row in rows} == {64 if partly else 32}
    assert {(row["tokens"], row["documents"]) for row in rows} == {(2 * scored, 2)}


def test_every_token_sees_more_than_half_of_the_window_and_no_more_than_it() -> None:
    """A model that expects token 3 back is right once 4 tokens are in sight, and one that expects 7 back with 8."""
    text = [periodic(4, (1, 2, 3, 4)), periodic(8, (1, 2, 3, 4, 5, 6, 7))]
    for scored in (3, 8, 13):
        sample = sample_of(text, [(0, 100), (0, 77)], scored=scored)
        half_seen = sample.losses(Recaller(3), 6)
        assert half_seen.shape == (2, scored)
        assert half_seen == pytest.approx(RIGHT, abs=1e-5)  # stride 3: 4 to 6 tokens are in sight
        unseen = replace(sample, spans=np.array([[1, 100]])).losses(Recaller(7), 7)
        assert unseen == pytest.approx(UNKNOWN, abs=1e-5)


def test_a_stride_of_one_shows_the_whole_window_to_every_scored_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that expects token 19 back is right once 20 tokens are in sight."""
    sample = sample_of(TWENTY, [(0, 100), (1, 120)], scored=4)
    some = sample.losses(Recaller(19), 20)
    assert some[:, -1] == pytest.approx(RIGHT, abs=1e-5)
    assert some[:, :-1] == pytest.approx(UNKNOWN, abs=1e-5)
    exact = replace(sample, stride=1, length=24)  # the first of the 4 scored tokens has 20 before it
    assert exact.losses(Recaller(20), 20) == pytest.approx(UNKNOWN, abs=1e-5)
    monkeypatch.setattr("poscli.why.sample.PASS_TOKENS", 16)  # less than a window: one at a time
    assert exact.losses(Recaller(19), 20) == pytest.approx(RIGHT, abs=1e-5)
    crowded = replace(exact, length=23)  # too short for windows that end before the last token
    assert crowded.losses(Recaller(19), 20) == pytest.approx(some)


def test_only_scored_tokens_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, predicted = sample_of(TWENTY, [(0, 100), (1, 120)]), []
    score = sample.task.score
    counted = lambda logits, targets: predicted.append(targets.numel()) or score(logits, targets)  # noqa: E731
    monkeypatch.setattr(sample.task, "score", counted)
    sample.losses(Recaller(19), 64)
    assert sum(predicted) == 2 * 8
    context_use.replacement_rows(Recaller(19), sample, sample.spans[::-1])
    assert set(predicted) == {2 * 8}


def test_losses_are_in_the_order_of_the_tokens() -> None:
    """Every token of a text is scored once, whatever the window; a model without context has known losses."""

    class Unigram(Scripted):
        def forward(self, tokens_BT: Tensor) -> Tensor:
            return torch.arange(float(PIECES)).expand(*tokens_BT.shape, PIECES)

    text = np.random.default_rng(0).integers(1, PIECES, 150).tolist()
    sample = sample_of([text], [(0, 90), (0, 150)], scored=11)
    expected = np.log(np.exp(np.arange(PIECES)).sum()) - sample.text.targets(sample.spans, 11)
    for window in (1, 2, 3, 8, 16, 64):
        assert sample.losses(Unigram(), window) == pytest.approx(expected, abs=1e-5)


def test_saturation_counts_the_targets_that_count_and_survives_infinite_losses() -> None:
    class Breaking(Recaller):
        def forward(self, tokens_BT: Tensor) -> Tensor:
            return super().forward(tokens_BT) * (math.nan if tokens_BT.shape[1] > 40 else 1)

    sample = sample_of(TWENTY, [(0, 100)], uncounted=[(0, n) for n in range(93, 99)])
    rows = context_use.saturation(Breaking(19), sample)
    frame(rows, SATURATION_COLUMNS)
    assert rows[-1]["tokens"] == 2
    assert math.isnan(rows[-1]["nll"])
    assert rows[-1]["saturates_at"] == 32
    assert context_use.saturation(Recaller(19), sample_of(TWENTY, [(0, 9)], [(0, n) for n in range(1, 10)])) == []


@pytest.mark.parametrize(("excess", "at"), [(0.0099, 16), (0.0101, 32)])
def test_a_window_within_a_hundredth_of_a_bit_is_as_good_as_the_best(
    excess: float, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats = {1: 9.0, 2: 8.0, 4: 7.0, 8: 6.0, 16: 2 + excess * math.log(2), 32: 2.0, 64: 2.5}
    monkeypatch.setattr(Sample, "losses", lambda self, model, window: np.full((1, 8), nats[window]))
    rows = context_use.saturation(Recaller(19), sample_of(TWENTY, [(0, 100)]))
    assert {row["saturates_at"] for row in rows} == {at}
    assert [row["excess"] for row in rows] == pytest.approx([loss - 2 for loss in nats.values()])


# receptive field


@pytest.mark.parametrize(("back", "octave"), [(0, 0), (3, 0), (4, 4), (10, 8), (15, 8), (16, 16), (19, 16), (40, 32)])
def test_the_gradient_lies_where_the_model_looks(back: int, octave: int) -> None:
    rows = context_use.gradient_rows(Recaller(back), sample_of(TWENTY, [(0, 100), (1, 120)]))
    frame(rows, RECEPTIVE_COLUMNS)
    assert [(row["from"], row["to"]) for row in rows] == [(0, 3), (4, 7), (8, 15), (16, 31), (32, 63)]
    assert [row["value"] for row in rows] == pytest.approx([float(row["from"] == octave) for row in rows])
    assert {row["beyond"] for row in rows} == {float(back >= L)}
    assert {(row["windows"], row["tokens"]) for row in rows} == {(2, 2)}


def test_the_harm_of_replaced_tokens() -> None:
    """Scored prediction k looks 19 back, so 19 - k back from the first one; a wrong token costs 10 nats."""
    rows = context_use.receptive(Recaller(19), sample_of(TWENTY, [(0, 100), (1, 120)]))
    frame(rows, RECEPTIVE_COLUMNS)
    rows = [row for row in rows if row["method"] == "replace"]
    assert [(row["from"], row["to"]) for row in rows] == [(4, 56), (8, 56), (16, 56), (32, 56)]
    assert [row["value"] for row in rows] == pytest.approx([CERTAIN, CERTAIN, CERTAIN * 4 / 8, 0], abs=1e-4)
    assert {(row["windows"], row["tokens"]) for row in rows} == {(2, 16)}


def test_a_model_without_gradients_has_a_reason_and_no_number() -> None:
    rows = context_use.gradient_rows(Recaller(80), sample_of(TWENTY, [(0, 100)]))
    assert {row["reason"] for row in rows} == {"every gradient is zero or not finite"}


DOUBLE = Precision(linear=torch.float64, attention=torch.float64)


@pytest.mark.parametrize(("spec", "memory"), [("alibi", 0), ("stick-breaking", 0), ("fox", 0), ("rope", 8)])
def test_the_gradient_equals_finite_differences(spec: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, with and without the memory that reads a text segment by segment; and it leaves no trace."""
    monkeypatch.setattr(Linear.forward, "__defaults__", (torch.float64,))  # the dtype that products are returned in
    config = ModelConfig(layers=2, width=WIDTH, heads=HEADS, mlp=32, memory=memory)
    made = perturbed(build_model(config, spec, vocab=VOCAB, length=L, seed=0, precision=DOUBLE)).double()
    made.requires_grad_(False).head.weight.requires_grad_(True)
    text = tokens(1, 25)

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits[0, -1:], text[0, 3:4])

    gradient = input_gradient(made, text, loss)
    assert gradient.shape == (1, 25, WIDTH)
    assert [name for name, weight in made.named_parameters() if weight.requires_grad] == ["head.weight"]
    assert made.head.weight.grad is None
    first = made.layers[0]
    assert "forward" not in vars(first)
    assert not first._forward_pre_hooks
    for place in (0, 11, 24):
        direction, size = draw(WIDTH, seed=place, dtype=torch.float64), 1e-5
        moved = [moved_loss(made, text, place, sign * size * direction, loss) for sign in (1, -1)]
        slope = (moved[0] - moved[1]) / (2 * size)
        assert float(gradient[0, place] @ direction) == pytest.approx(slope, rel=1e-5, abs=1e-9)


def moved_loss(made: Model, text: Tensor, place: int, step: Tensor, loss) -> float:
    """The loss if the first layer's input at `place` is moved by a step."""
    read = 0

    def move(_: nn.Module, args: tuple) -> tuple:
        nonlocal read
        x = args[0].clone()
        if read <= place < read + x.shape[1]:
            x[0, place - read] += step
        read += x.shape[1]
        return (x, *args[1:])

    hook = made.layers[0].register_forward_pre_hook(move)
    with torch.no_grad():
        found = float(loss(made(text)))
    hook.remove()
    return found


# dilution


def by_head(rows: list[dict], window: int, column: str) -> np.ndarray:
    """A column at one window, `[layers, heads]`."""
    frame(rows, DILUTION_COLUMNS)
    return np.array([row[column] for row in rows if row["window"] == window]).reshape(-1, HEADS)


def trained(spec: str, memory: int = 0) -> Model:
    config = ModelConfig(layers=2, width=WIDTH, heads=HEADS, mlp=32, memory=memory)
    made = build_model(config, spec, vocab=VOCAB, length=L, seed=0)
    return perturbed(made).eval().requires_grad_(False)


RANDOM = [np.random.default_rng(n).integers(1, PIECES, 150).tolist() for n in range(2)]
SPANS = [(0, 80), (0, 100), (1, 150)]


def test_without_queries_attention_is_uniform() -> None:
    """All entropies are 1, and of i + 1 keys the first i + 1 - L are far."""
    made = trained("none")
    for attention in made.attention:
        attention.q.weight.zero_()
    rows = dilution.dilution(made, sample_of(RANDOM, SPANS))
    for window in (16, 32, 64):
        assert by_head(rows, window, "entropy") == pytest.approx(1)
        far = np.mean([max(0, seen - L) / seen for seen in range(window - 7, window + 1)])
        assert by_head(rows, window, "far_mass") == pytest.approx(far)


def test_the_numbers_of_a_layer_by_hand() -> None:
    """The first layer without an encoding: softmax of q . k / sqrt(D), over queries that count."""
    made, sample = trained("none"), sample_of(RANDOM, SPANS[:1], uncounted=[(0, 80), (0, 74)], length=32)
    x = torch.from_numpy(sample.text.windows(sample.spans, 32))[0, :-1]
    layer = made.layers[0]
    normed = F.rms_norm(made.embedding[x], (WIDTH,), layer.norm_attention.weight, 1e-6)
    q, k = ((normed @ p.weight.T).view(32, HEADS, -1).transpose(0, 1) for p in (layer.attention.q, layer.attention.k))
    s = (q @ k.mT / math.sqrt(WIDTH / HEADS)).masked_fill(torch.ones(32, 32).triu(1).bool(), -math.inf)
    p = s.softmax(-1)
    counted = [24, 26, 27, 28, 29, 30]  # queries 24 to 31 are scored; 25 and 31 predict targets 74 and 80
    entropy = [
        [-sum(w * math.log(w) for w in p[h, i, : i + 1].tolist()) / math.log(i + 1) for i in counted]
        for h in range(HEADS)
    ]
    far = [[float(p[h, i, : i - L + 1].sum()) for i in counted] for h in range(HEADS)]
    rows = dilution.dilution(made, sample)
    assert by_head(rows, 32, "entropy")[0] == pytest.approx(np.mean(entropy, axis=1), rel=1e-5)
    assert by_head(rows, 32, "far_mass")[0] == pytest.approx(np.mean(far, axis=1), rel=1e-5)
    assert not by_head(rows, 16, "far_mass").any()


class Signed(Encoding):
    """Weights 2 and -2 in turn."""

    def weights(self, s_BHTS: Tensor) -> Tensor:
        signs = 4 * (torch.arange(s_BHTS.shape[-1]) % 2) - 2
        return torch.where(s_BHTS > -math.inf, signs.to(s_BHTS.dtype), 0)


def test_weights_that_are_negative_or_do_not_sum_to_1_are_shares_of_their_sizes() -> None:
    rows = dilution.dilution(trained("test_context_use:Signed"), sample_of(RANDOM, SPANS))
    for window in (16, 32, 64):
        assert by_head(rows, window, "entropy") == pytest.approx(1)
        far = np.mean([max(0, seen - L) / seen for seen in range(window - 7, window + 1)])
        assert by_head(rows, window, "far_mass") == pytest.approx(far)


def test_of_a_window_with_fewer_tokens_than_are_scored_the_last_targets_count() -> None:
    """24 targets are scored, of which the last 4 count: a window of 16 tokens shows 13 to 16 keys to these."""
    made = trained("none")
    for attention in made.attention:
        attention.q.weight.zero_()
    uncounted = [(0, 100 - n) for n in range(4, 24)]
    rows = dilution.dilution(made, sample_of(RANDOM, [(0, 100)], uncounted, scored=24, train_length=4, length=16))
    far = np.mean([(seen - 4) / seen for seen in range(13, 17)])
    assert by_head(rows, 16, "far_mass") == pytest.approx(far)
    assert by_head(rows, 8, "far_mass") == pytest.approx(np.mean([(seen - 4) / seen for seen in range(5, 9)]))


@pytest.mark.parametrize("spec", [*wide([*names(), *COMPOSITES, *ALTERNATING]), "rope with a memory"])
def test_weights_are_those_of_the_model(spec: str) -> None:
    """The operands of every layer give the layer's own output, and blocks of queries the weights of all at once.

    With a memory, the last segment of 25 tokens has 9; its queries see the 8 tokens before it too.
    """
    memory, count, keys = (8, 25, 9 + 8) if "memory" in spec else (0, 12, 12)
    made, outputs = trained(spec.removesuffix(" with a memory"), memory), list[Tensor]()
    text = torch.from_numpy(sample_of(RANDOM, SPANS).text.windows(np.array([[0, 80]]), count))[:, :-1]
    with torch.inference_mode():
        for each in made.attention:
            each.register_forward_hook(lambda *args: outputs.append(args[-1]))
        calls = dilution.calls_of_attention(made, text)
        for call, attention, output in zip(calls, made.attention, outputs[-2:], strict=True):
            encoding, x = attention.encoding, call.operands(attention)
            o_BHTD = encoding.output(reference(encoding, x), x.pos_T)
            again = attention.o(o_BHTD.transpose(1, 2).flatten(2))
            torch.testing.assert_close(again, output, rtol=1e-4, atol=1e-4)
            p = weights(encoding, x, scores(encoding, x)).double().abs()[:, :, -5:]
            p = p / p.sum(-1, keepdim=True)
            entropy, far = dilution.spread(encoding, x, 5, 3)
            torch.testing.assert_close(
                entropy, torch.special.entr(p).sum(-1) / x.visible()[-5:].sum(-1).log(), rtol=1e-4, atol=1e-5
            )
            expected = torch.stack([p[:, :, i, : x.keys - 5 + i - 2].sum(-1) for i in range(5)], dim=-1)
            torch.testing.assert_close(far, expected, rtol=1e-4, atol=1e-5)
            assert x.keys == keys


# key tokens


def test_a_key_token_falls_by_two_nats_and_ends_below_two(monkeypatch: pytest.MonkeyPatch) -> None:
    nats = {16: [[5.0, 4.0, 3.9, 4.5, 2.5]], 128: [[1.9, 1.9, 1.9, 2.0, 0.4]]}
    monkeypatch.setattr(Sample, "losses", lambda self, model, window: np.array(nats[window]))
    for uncounted in (True, False):
        sample = sample_of(TWENTY, [(0, 140)], [(0, 136)] * uncounted, length=128, scored=5)
        key = context_use.key_tokens(Recaller(19, length=128), sample)
        assert key.tolist() == [[not uncounted, True, False, False, True]]


def test_a_judge_reads_8_times_the_training_length_whatever_the_longest_window_is() -> None:
    """A judge that is right from 200 tokens on finds no key tokens with 8 L = 128, and one from 100 on finds all."""
    text = periodic(220, tuple(np.random.default_rng(0).integers(1, PIECES, 220).tolist()), 500)
    sample = sample_of([text], [(0, 480)], length=256)
    assert not context_use.key_tokens(Recaller(219, length=256), sample).any()
    near = sample_of(TWENTY, [(0, 140)], length=128)
    assert context_use.key_tokens(Recaller(19, length=128), near).all()


def test_the_loss_on_key_tokens() -> None:
    """Tokens that repeat after 20 are key tokens; where the text deviates, the judge is wrong and others are met."""
    text, changed = periodic(20, (1, 2, 3), 300), [141, 150, 155, 290]
    for target in changed:
        text[target - 1] = 7
    sample = sample_of([text, text[:]], [(0, 150), (1, 160), (0, 300)], length=128, scored=16)
    key = context_use.key_tokens(Recaller(19, length=128), sample)
    targets = sample.spans[:, 1:] + np.arange(-15, 1)
    assert (key == ~np.isin(targets, changed) & ~np.isin(targets - 20, changed)).all()
    rows = context_use.key_token_rows(Recaller(19), sample, key)
    frame(rows, KEY_TOKEN_COLUMNS)
    own, other = rows
    assert (own["kind"], own["tokens"], own["documents"], own["reason"]) == ("key", int(key.sum()), 2, "")
    assert own["nll"] == pytest.approx(RIGHT, abs=1e-5)
    assert own["nll_crop"] == pytest.approx(UNKNOWN, abs=1e-5)
    assert own["gain"] == pytest.approx(UNKNOWN - RIGHT, abs=1e-5)
    assert (other["kind"], other["tokens"]) == ("other", int((~key).sum()))
    assert "nll" not in other
    assert other["reason"] == f"{other['tokens']} other tokens are too few for a mean; at least 20 count"


# every encoding


@pytest.mark.parametrize("spec", wide(names()))
def test_every_encoding_has_finite_rows(spec: str) -> None:
    """Or is Unsupported beyond L, as its other measurements are; then nothing is left behind in the model."""
    made, sample = trained(spec), sample_of(RANDOM, SPANS, length=32, scored=4)
    analyses = {
        "excess": lambda: context_use.saturation(made, sample),
        "value": lambda: context_use.receptive(made, sample, 2),
        "entropy": lambda: dilution.dilution(made, sample, 2),
    }
    for column, rows in analyses.items():
        try:
            found = rows()
            assert found
            assert all(math.isfinite(row[column]) for row in found)
        except Unsupported:
            assert spec in ENDS
            made(torch.ones(1, L, dtype=torch.int64))
            assert not any(each._forward_pre_hooks for each in made.modules())
