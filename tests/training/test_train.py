"""Training: resumed runs end with the same bits, divergence stops before the step, the optimizer and its schedule."""

import itertools
import math
import signal
from functools import partial

import pytest
import torch

from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import RunConfig
from poscli.model.initialise import build_model, fresh_model
from poscli.runs import checkpoint
from poscli.runs.run import list_runs
from poscli.runs.schema import TRAIN_COLUMNS, read_table
from poscli.system.signals import Interrupted
from poscli.tasks import open_task
from poscli.training import trainer as train
from poscli.training.muon import Muon, orthogonal
from poscli.training.optimizer import Optimizer
from poscli.training.train import train as train_run

CPU = torch.device("cpu")


def config(encoding="rope", **changes) -> RunConfig:
    if encoding.endswith(" with memory"):
        encoding, changes = encoding.removesuffix(" with memory"), changes | {"model": {"memory": 24}}
    values = {"preset": "nano", "length": 32, "batch": 4, "tokens": 32 * 4 * 12} | changes
    return resolve(TrainRequest(**values), encoding, seed=0, device=CPU)


@pytest.fixture(scope="module")
def task():
    return open_task("language", "stdlib", "bytes")


def weights(run):
    return checkpoint.load(run.checkpoints, run.config.steps).model


@pytest.mark.parametrize("encoding", ["rope", "t5", "shaw", "cope", "alibi with memory"])
def test_an_interrupted_run_ends_with_the_same_bits(encoding, task, tmp_path, monkeypatch):
    straight = train_run(config(encoding), task, tmp_path / "a", CPU)

    def raise_at_step_5(self):
        if self.step == 5:
            signal.raise_signal(signal.SIGINT)
        return original(self)

    original = train.Trainer._step
    monkeypatch.setattr(train.Trainer, "_step", raise_at_step_5)
    with pytest.raises(Interrupted) as interrupted:
        train_run(config(encoding), task, tmp_path / "b", CPU)
    assert interrupted.value.exit_code == 130
    (stopped,) = list_runs(tmp_path / "b")
    assert stopped.status()["state"] == "interrupted"
    assert stopped.status()["step"] == 6

    monkeypatch.undo()
    resumed = train_run(config(encoding), task, tmp_path / "b", CPU)
    assert resumed.status()["state"] == "complete"
    a, b = weights(straight), weights(resumed)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
    log_a, log_b = (read_table(run.train_csv, TRAIN_COLUMNS) for run in (straight, resumed))
    assert log_a["nll"].tolist() == log_b["nll"].tolist()
    assert log_a["step"].tolist() == log_b["step"].tolist()


def test_the_loss_falls_and_the_log_is_whole(task, tmp_path):
    run = train_run(config(tokens=32 * 4 * 60), task, tmp_path, CPU)
    log = read_table(run.train_csv, TRAIN_COLUMNS)
    assert log["step"].iloc[-1] == 60
    assert log["tokens"].iloc[-1] == 60 * 128
    assert log["nll"].iloc[0] == pytest.approx(math.log(257), rel=0.05)  # an untrained model knows nothing
    assert log["nll"].iloc[-10:].mean() < log["nll"].iloc[0] - 1
    assert (log["status"] == "ok").all()


@pytest.mark.parametrize("change", [{"seed": 1}, {"length": 64}, {"encoding": "alibi"}, {"tokens": 128}])
def test_whatever_decides_the_result_is_in_the_name(change):
    assert config().model_copy(update=change).run_id("f") != config().run_id("f")
    assert config().run_id("f") != config().run_id("g")


def test_divergence_stops_before_the_optimizer_step(task, tmp_path, monkeypatch):
    def poisoned(self, *part):
        loss = original(self, *part)
        return loss * math.inf if self.step == 3 else loss

    original = train.Trainer._loss
    monkeypatch.setattr(train.Trainer, "_loss", poisoned)
    steps = []
    monkeypatch.setattr(Optimizer, "step", lambda self, step: steps.append(step))
    run = train_run(config(), task, tmp_path, CPU)
    assert run.status()["state"] == "diverged"
    assert "step 3" in run.status()["message"]
    assert steps == [0, 1, 2]
    assert read_table(run.train_csv, TRAIN_COLUMNS)["status"].iloc[-1] == "diverged"


def test_the_last_two_checkpoints_are_kept(task, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0)
    run = train_run(config(), task, tmp_path, CPU)
    assert checkpoint.steps(run.checkpoints) == [run.config.steps - 1, run.config.steps]


def test_muon_in_batches_is_torchs_muon(monkeypatch):
    monkeypatch.setattr("poscli.training.muon.orthogonal", partial(orthogonal, dtype=torch.bfloat16))
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
    monkeypatch.setattr("poscli.training.muon.cpu_has_bfloat16", lambda: native)
    x = torch.randn(3, 20, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(orthogonal(x), orthogonal(x, dtype))
    assert not torch.equal(orthogonal(x, torch.bfloat16), orthogonal(x, torch.float32))


def test_orthogonal_brings_singular_values_near_one():
    x = torch.randn(3, 20, 50, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(x, torch.float32))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_the_schedule_rises_stays_and_falls_to_zero():
    model = build_model(config().model, "none", vocab=257, length=32, seed=0)
    optimizer = Optimizer(model, config().recipe, steps=100)
    scales = [optimizer.scale(step) for step in range(101)]
    assert scales[0] == pytest.approx(1 / 5)  # 5 % of the steps
    assert scales[4:11] == [1.0] * 7
    assert scales[100] == 0  # over the last 90 %
    assert all(b < a for a, b in itertools.pairwise(scales[10:]))


def test_every_parameter_is_trained_by_exactly_one_group():
    for encoding in ("alibi(trainable=true)", "t5", "shaw", "fire", "cope", "learned", "kerple-log"):
        model = fresh_model(config(encoding), 257, CPU)
        optimizer = Optimizer(model, config().recipe, steps=10)
        owned = [id(p) for o in optimizer.optimizers.values() for g in o.param_groups for p in g["params"]]
        assert sorted(owned) == sorted(id(p) for p in model.parameters())
