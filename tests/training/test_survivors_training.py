"""What training and its model do at their edges: segments, abandoned steps, compiling a single layer."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest
import torch
from pieces_task import Pieces
from toys import LENGTH, WIDTH, model

from poscli.config.run import ModelConfig, RunConfig
from poscli.model.compiled import compile_layers
from poscli.model.flops import rough_seconds
from poscli.model.initialise import fresh_model
from poscli.runs.results import write_training_log
from poscli.runs.run import Run, create
from poscli.system.errors import PoscliError
from poscli.system.signals import Abandoned, Interrupted
from poscli.training import train as training
from poscli.training.trainer import Trainer

CPU = torch.device("cpu")


def a_run(folder, memory: int = 0, **changes: object) -> Run:
    """A new run of four steps."""
    tiny = ModelConfig(layers=2, width=16, heads=2, mlp=32, memory=memory)
    values = {"encoding": "alibi", "task": "pieces", "length": 8, "batch": 2, "tokens": 4 * 16, "model": tiny} | changes
    return create(folder / "run", RunConfig(**values), {"schema": 1})


def trainer_of(run: Run, task: Pieces | None = None) -> Trainer:
    task = task or Pieces()
    return Trainer(run, fresh_model(run.config, task.vocab, CPU), task)


# ---- the trainer


@pytest.mark.parametrize(("memory", "in_text", "segments"), [(8, 100, 8), (8, 8, 8), (8, 5, 5), (0, 100, 1)])
def test_a_memory_lasts_eight_segments_or_as_many_as_the_text_has(
    memory: int, in_text: int, segments: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pieces, "segments", lambda task, length: in_text)
    assert trainer_of(a_run(tmp_path, memory)).segments == segments


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_abandoned_step_leaves_the_run_as_it_was_before_that_step(
    signum: int, code: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient = Trainer._gradient
    before: list[torch.Tensor] = []

    def abandoned(trainer: Trainer) -> tuple[float, float]:
        if trainer.step < 2:
            return gradient(trainer)
        before.append(trainer.memory.states[0])
        gradient(trainer)  # replaces the memory
        trainer.stop.signum = signum
        raise Abandoned

    monkeypatch.setattr(Pieces, "segments", lambda task, length: 100)
    monkeypatch.setattr(Trainer, "_gradient", abandoned)
    run = a_run(tmp_path, memory=8)
    trainer = trainer_of(run)
    with run.locked(), pytest.raises(Interrupted, match=r"^stopped at step 2 of 4; the same") as caught:
        trainer.train()
    assert caught.value.exit_code == code
    assert (run.status()["state"], run.status()["step"]) == ("interrupted", 2)
    resumed = trainer_of(run)
    assert resumed.step == 2
    assert torch.equal(resumed.memory.states[0], before[0])


def test_words_beside_the_bar_are_those_of_the_last_row(tmp_path) -> None:
    trainer = trainer_of(a_run(tmp_path))
    assert trainer._words() == ""
    trainer.log.rows += [{}, {"nll": 1.25, "bpb": 1.5, "tokens_per_s": 12_340.0}]
    assert trainer._words() == "loss 1.250  1.500 bits/byte  12.3k tokens/s"


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
    gradient = Trainer._gradient

    def failing(trainer: Trainer) -> tuple[float, float]:
        if trainer.step == 1:
            raise error
        return gradient(trainer)

    monkeypatch.setattr(Trainer, "_gradient", failing)
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


def test_a_checkpoint_is_saved_after_half_a_minute_and_at_the_end(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    gradient = Trainer._gradient

    def slow(trainer: Trainer) -> tuple[float, float]:
        clock[0] += 11.0
        return gradient(trainer)

    saved: list[int] = []
    monkeypatch.setattr("poscli.training.trainer.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Trainer, "_gradient", slow)
    monkeypatch.setattr(Trainer, "save", lambda trainer: saved.append(trainer.step))
    run = a_run(tmp_path, tokens=8 * 16)
    trainer = trainer_of(run)
    with run.locked():
        assert trainer.train() == "complete"
    assert saved == [3, 6, 8]
    assert (run.status()["state"], run.status()["step"]) == ("complete", 8)


# ---- a run from its configuration


@pytest.mark.parametrize(
    ("state", "begun", "said"),
    [
        ("complete", 0, []),
        ("complete", 2, ["going on from step 2 of 4"]),
        ("diverged", 0, ["ended as diverged: why"]),
        ("oom", 3, ["going on from step 3 of 4", "ended as oom: why"]),
    ],
)
def test_what_is_said_of_a_training_is_where_it_goes_on_and_how_it_failed(
    state: str, begun: int, said: list[str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trained:
        step = begun

        def __init__(self, run: Run, *_: object, **__: object) -> None:
            self.run = run

        def train(self) -> str:
            write_training_log(self.run, [])
            self.run.set_status(state, 4, "why")
            return state

    notes: list[str] = []
    monkeypatch.setattr(training, "Trainer", Trained)
    monkeypatch.setattr(training, "note", notes.append)
    config = a_run(tmp_path).config
    run = training.train(config, Pieces(), tmp_path / "runs", CPU)
    assert run.folder.parent == tmp_path / "runs"
    assert notes == [f"{run.id}: {line}" if line.startswith("going") else f"{run.id} {line}" for line in said]
    notes.clear()
    assert training.train(config, Pieces(), tmp_path / "runs", CPU).id == run.id
    expected = {
        "complete": f"{run.id} is complete, but its last checkpoint is damaged",  # there is none
        "diverged": f"{run.id} is diverged already: nothing to train",
        "oom": f"{run.id}: going on from step 3 of 4",  # it may fit another time
    }
    assert notes[0] == expected[state]


# ---- the model


def test_rough_times_are_those_of_a_gpu_or_of_all_threads_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert rough_seconds(80e9, 3, CPU) == pytest.approx(1.003)  # twice 40e9 operations per second, 1 ms per layer
    assert rough_seconds(5e12, 0, torch.device("cuda")) == pytest.approx(1.0)
    assert rough_seconds(10e12, 1000, torch.device("cuda")) == pytest.approx(3.0)


@pytest.mark.parametrize("layers", [1, 3])
def test_all_layers_are_compiled_and_the_first_is_tried(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    made: list[dict[str, object]] = []

    def compiled(eager, **options: object):
        made.append(options)
        number = len(made) - 1
        return lambda x: tried.append(number) or eager(x)

    monkeypatch.setattr(torch, "compile", compiled)
    chosen = model("rope", layers=layers)
    compile_layers(chosen, torch.zeros(2, LENGTH, WIDTH))
    assert made == [{"dynamic": False, "backend": "inductor"}] * layers
    assert tried == [0]
    assert all("feed_forward" in vars(layer) for layer in chosen.layers)
