"""The training log: what every column of train.csv says, and what encodings are told at each step."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from pieces_task import Pieces
from torch import Tensor
from toys import make

from poscli.config.run import ModelConfig, Recipe, RunConfig
from poscli.encodings.rope_dropped import RoPEDropped
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.runs.schema import TRAIN_COLUMNS, read_table
from poscli.system.seeds import generator
from poscli.training import trainer
from poscli.training.optimizer import Optimizer
from poscli.training.train import train
from poscli.training.trainer import Log

CPU = torch.device("cpu")
STEPS, BATCH, LENGTH = 12, 2, 8
BYTES_PER_TOKEN = 2.5
# Rises in round(0.25 * 12) = 3 steps and falls in the last round(0.5 * 12) = 6.
RECIPE = Recipe(warmup=0.25, decay=0.5, clip=0.01)
SCALE = [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]


class Clock:
    """A clock that stands still unless it is told to go on."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(1000.0)
    monkeypatch.setattr("poscli.training.trainer.time", SimpleNamespace(monotonic=made.monotonic))
    return made


def test_a_row_averages_the_steps_since_the_last_one(clock: Clock) -> None:
    log = Log(tokens_per_step=100, bytes_per_token=2.5)
    log.losses += [3.0, 5.0]
    clock.now += 4.0
    log.add_row(2, grad_norm=7.0, lr_scale=0.5)
    log.losses += [1.0, 2.0, 6.0]
    clock.now += 2.0
    log.add_row(5, grad_norm=8.0, lr_scale=0.25)
    first, second = log.rows
    assert first == {
        "step": 2,
        "tokens": 200,
        "nll": 4.0,
        "bpb": pytest.approx(4.0 * 1.4426950408889634 / 2.5),
        "grad_norm": 7.0,
        "lr_scale": 0.5,
        "tokens_per_s": 50.0,  # 200 tokens in 4 seconds
        "seconds": 4.0,
        "status": "ok",
    }
    assert second["nll"] == 3.0
    assert second["bpb"] == pytest.approx(3.0 * 1.4426950408889634 / 2.5)
    assert (second["tokens"], second["tokens_per_s"], second["seconds"]) == (500, 150.0, 6.0)
    assert first.keys() == TRAIN_COLUMNS.keys()


def test_a_resumed_log_counts_the_time_before_the_interruption_and_not_the_pause(clock: Clock) -> None:
    """2 steps in 3 seconds, a row; 2 steps in 4 seconds, a checkpoint, an hour's pause; 1 step in 1 second, a row."""
    log = Log(tokens_per_step=100, bytes_per_token=1.0)
    log.losses += [3.0, 5.0]
    clock.now += 3.0
    log.add_row(2, 1.0, 1.0)
    log.losses += [1.0, 2.0]
    clock.now += 4.0
    saved = log.state()
    clock.now += 3600.0
    resumed = Log(tokens_per_step=100, bytes_per_token=1.0)
    resumed.load(saved)
    resumed.losses.append(6.0)
    clock.now += 1.0
    row = resumed.add_row(5, 1.0, 1.0)
    assert (row["nll"], row["tokens"], row["seconds"]) == (3.0, 500, 8.0)
    assert row["tokens_per_s"] == pytest.approx(300 / 5)
    assert [each["step"] for each in resumed.rows] == [2, 5]


class Watched:
    """What a training did at every step, in order, seen from outside the trainer."""

    def __init__(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.progress: list[float] = []
        self.draws: list[int] = []
        self.applied: list[int] = []
        self.poisoned = -1  # the step at which the loss is to be infinite
        self.exploding = -1  # the step at which only the gradient is
        self._watch(monkeypatch)

    def _watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loss, clip, begin, step = Model.loss, Optimizer.clip, Model.begin_step, Optimizer.step

        def watched_loss(model: Model, *arguments: Tensor) -> Tensor:
            self.clock.now += 2.0  # a step takes two seconds
            found = loss(model, *arguments) * (math.inf if len(self.losses) == self.poisoned else 1)
            self.losses.append(float(found.detach()))
            return found

        def watched_clip(optimizer: Optimizer) -> Tensor:
            squares = [p.grad.double().square().sum() for p in optimizer.parameters]
            self.norms.append(math.sqrt(float(sum(squares))))
            return clip(optimizer) * (math.inf if len(self.norms) - 1 == self.exploding else 1)

        def watched_begin(model: Model, progress: float, draw: torch.Generator) -> None:
            self.progress.append(progress)
            self.draws.append(draw.initial_seed())
            begin(model, progress, draw)

        def watched_step(optimizer: Optimizer, n: int) -> None:
            self.applied.append(n)
            step(optimizer, n)

        monkeypatch.setattr(Model, "loss", watched_loss)
        monkeypatch.setattr(Model, "begin_step", watched_begin)
        monkeypatch.setattr(Optimizer, "clip", watched_clip)
        monkeypatch.setattr(Optimizer, "step", watched_step)


@pytest.fixture
def watched(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(trainer, "LOG_ROWS", 4)  # a row every 3 steps
    return Watched(clock, monkeypatch)


def trained(tmp_path, encoding: str = "rope", steps: int = STEPS) -> tuple[Run, pd.DataFrame]:
    config = RunConfig(
        encoding=encoding,
        task="pieces",
        seed=3,
        length=LENGTH,
        batch=BATCH,
        tokens=steps * BATCH * LENGTH,
        model=ModelConfig(layers=2, width=16, heads=2, mlp=32),
        recipe=RECIPE,
    )
    run = train(config, Pieces(bytes_per_token=BYTES_PER_TOKEN), tmp_path, CPU)
    return run, read_table(run.train_csv, TRAIN_COLUMNS)


def test_every_column_of_train_csv(watched: Watched, tmp_path) -> None:
    _, log = trained(tmp_path)
    assert log["step"].tolist() == [3, 6, 9, 12]
    assert log["tokens"].tolist() == [3 * 16, 6 * 16, 9 * 16, 12 * 16]
    means = [sum(watched.losses[n : n + 3]) / 3 for n in (0, 3, 6, 9)]
    assert log["nll"].tolist() == pytest.approx(means)
    assert log["bpb"].tolist() == pytest.approx([mean / math.log(2) / BYTES_PER_TOKEN for mean in means])
    norms = [watched.norms[n] for n in (2, 5, 8, 11)]  # of the last step, before it is clipped
    assert min(norms) > 2 * RECIPE.clip
    assert log["grad_norm"].tolist() == pytest.approx(norms, rel=1e-4)
    assert log["lr_scale"].tolist() == pytest.approx([SCALE[n] for n in (3, 6, 9, 12)])
    assert log["tokens_per_s"].tolist() == [BATCH * LENGTH / 2.0] * 4
    assert log["seconds"].tolist() == [6.0, 12.0, 18.0, 24.0]
    assert log["status"].tolist() == ["ok"] * 4
    assert watched.applied == list(range(STEPS))


def test_the_last_steps_have_a_row_if_the_rows_do_not_divide_them(watched: Watched, tmp_path) -> None:
    _, log = trained(tmp_path, steps=14)
    assert log["step"].tolist() == [3, 6, 9, 12, 14]
    assert log["nll"].iloc[-1] == pytest.approx(sum(watched.losses[12:]) / 2)
    assert log["tokens_per_s"].iloc[-1] == BATCH * LENGTH / 2.0
    assert log["seconds"].iloc[-1] == 28.0


def test_a_diverged_run_ends_in_a_row_that_says_so(watched: Watched, tmp_path) -> None:
    """The loss of the eighth step, number 7, is infinite: seven steps are done, and that step is not applied."""
    watched.poisoned = 7
    run, log = trained(tmp_path)
    assert (run.status()["state"], run.status()["step"]) == ("diverged", 7)
    assert watched.applied == list(range(7))
    assert log["step"].tolist() == [3, 6, 7]
    assert log["status"].tolist() == ["ok", "ok", "diverged"]
    last = log.iloc[-1]
    assert last["tokens"] == 7 * 16
    assert last["nll"] == last["bpb"] == math.inf
    assert not math.isfinite(last["grad_norm"])
    assert last["lr_scale"] == pytest.approx(SCALE[7])
    assert last["seconds"] == 16.0  # the failed step took time too


def test_an_infinite_gradient_of_a_finite_loss_is_divergence_too(watched: Watched, tmp_path) -> None:
    watched.exploding = 7
    run, log = trained(tmp_path)
    assert (run.status()["state"], run.status()["step"]) == ("diverged", 7)
    assert watched.applied == list(range(7))
    last = log.iloc[-1]
    assert (last["status"], last["grad_norm"]) == ("diverged", math.inf)
    assert last["nll"] == pytest.approx((watched.losses[6] + watched.losses[7]) / 2)


def test_encodings_are_told_the_share_of_the_steps_done(
    watched: Watched, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step begins with n / steps and a generator of its own, for each instance, inside compositions too."""
    told: list[tuple[int, float]] = []
    monkeypatch.setattr(RoPEDropped, "begin_step", lambda self, progress, draw: told.append((id(self), progress)))
    trained(tmp_path, "rope-dropped+window(4)")
    expected = [n / STEPS for n in range(STEPS)]
    assert watched.progress == expected
    assert watched.draws == [generator(3, "step", n).initial_seed() for n in range(STEPS)]
    assert len({instance for instance, _ in told}) == 2  # one per layer
    assert sorted(progress for _, progress in told) == sorted(expected * 2)


def test_rope_is_dropped_after_the_share_of_steps_that_its_option_says() -> None:
    """`recalibrate` = 1/4 of 12 steps: rotated in steps 0 to 8, and not in 9, 10 and 11, nor in evaluation."""
    encoding = make("rope-dropped(recalibrate=0.25)").train()
    dropped = []
    for n in range(STEPS):
        encoding.begin_step(n / STEPS, torch.Generator())
        dropped.append(encoding.dropped)
    assert dropped == [False] * 9 + [True] * 3
    encoding.begin_step(0.0, torch.Generator())
    assert not encoding.dropped
    assert encoding.eval().dropped


def test_a_step_trains_on_the_batch_of_its_number(watched: Watched, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    batch = Pieces.batch

    def spied(task: Pieces, **asked_for: int):
        asked.append(asked_for)
        return batch(task, **asked_for)

    monkeypatch.setattr(Pieces, "batch", spied)
    trained(tmp_path)
    assert asked == [{"size": BATCH, "length": LENGTH, "seed": 3, "step": n, "segments": 1} for n in range(STEPS)]
