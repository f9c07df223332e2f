"""Training: resumed runs end with the same bits, divergence stops before the step, the optimizer and its schedule."""

import math
import signal
from functools import partial

import pytest
import torch
from pieces_task import Pieces

from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import ModelConfig, RunConfig
from poscli.model.initialise import fresh_model
from poscli.runs import checkpoint
from poscli.runs.run import Run, create, list_runs
from poscli.runs.schema import TRAIN_COLUMNS, read_table
from poscli.system.errors import Interrupted, PoscliError
from poscli.system.signals import Abandoned
from poscli.tasks import open_task
from poscli.training import trainer as train
from poscli.training.optimizer import Muon, orthogonal
from poscli.training.train import train as train_run
from poscli.training.trainer import Trainer

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
    return checkpoint.read_checkpoint(run.checkpoints, run.config.steps).model


@pytest.mark.parametrize("encoding", ["rope", "t5", "shaw", "cope", "alibi with memory"])
def test_an_interrupted_run_ends_with_the_same_bits(encoding, task, tmp_path, monkeypatch):
    straight = train_run(config(encoding), task, tmp_path / "a", CPU)

    def raise_at_step_5(self):
        if self.step == 5:
            signal.raise_signal(signal.SIGINT)
        return original(self)

    original = train.Trainer.take_step
    monkeypatch.setattr(train.Trainer, "take_step", raise_at_step_5)
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


def a_run(folder, memory: int = 0, **changes: object) -> Run:
    """A new run of four steps."""
    tiny = ModelConfig(layers=2, width=16, heads=2, mlp=32, memory=memory)
    values = {"encoding": "alibi", "task": "pieces", "length": 8, "batch": 2, "tokens": 4 * 16, "model": tiny} | changes
    return create(folder / "run", RunConfig(**values), {"schema": 1})


def trainer_of(run: Run, task: Pieces | None = None) -> Trainer:
    task = task or Pieces()
    return Trainer(run, fresh_model(run.config, task.vocab, CPU), task)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_abandoned_step_leaves_the_run_as_it_was_before_that_step(
    signum: int, code: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient = Trainer.gradient
    before: list[torch.Tensor] = []

    def abandoned(trainer: Trainer) -> tuple[float, float]:
        if trainer.step < 2:
            return gradient(trainer)
        before.append(trainer.memory.states[0])
        gradient(trainer)  # replaces the memory
        trainer.stop.signum = signum
        raise Abandoned

    monkeypatch.setattr(Pieces, "segments", lambda task, length: 100)
    monkeypatch.setattr(Trainer, "gradient", abandoned)
    run = a_run(tmp_path, memory=8)
    trainer = trainer_of(run)
    with run.locked(), pytest.raises(Interrupted, match=r"^stopped at step 2 of 4; the same") as caught:
        trainer.train()
    assert caught.value.exit_code == code
    assert (run.status()["state"], run.status()["step"]) == ("interrupted", 2)
    resumed = trainer_of(run)
    assert resumed.step == 2
    assert torch.equal(resumed.memory.states[0], before[0])


ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ValueError("bad"), "failed", "ValueError: bad"),
        (SystemExit(3), "failed", "SystemExit: 3"),
        (RuntimeError(ALLOCATOR), "oom", "step 1 does not fit the memory of "),
        (PoscliError("the disk is full"), "interrupted", ""),
    ],
)
def test_an_error_in_a_step_ends_the_run_unless_the_same_command_can_go_on(
    error: BaseException, status: str, message: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient = Trainer.gradient

    def failing(trainer: Trainer) -> tuple[float, float]:
        if trainer.step == 1:
            raise error
        return gradient(trainer)

    monkeypatch.setattr(Trainer, "gradient", failing)
    run = a_run(tmp_path)
    trainer = trainer_of(run)
    with run.locked():
        if status == "oom":
            assert trainer.train() == "oom"
        else:
            with pytest.raises(type(error)) as caught:
                trainer.train()
            assert caught.value is error
    assert run.status()["state"] == status
    assert run.status()["message"].startswith(message)
    assert run.status()["step"] == (0 if status == "interrupted" else 1)
    if status == "oom":
        assert run.status()["message"].endswith(
            "; give a smaller --batch, --length or --preset, or a larger --accumulate"
        )
    assert run.train_csv.exists() == (status != "interrupted")


def test_the_last_two_checkpoints_are_kept(task, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0)
    run = train_run(config(), task, tmp_path, CPU)
    assert checkpoint.steps(run.checkpoints) == [run.config.steps - 1, run.config.steps]


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
