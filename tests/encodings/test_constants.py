"""Constants of encodings put on a trained model: the papers' formulas in plain numbers, and the search for constants.

The model is trained with rope of base 500 and L = 64; inputs have L' = 256 tokens, so s = 4. D = 16: 8 pairs.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from test_model_by_hand import nats
from torch import Tensor
from toys import model, perturbed

from poscli.config.run import ModelConfig
from poscli.equation import Encoding
from poscli.evaluation.evaluate import search_constants
from poscli.evaluation.posthoc import joined, posthoc_spec, with_encoding
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.tasks.copy import Copy

D, L, LONG, BASE = 16, 64, 256, 500.0
TRAINED = "rope(base=500.0)"
PAIRS = range(D // 2)
THETA = [BASE ** (-2 * m / D) for m in PAIRS]


def ntk(s: float) -> list[float]:
    """Base' = base s^(D/(D-2))."""
    return [(BASE * s ** (D / (D - 2))) ** (-2 * m / D) for m in PAIRS]


def yarn_by_pairs(s: float, fast: float = 32, slow: float = 1) -> list[float]:
    """The ramp from the pair that turns `fast` times within L to the one that turns `slow` times, whole m."""
    first, last = (D * math.log(L / (turns * 2 * math.pi)) / (2 * math.log(BASE)) for turns in (fast, slow))
    low, high = max(math.floor(first), 0), min(math.ceil(last), D - 1)
    gammas = [1 - min(max((m - low) / (high - low), 0), 1) for m in PAIRS]
    return [theta * (gamma + (1 - gamma) / s) for theta, gamma in zip(THETA, gammas, strict=True)]


def by_turns(s: float, slow: float, fast: float) -> list[float]:
    """Yarn's equation, and llama3's: linear in the number of turns within L, L theta / 2 pi."""
    turns = [L * theta / (2 * math.pi) for theta in THETA]
    gammas = [min(max((r - slow) / (fast - slow), 0), 1) for r in turns]
    return [theta * gamma + theta * (1 - gamma) / s for theta, gamma in zip(THETA, gammas, strict=True)]


def divided(s: float) -> list[float]:
    return [theta / s for theta in THETA]


YARN_4, LONGROPE_4 = 0.1 * math.log(4) + 1, math.sqrt(1 + math.log(4) / math.log(64))

# Of each target: the frequencies and the factor on cos and sin, at 256 tokens.
CONSTANTS: dict[str, tuple[list[float], float]] = {
    "rope": (THETA, 1.0),
    "rope-linear": (divided(4), 1.0),
    "rope-linear(factor=3)": (divided(3), 1.0),
    "rope-ntk": (ntk(4), 1.0),
    "rope-ntk(factor=3)": (ntk(3), 1.0),
    "rope-dynamic": (ntk(2 * 4 - 1), 1.0),
    "rope-dynamic(factor=3)": (ntk(3 * 4 - 2), 1.0),
    "yarn": (yarn_by_pairs(4), YARN_4),
    "yarn(factor=8)": (yarn_by_pairs(8), 0.1 * math.log(8) + 1),
    "yarn(beta_fast=5, beta_slow=2)": (yarn_by_pairs(4, 5, 2), YARN_4),
    "yarn(ramp=turns)": (by_turns(4, 1, 32), YARN_4),
    "llama3": (by_turns(4, 1, 4), 1.0),
    "llama3(factor=8, low=0.5, high=2)": (by_turns(8, 0.5, 2), 1.0),
    "longrope": (yarn_by_pairs(4), LONGROPE_4),
    "longrope(start=ntk)": (ntk(4), LONGROPE_4),
    "longrope(start=pi, factor=9)": (divided(9), math.sqrt(1 + math.log(9) / math.log(64))),
    "p-rope(p=0.5)": ([*THETA[:4], 0, 0, 0, 0], 1.0),
    "p-rope": ([*THETA[:6], 0, 0], 1.0),
}


@pytest.fixture(scope="module")
def trained() -> Model:
    config = ModelConfig(layers=2, width=2 * D, heads=2, mlp=32)
    return build_model(config, TRAINED, vocab=18, length=L, seed=0)


def moved(trained: Model, target: str) -> Encoding:
    """The encoding of the first layer of the trained model under a target."""
    full = posthoc_spec(TRAINED, target, trained.config.shape(trained.length, trained.vocab))
    return with_encoding(trained, full, TRAINED).encodings[0]


@pytest.mark.parametrize("target", CONSTANTS)
def test_the_frequencies_and_the_temperature(trained: Model, target: str) -> None:
    """The base of training is taken over. Angles are position times frequency, in queries and in keys."""
    theta, amplitude = (torch.tensor(x, dtype=torch.float64) for x in CONSTANTS[target])
    encoding, pos = moved(trained, target), torch.arange(LONG)
    angles = pos[:, None] * theta
    x = torch.randn(1, 2, LONG, D, generator=torch.Generator().manual_seed(0)).double()
    a, b = x[..., : D // 2], x[..., D // 2 :]
    cos, sin = amplitude * angles.cos(), amplitude * angles.sin()
    expected = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    for blank in (encoding.query, encoding.key):
        torch.testing.assert_close(blank(x, pos), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("target", ["rope-linear", "rope-ntk", "rope-dynamic", "yarn", "llama3", "longrope"])
def test_without_a_factor_nothing_changes_up_to_the_training_length(trained: Model, target: str) -> None:
    rope, other, pos = moved(trained, "rope"), moved(trained, target), torch.arange(L)
    x = torch.randn(1, 2, L, D, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(other.query(x, pos), rope.query(x, pos), rtol=0, atol=1e-12)
    one_more = torch.arange(L + 1)
    y = torch.cat([x, x[:, :, :1]], dim=2)
    assert float((other.query(y, one_more) - rope.query(y, one_more)).abs().max()) > 1e-3


def test_wrappers_follow_the_training_length(trained: Model) -> None:
    """Logn sharpens by log n / log L past L = 64, ssmax by log n / log L everywhere, interpolated squeezes by L'/L."""
    n = torch.tensor([1, 2, 64, 128, 256])
    ratios = torch.tensor([[0, math.log(2), math.log(64), math.log(128), math.log(256)]]).double() / math.log(64)
    for spec, expected in (("logn", ratios.clamp(min=1)), ("ssmax", ratios)):
        found = moved(trained, spec).temperature(n).double()
        torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-6, atol=1e-7)
    interpolated = moved(trained, "interpolated")
    assert interpolated.positions(torch.arange(LONG)).tolist() == [k / 4 for k in range(LONG)]
    assert interpolated.positions(torch.arange(L)).tolist() == list(range(L))
    assert moved(trained, "interpolated(3)").positions(torch.arange(4)).tolist() == [k / 3 for k in range(4)]
    assert (moved(trained, "window").reach, moved(trained, "window(9)").reach) == (64, 9)
    assert moved(trained, "sink(3)+window").sinks == 3


@pytest.mark.parametrize("spec", ["alibi", "rope", "t5", "rope|t5"])
def test_joined_windows_alternate_where_layers_share_their_encoding_too(spec: str) -> None:
    made = model(spec, layers=4)
    assert [e.reach for e in joined(made, "window(3)|window(9)").encodings] == [3, 9, 3, 9]
    cut = joined(made, "window(3)")
    assert [e.reach for e in cut.encodings] == [3] * 4
    assert len(set(cut.encodings)) == len(set(made.encodings))  # what layers share they still share


class Searching(Encoding):
    """Measures the loss as often as it may, under factors 1, 2, ... on the queries, and keeps the last factor."""

    name, evaluations = "searching", 3

    def __init__(self, at: Encoding) -> None:
        super().__init__(at.shape)
        self.factor, self.found, self.told = 1.0, [], None

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * self.factor

    def search(self, loss, evaluations, draw, factor=None) -> float:
        self.told = (evaluations, draw.initial_seed(), factor)
        for n in range(evaluations):
            self.factor = n + 1.0
            self.found.append(loss())
        return min(self.found)


class Counting(Copy):
    """Copying, which remembers the batches asked for. Its windows have between 1 and L/2 targets that count."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.checked = [], []

    def batch(self, **asked):
        self.asked.append(asked)
        return super().batch(**asked)

    def check(self, length: int) -> None:
        self.checked.append(length)


def searching() -> tuple[Model, Searching]:
    made = perturbed(build_model(ModelConfig(layers=1, width=16, heads=2, mlp=16), "none", vocab=18, length=8, seed=0))
    encoding = made.layers[0].attention.encoding = Searching(made.encodings[0])
    return made, encoding


def test_a_search_measures_nats_per_counted_target_of_four_training_windows(capsys: pytest.CaptureFixture[str]) -> None:
    task, (made, encoding) = Counting(), searching()
    search_constants(made, task, 32)
    assert task.asked == [{"size": 4, "length": 32, "seed": 0, "step": 0}]
    assert task.checked == [32]
    evaluations, _, factor = encoding.told
    assert (evaluations, factor) == (3, 4.0)  # 32 / 8
    windows = Copy().batch(size=4, length=32, seed=0, step=0)
    assert len(set(windows.counted.sum(axis=1).tolist())) > 1  # else a mean of means would do
    by_hand = []
    for n in range(3):
        encoding.factor = n + 1.0
        with torch.no_grad():
            logits = made(torch.from_numpy(windows.tokens[:, :-1])).double()
        each = [nats(row, torch.from_numpy(goal)) for row, goal in zip(logits, windows.tokens[:, 1:], strict=True)]
        by_hand.append(float(torch.cat(each)[np.concatenate(windows.counted)].mean()))
    assert encoding.found == pytest.approx(by_hand, rel=1e-5)
    assert len({round(value, 4) for value in by_hand}) == 3
    assert f"fitted to 4 training windows of 32 tokens: {min(by_hand):.3f} nats per token" in capsys.readouterr().err


def test_there_is_no_search_up_to_the_training_length_or_without_a_budget() -> None:
    task, (made, encoding) = Counting(), searching()
    search_constants(made, task, 8)
    encoding.evaluations = 0
    search_constants(made, task, 32)
    search_constants(model("rope"), task, 32)
    assert not encoding.found
    assert not task.asked
