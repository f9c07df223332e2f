"""Which windows an evaluation reads, what its record holds, and where positions count as even: by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pieces_task import PIECES, Pieces
from toys import make, model, perturbed

from poscli.bench.workloads import synthetic_task
from poscli.config.run import RunConfig
from poscli.equation.composed import entangled
from poscli.equation.operands import even_step
from poscli.evaluation import measure
from poscli.evaluation.baseline import BASELINES
from poscli.evaluation.baselines.crop import Crop
from poscli.evaluation.evaluate import eval_records
from poscli.evaluation.losses import Losses
from poscli.evaluation.measure import cost
from poscli.evaluation.plan import Measurement, Plan, record_of
from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings
from poscli.runs.run import Run
from poscli.runs.schema import perplexity
from poscli.system.errors import UsageError
from poscli.tasks.copy import Copy

SETTINGS = EvaluationSettings(train_length=8, max_len=16, tokens=32, stride=4)


@pytest.mark.parametrize("stride", [-1, 0, 9])
def test_a_stride_is_at_least_one_and_at_most_the_training_length(stride: int) -> None:
    with pytest.raises(UsageError, match=f"--stride {stride} must be between 1 and the training length 8"):
        EvaluationSettings(train_length=8, max_len=16, tokens=32, stride=stride)


def test_a_budget_takes_the_same_windows_in_every_version() -> None:
    """Five of the permutation [7 0 1 4 2 5 8 6 3] of nine segments: another draw would change published numbers."""
    documents = Documents(Pieces([[1] * 9 * 8]).text(8), SETTINGS, 8)
    spans = PROTOCOLS.get("nonoverlapping")().spans(documents, 8)
    assert spans.tolist() == [[0, 8 * (n + 1)] for n in (7, 0, 1, 4, 2)]  # (document, end)


@pytest.mark.parametrize(("trained", "recorded"), [("", False), ("alibi", True)])
def test_a_record_has_the_source_of_an_encoding_that_the_model_was_not_trained_with(
    tmp_path: Path, trained: str, recorded: bool
) -> None:
    """That of the trained encoding is part of the run's configuration."""
    run = Run(tmp_path, RunConfig(encoding="toys:Squares"), {}, trained=trained)
    record = record_of(run, SETTINGS)
    assert list(record.get("plugins", {})) == (["toys:Squares"] if recorded else [])


@pytest.mark.parametrize(
    ("positions", "step"),
    [
        ([3, 5, 7, 9], 2.0),
        ([0, 1, 2], 1.0),
        ([5.0, 5.25, 5.5], 0.25),
        ([0, 1, 4], None),
        ([0, 3, 4], None),
        ([7], None),
    ],
)
def test_positions_are_even_where_all_neighbours_are_equally_far(positions: list[float], step: float | None) -> None:
    assert even_step(torch.tensor(positions)) == step


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("alibi", "t5"), False),
        (("rope", "alibi"), False),
        (("rope", "xpos"), True),  # q and k are turned twice
        (("fox", "stick-breaking"), True),  # the potential of a query cancels in a softmax only
        (("rope", "stick-breaking"), False),
    ],
)
def test_parts_that_may_turn_differences_into_positions(parts: tuple[str, ...], expected: bool) -> None:
    assert entangled([make(part) for part in parts]) is expected


# ---- plans


@pytest.mark.parametrize(("share", "refused"), [(2, False), (4, True)])
def test_a_baseline_must_read_all_tokens_that_are_scored(
    share: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol answer scores L/2 tokens. Sliding reads what it scores in pieces, which fit any baseline."""

    class Part(Crop):
        """The window cut to a part of the training length."""

        def window(self, length: int, train_length: int) -> int:
            return train_length // share

    BASELINES.names()
    monkeypatch.setattr(BASELINES, "_plugins", BASELINES._plugins | {"part": Part})
    asked = EvaluationSettings(train_length=8, max_len=16, tokens=32, stride=4, baselines=("part",))
    assert Plan(synthetic_task(16), asked).variants("sliding") == ["full", "crop", "part"]
    if not refused:
        assert Plan(Copy(), asked).variants("answer") == ["full", "crop", "part"]
        return
    with pytest.raises(UsageError, match="the baseline part reads 2 tokens, and the protocol answer scores 4"):
        Plan(Copy(), asked)


def test_the_work_of_a_window_doubles_where_attention_reaches_2048_tokens() -> None:
    spans = np.zeros((3, 2), int)
    assert cost(Measurement(2048, 0, "full"), spans) == 3 * 2048 * 2
    assert cost(Measurement(1024, 0, "full"), spans) == 3 * 1024 * 1.5
    assert cost(Measurement(4096, 0, "window"), spans) == 3 * 4096  # whatever the window hides


def test_a_perplexity_is_the_exponential_of_the_loss_or_infinite() -> None:
    """No number that was not measured: neither a bound where the exponential is larger, nor one in JSON."""
    assert perplexity(2.0) == pytest.approx(math.e**2)
    assert perplexity(705.0) == math.exp(705.0)
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))
    table = pd.DataFrame({"encoding": ["rope", "rope"], "nll": [1e6, math.nan], "ppl": [math.inf, math.nan]})
    assert eval_records([table]) == [
        {"encoding": "rope", "nll": 1e6, "ppl": None},
        {"encoding": "rope", "nll": None, "ppl": None},
    ]


class Sliding(Pieces):
    protocols = ("sliding",)


def test_losses_measured_under_other_settings_are_not_taken_even_for_as_many_windows(tmp_path: Path) -> None:
    """Eight windows each: one ends at every token that counts, which are other tokens for every stride."""
    draw = np.random.default_rng(0)
    task = Sliding([draw.integers(1, PIECES, 60).tolist() for _ in range(4)])

    def losses(folder: str, stride: int) -> Losses:
        run = Run(tmp_path / folder, RunConfig(encoding="rope", length=8), {})
        asked = EvaluationSettings(train_length=8, max_len=8, tokens=8, stride=stride)
        setup = measure.EvaluationSetup(run, task, asked, torch.device("cpu"))
        (found,) = measure.Evaluation(setup, perturbed(model("rope", length=8))).measure().values()
        assert found.losses is not None
        return found.losses

    first, alone = losses("both", stride=4), losses("alone", stride=8)
    assert len(first.spans) == len(alone.spans) == 8
    assert not np.array_equal(first.nll, alone.nll)
    assert np.array_equal(losses("both", stride=8).nll, alone.nll)
