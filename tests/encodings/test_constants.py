"""Constants that are searched for on a trained model, and windows that are joined to its layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_model_by_hand import nats
from torch import Tensor
from toys import model, perturbed

from poscli.config.run import ModelConfig
from poscli.equation import Encoding
from poscli.evaluation.evaluate import search_constants
from poscli.evaluation.posthoc import with_joined
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.tasks.copy import Copy


@pytest.mark.parametrize("spec", ["alibi", "rope", "t5", "rope|t5"])
def test_joined_windows_alternate_where_layers_share_their_encoding_too(spec: str) -> None:
    made = model(spec, layers=4)
    assert [e.reach for e in with_joined(made, "window(3)|window(9)").encodings] == [3, 9, 3, 9]
    cut = with_joined(made, "window(3)")
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
