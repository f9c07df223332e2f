"""What the log of a training says of right answers: on which windows, that asking changes nothing, and resumed runs."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import ModelConfig, RunConfig
from poscli.runs import checkpoint
from poscli.runs.results import training_log, write_training_log
from poscli.runs.run import Run
from poscli.runs.summary import training_summary
from poscli.system.errors import Interrupted
from poscli.tasks import EpisodeTask, open_task
from poscli.training import trainer
from poscli.training.train import train
from poscli.training.trainer import ASKED_WINDOWS, Questions, Trainer

CPU = torch.device("cpu")
LENGTH, BATCH, STEPS = 8, 64, 23
TINY = ModelConfig(layers=1, width=16, heads=2, mlp=16)


def configured(encoding: str = "rope", task: str = "passkey", batch: int = BATCH, steps: int = STEPS) -> RunConfig:
    values = {"preset": "nano", "length": LENGTH, "batch": batch, "tokens": LENGTH * batch * steps, "task": task}
    return resolve(TrainRequest(**values), encoding, seed=0, device=CPU).model_copy(update={"model": TINY})


def passkey() -> EpisodeTask:
    task = open_task("passkey", "stdlib", "bytes")
    assert isinstance(task, EpisodeTask)
    return task


def trained(folder: Path, encoding: str = "rope") -> Run:
    return train(configured(encoding), passkey(), folder, CPU)


class AlwaysThree(nn.Module):
    """A model that ranks token 3 first, whatever it reads."""

    device = CPU

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return torch.eye(passkey().vocab)[3].expand(*tokens_BT.shape, -1)


@pytest.mark.parametrize(("batch", "parts"), [(BATCH, 1), (10, 3)])
def test_the_share_is_that_of_the_answers_in_windows_which_are_not_scored(batch: int, parts: int) -> None:
    task = passkey()
    text = task.tuning().text(LENGTH)
    spans = text.tiles(LENGTH)[:ASKED_WINDOWS]
    answers = text.targets(spans, LENGTH)[text.counts(spans, LENGTH)]
    assert len(answers) == 2 * ASKED_WINDOWS  # a passkey has two digits
    asked = Questions(task, configured(batch=batch), 1, parts)
    assert asked.share_right(AlwaysThree()) == pytest.approx(np.mean(answers == 3))
    assert not np.array_equal(asked.batch.tokens, task.text(LENGTH).windows(spans, LENGTH))


@pytest.mark.parametrize(("batch", "rows_apart", "first"), [(64, 1, 10), (64, 4, 12), (1024, 1, 1), (32, 12, 24)])
def test_at_least_ten_windows_are_trained_on_for_each_that_is_asked(batch: int, rows_apart: int, first: int) -> None:
    asked = Questions(passkey(), configured(batch=batch, steps=50), rows_apart, 1)
    assert [step for step in range(1, 51) if asked.due(step)] == sorted({*range(first, 51, first), 50})


@pytest.mark.parametrize("encoding", ["rope", "randomized", "alibi"])
def test_asking_changes_no_weight(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trained(tmp_path / "a", encoding)
    monkeypatch.setattr(Questions, "due", lambda own, step: False)
    silent = trained(tmp_path / "b", encoding)
    a, b = (checkpoint.read_checkpoint(run.checkpoints, STEPS).model for run in (asked, silent))
    assert all(torch.equal(a[name], b[name]) for name in a)
    log = training_log(asked).set_index("step")["accuracy"]
    assert list(log.dropna().index) == [10, 20, 23]
    assert log.dropna().between(0, 1).all()
    assert "accuracy" not in training_log(silent)


def test_a_resumed_training_has_the_same_accuracies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, take_step = trained(tmp_path / "a"), Trainer.take_step

    def stopped_at_step_10(own: Trainer) -> bool:
        if own.step == 10:
            signal.raise_signal(signal.SIGINT)
        return take_step(own)

    monkeypatch.setattr(Trainer, "take_step", stopped_at_step_10)
    with pytest.raises(Interrupted):
        trained(tmp_path / "b")
    monkeypatch.undo()
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0)
    logs = (training_log(run)[["step", "nll", "accuracy"]] for run in (straight, trained(tmp_path / "b")))
    assert next(logs).equals(next(logs))


def test_a_log_whose_first_rows_are_of_an_earlier_version_can_be_read(tmp_path: Path) -> None:
    run = trained(tmp_path)
    rows = training_log(run).drop(columns="accuracy").to_dict("records")
    write_training_log(run, [*rows[:-1], rows[-1] | {"accuracy": 0.5}])
    read = training_log(run)["accuracy"]
    assert read.iloc[:-1].isna().all()
    assert read.iloc[-1] == 0.5
    write_training_log(run, rows)
    assert "accuracy" not in training_log(run)


def test_the_summary_of_a_training_ends_with_the_last_share(tmp_path: Path) -> None:
    run = trained(tmp_path)
    assert training_summary(run)["accuracy"] == training_log(run)["accuracy"].iloc[-1]
    write_training_log(run, training_log(run).drop(columns="accuracy").to_dict("records"))
    assert "accuracy" not in training_summary(run)
