"""Training: resumed runs end with the same bits, what a row of the log says, and how steps that fail end."""

import math
import signal
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from pieces_task import Pieces

from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import ModelConfig, RunConfig
from poscli.model.initialise import fresh_model
from poscli.runs import checkpoint
from poscli.runs.run import create, list_runs
from poscli.runs.schema import TRAIN_COLUMNS, read_table
from poscli.system.errors import Interrupted
from poscli.system.signals import Abandoned
from poscli.training import trainer
from poscli.training.optimizer import Muon, orthogonal
from poscli.training.train import train
from poscli.training.trainer import Log, Trainer

CPU = torch.device("cpu")


def config(encoding="rope", memory=0, **changes) -> RunConfig:
    values = {"preset": "nano", "length": 32, "batch": 4, "tokens": 32 * 4 * 12, "model": {"memory": memory}} | changes
    return resolve(TrainRequest(**values), encoding, seed=0, device=CPU)


def weights(run):
    return checkpoint.read_checkpoint(run.checkpoints, run.config.steps).model


@pytest.mark.parametrize(("encoding", "memory"), [("rope", 0), ("t5", 0), ("cope", 0), ("alibi", 24)])
def test_an_interrupted_run_ends_with_the_same_bits_and_two_checkpoints(encoding, memory, task, tmp_path, monkeypatch):
    asked, take_step = config(encoding, memory), Trainer.take_step
    straight = train(asked, task, tmp_path / "a", CPU)

    def raise_at_step_5(self):
        if self.step == 5:
            signal.raise_signal(signal.SIGINT)
        return take_step(self)

    monkeypatch.setattr(Trainer, "take_step", raise_at_step_5)
    with pytest.raises(Interrupted) as interrupted:
        train(asked, task, tmp_path / "b", CPU)
    monkeypatch.undo()
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0)
    assert interrupted.value.exit_code == 130
    (stopped,) = list_runs(tmp_path / "b")
    assert (stopped.status()["state"], stopped.status()["step"]) == ("interrupted", 6)
    resumed = train(asked, task, tmp_path / "b", CPU)
    assert resumed.status()["state"] == "complete"
    assert checkpoint.steps(resumed.checkpoints) == [11, 12]
    a, b = weights(straight), weights(resumed)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    log_a, log_b = (read_table(run.folder / "train.csv", TRAIN_COLUMNS)[["step", "nll"]] for run in (straight, resumed))
    assert log_a.equals(log_b)


@pytest.mark.parametrize(
    ("error", "seconds", "state", "step"),
    [
        (GeneratorExit, 0, "interrupted", 5),  # which nothing catches, as if the process was killed
        (RuntimeError, 0, "failed", 5),
        (RuntimeError, math.inf, "failed", 0),
        (MemoryError, math.inf, "oom", 0),
    ],
)
def test_a_run_that_stops_in_a_step_says_the_step_of_its_last_checkpoint(
    error, seconds, state, step, task, tmp_path, monkeypatch
):
    """From there the same command goes on, as estimates count on."""
    take_step = Trainer.take_step

    def stopped_at_step_5(self):
        if self.step == 5:
            raise error
        return take_step(self)

    monkeypatch.setattr(Trainer, "take_step", stopped_at_step_5)
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", seconds)
    with nullcontext() if state == "oom" else pytest.raises(error):
        train(config(), task, tmp_path, CPU)
    (run,) = list_runs(tmp_path)
    assert (run.status()["state"], run.status()["step"]) == (state, step)


def test_the_loss_falls_and_the_log_is_whole(task, tmp_path):
    run = train(config(tokens=32 * 4 * 60), task, tmp_path, CPU)
    log = read_table(run.folder / "train.csv", TRAIN_COLUMNS)
    assert (log["step"].iloc[-1], log["tokens"].iloc[-1]) == (60, 60 * 128)
    assert log["nll"].iloc[0] == pytest.approx(math.log(257), rel=0.05)  # an untrained model knows nothing
    assert log["nll"].iloc[-10:].mean() < log["nll"].iloc[0] - 1
    assert (log["status"] == "ok").all()


def test_a_row_averages_the_steps_since_the_last_one_and_a_pause_does_not_count(monkeypatch):
    """2 steps in 3 seconds, a row; 2 steps in 4 seconds, a checkpoint, an hour's pause; 1 step in 1 second, a row."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    log = Log(tokens_per_step=100, bytes_per_token=2.5)
    log.losses += [3.0, 5.0]
    clock.now += 3.0
    log.add_row(2, grad_norm=7.0, lr_scale=0.5)
    log.losses += [1.0, 2.0]
    clock.now += 4.0
    saved = log.state()
    clock.now += 3600.0
    resumed = Log(tokens_per_step=100, bytes_per_token=2.5)
    resumed.load(saved)
    resumed.losses.append(6.0)
    clock.now += 1.0
    resumed.add_row(5, grad_norm=8.0, lr_scale=0.25)
    assert [[*row.values()] for row in resumed.rows] == [
        [2, 200, 4.0, pytest.approx(4.0 / math.log(2) / 2.5), 7.0, 0.5, pytest.approx(200 / 3), 3.0, "ok"],
        [5, 500, 3.0, pytest.approx(3.0 / math.log(2) / 2.5), 8.0, 0.25, pytest.approx(300 / 5), 8.0, "ok"],
    ]
    assert resumed.rows[0].keys() == TRAIN_COLUMNS.keys()


def trainer_of(run) -> Trainer:
    task = Pieces()
    return Trainer(run, fresh_model(run.config, task.vocab, CPU), task)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_abandoned_step_leaves_the_run_as_it_was_before_that_step(signum, code, tmp_path, monkeypatch):
    gradient, before = Trainer.gradient, []

    def abandoned(own: Trainer) -> tuple[float, float]:
        if own.step < 2:
            return gradient(own)
        before.append(own.memory.states[0])
        gradient(own)  # replaces the memory
        own.stop.signum = signum
        raise Abandoned

    monkeypatch.setattr(Pieces, "segments", lambda task, length: 100)
    monkeypatch.setattr(Trainer, "gradient", abandoned)
    run = a_run(tmp_path, memory=8)
    stopped = trainer_of(run)
    with run.locked(), pytest.raises(Interrupted, match=r"^stopped at step 2 of 4; the same") as caught:
        stopped.train()
    assert caught.value.exit_code == code
    assert (run.status()["state"], run.status()["step"]) == ("interrupted", 2)
    resumed = trainer_of(run)
    assert resumed.step == 2
    assert torch.equal(resumed.memory.states[0], before[0])


TINY = ModelConfig(layers=2, width=16, heads=2, mlp=32)


def a_run(folder, memory=0, **changes):
    shape = TINY.model_copy(update={"memory": memory})
    values = {"encoding": "alibi", "task": "pieces", "length": 8, "batch": 2, "tokens": 4 * 16, "model": shape}
    return create(folder / "run", RunConfig(**(values | changes)), {"schema": 1})


@pytest.mark.parametrize(("memory", "in_text", "segments"), [(8, 100, 8), (8, 8, 8), (8, 5, 5), (0, 100, 1)])
def test_a_memory_lasts_eight_segments_or_as_many_as_the_text_has(memory, in_text, segments, tmp_path, monkeypatch):
    monkeypatch.setattr(Pieces, "segments", lambda task, length: in_text)
    assert trainer_of(a_run(tmp_path, memory)).segments == segments


def test_a_checkpoint_is_saved_after_half_a_minute_and_at_the_end(tmp_path, monkeypatch):
    clock, ticks, saved, gradient = (
        SimpleNamespace(now=0.0),
        iter([29.5, 1.0, 0.5, 29.0, 2.0, 3.0]),
        [],
        Trainer.gradient,
    )

    def slow(own):
        clock.now += next(ticks)
        return gradient(own)

    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(Trainer, "gradient", slow)
    monkeypatch.setattr(Trainer, "save", lambda own: saved.append(own.step))
    run = a_run(tmp_path, tokens=6 * 16)
    trained = trainer_of(run)
    with run.locked():
        assert trained.train() == "complete"
    assert saved == [2, 5, 6]


@pytest.mark.parametrize(("steps", "rows"), [(399, 399), (400, 200), (401, 201)])
def test_a_log_has_two_hundred_rows_or_up_to_twice_as_many(steps, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "gradient", lambda own: (1.0, 1.0))
    trained = trainer_of(a_run(tmp_path, tokens=steps * 16))
    monkeypatch.setattr(trained.optimizer, "step", lambda step: None)
    assert all(trained.take_step() for _ in range(steps))
    assert (len(trained.log.rows), trained.log.rows[-1]["step"]) == (rows, steps)


def test_muon_in_batches_is_torchs_muon(monkeypatch):
    monkeypatch.setattr("poscli.training.optimizer.orthogonal", partial(orthogonal, dtype=torch.bfloat16))
    torch.manual_seed(0)
    shapes = [(16, 16), (16, 16), (24, 16), (16, 24), (24, 16)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    options = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = [Muon(ours, **options), torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **options)]
    for _ in range(4):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(ours, theirs, strict=True):
        # The same arithmetic in bfloat16, whose sums a batched product may order otherwise.
        torch.testing.assert_close(p, q, rtol=0, atol=4 * 0.02 * 0.2 * 24**0.5 * 2**-7)


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_muon_multiplies_in_what_the_cpu_multiplies_fast(native, dtype, monkeypatch):
    monkeypatch.setattr("poscli.training.optimizer.cpu_has_bfloat16", lambda: native)
    x = torch.randn(3, 20, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(orthogonal(x), orthogonal(x, dtype))
    assert not torch.equal(orthogonal(x, torch.bfloat16), orthogonal(x, torch.float32))
