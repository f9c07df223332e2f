"""Training as tables of numbers: groups, schedules, Muon, whole short runs and their files, logs, parts, estimates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from measured import digest, in_line, number, numbers, wave
from pieces_task import Pieces
from toys import model

from poscli.config.run import ModelConfig, Recalibration, Recipe, RunConfig
from poscli.model.cache import Memory
from poscli.runs import checkpoint
from poscli.runs.checkpoint import Checkpoint
from poscli.runs.run import Run
from poscli.system.errors import PoscliError, UsageError
from poscli.system.ranks import Ranks
from poscli.tasks import Batch
from poscli.training import estimate, handover, log, recalibrate, trainer
from poscli.training import train as training
from poscli.training.log import Log
from poscli.training.muon import Muon, orthogonal
from poscli.training.optimizer import Optimizer
from poscli.training.parts import parts_of
from poscli.training.trainer import Trainer

CPU = torch.device("cpu")
TINY = ModelConfig(layers=2, width=16, heads=2, mlp=24)
RECIPE = Recipe(
    matrix_lr=0.03, embedding_lr=0.2, head_lr=0.02, encoding_lr=0.07, momentum=0.8, beta2=0.7, weight_decay=0.3,
    warmup=0.3, decay=0.5, clip=0.6,
)  # fmt: skip


@pytest.fixture(autouse=True)
def the_same_on_every_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Muon multiply in float32, and clocks tick two seconds whenever they are read."""
    monkeypatch.setattr("poscli.training.muon.cpu_has_bfloat16", lambda: False)
    ticks = iter(range(100, 10**6, 2))
    for module in (log, trainer):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def config(**changes: Any) -> RunConfig:
    """A run of ten steps with options that all differ from their defaults."""
    values: dict[str, Any] = {
        "encoding": "kerple-log+shaw(clip=3)", "task": "pieces", "corpus": "pieces", "length": 8, "batch": 6,
        "accumulate": 3, "tokens": 10 * 48 + 5, "model": TINY, "recipe": RECIPE, "seed": 2,
    }  # fmt: skip
    return RunConfig(**(values | changes))


# ---- the optimizer


def test_groups_and_their_rates(snapshot: Callable[..., None]) -> None:
    """Which parameters of a model each optimizer trains, at which peak rate; those that nothing trains are left out."""
    lines: list[str] = []
    for spec in ("none", "alibi(trainable=true)", "fire(threshold=2)", "learned", "path+window(5)|cope", "urpe"):
        own = model(spec)
        names = {id(p): re.sub(r"layers\.\d\.|attention\.", "", name) for name, p in own.named_parameters()}
        optimizer = Optimizer(own, RECIPE, steps=10)
        for name, each in optimizer.optimizers.items():
            for group, peak in zip(each.param_groups, optimizer.peaks[name], strict=True):
                rest = {key: group[key] for key in ("momentum", "betas", "eps", "weight_decay") if key in group}
                owned = " ".join(dict.fromkeys(names[id(p)] for p in group["params"]))
                line = f"{name} {peak} {rest} {len(group['params'])}: {owned}"
                lines += [] if any(line in known for known in lines) else [f"{spec}: {line}"]
    snapshot("\n".join(lines) + "\n")


def test_schedules(snapshot: Callable[..., None]) -> None:
    """The factor on the rates at each step, for shares of warmup and decay that meet, overlap or leave a plateau."""
    lines = []
    for steps, warmup, decay in (
        (1, 0.05, 0.9),
        (2, 0.5, 0.5),
        (7, 0.3, 0.5),
        (10, 0.0, 1.0),
        (10, 0.6, 0.8),
        (12, 0.2, 0.25),
    ):
        optimizer = Optimizer(model("none"), Recipe(warmup=warmup, decay=decay), steps)
        lines.append(f"{steps} steps, {warmup}, {decay}: {numbers(optimizer.scale(step) for step in range(steps + 1))}")
    snapshot("\n".join(lines) + "\n", rounded=True)


def test_steps_of_muon(snapshot: Callable[..., None]) -> None:
    """Matrices of equal, transposed and other shapes, of two groups, after each of four steps."""
    matrices = [torch.nn.Parameter(wave(*size, start=n).float()) for n, size in enumerate(SIZES)]
    groups = [{"params": matrices[:4]}, {"params": matrices[4:], "lr": 0.05, "weight_decay": 0.5, "momentum": 0.5}]
    muon = Muon(groups, lr=0.2, momentum=0.8, weight_decay=0.1)
    lines = [f"orthogonal {size}: {digest(orthogonal(wave(2, *size)))}" for size in ((3, 3), (2, 7), (1, 4))]
    for step in range(4):
        for n, matrix in enumerate(matrices):
            matrix.grad = wave(*matrix.shape, start=7 * step + n).float() / (step + 1)
        muon.step()
        found = (f"{digest(m.detach())} {digest(muon.state[m]['momentum_buffer'])}" for m in matrices)
        lines += in_line(f"step {step}:", found)
    snapshot("\n".join(lines) + "\n", rounded=True)


SIZES = ((3, 5), (5, 3), (3, 5), (4, 4), (2, 9), (9, 2))


def test_steps_of_the_optimizer(snapshot: Callable[..., None]) -> None:
    """The norm before and after clipping, and the weights of each group after steps; a state that is loaded goes on."""
    lines = []
    for recipe in (RECIPE, Recipe(clip=100.0, weight_decay=0.0, warmup=0.0, decay=1.0)):
        own = model("kerple-log+shaw(clip=3)", layers=1)
        optimizer = Optimizer(own, recipe, steps=4)
        for step in range(4):
            for n, parameter in enumerate(optimizer.parameters):
                parameter.grad = wave(*parameter.shape, start=step + n).float() / 10
            before = float(optimizer.clip())
            after = float(torch.stack([p.grad.norm() for p in optimizer.parameters if p.grad is not None]).norm())
            optimizer.step(step)
            grouped = [group["params"] for each in optimizer.optimizers.values() for group in each.param_groups]
            found = (digest(torch.cat([p.detach().flatten() for p in group])) for group in grouped)
            lines.append(f"step {step}: {number(before)} {number(after)} {' '.join(found)}")
            if step == 1:
                tensors = optimizer.tensors()
                optimizer = Optimizer(own, recipe, steps=4)
                optimizer.load(tensors | {"memory/0": torch.zeros(1)})
        optimizer.zero_grad()
        lines.append(f"gradients left: {sum(p.grad is not None for p in own.parameters())}")
        lines += in_line("state:", state_of(optimizer.tensors()))
    snapshot("\n".join(lines) + "\n", rounded=True)


def state_of(tensors: dict[str, torch.Tensor]) -> Iterator[str]:
    """One number on all tensors of a state whose names differ by a number, and their sizes."""
    kinds: dict[str, list[torch.Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        kinds.setdefault(re.sub(r"\b\d+\b", "*", name).removesuffix(".weight"), []).append(tensor.flatten())
    for kind, own in kinds.items():
        yield f"{len(own)} {kind} {sum(map(len, own))} {digest(10 * torch.cat(own))}"


# ---- whole runs

RUNS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "one part, another seed": {"accumulate": 1, "seed": 5},
    "memory": {
        "model": TINY.model_copy(update={"memory": 8}), "encoding": "alibi(trainable=true)", "batch": 2,
        "accumulate": 2, "tokens": 11 * 16,
    },
    "positions drawn anew": {"encoding": "randomized+rope", "accumulate": 2, "tokens": 3 * 48},
    "dropped rope": {"encoding": "rope-dropped(recalibrate=0.5)", "tokens": 4 * 48},
}  # fmt: skip


@pytest.mark.parametrize("kind", RUNS)
def test_a_run(kind: str, tmp_path: Path, snapshot: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """All that a run writes and says, but what differs from machine to machine."""
    run = training.train(config(**RUNS[kind]), CountedPieces(), tmp_path, CPU)
    lines = [*written(run), *said(capsys, tmp_path)]
    again = training.train(run.config, CountedPieces(), tmp_path, CPU)
    lines += [f"again: {again.status()['state']} at step {again.status()['step']}", *said(capsys, tmp_path)]
    snapshot("\n".join(lines) + "\n", rounded=True)


class CountedPieces(Pieces):
    """Some targets do not count, in some windows none."""

    def batch(self, *, size: int, length: int, seed: int, step: int, segments: int = 1) -> Batch:
        drawn = np.random.default_rng([seed, step // segments, step % segments])
        counted = drawn.random((size, length)) < np.linspace(0, 1, size)[:, None] + 0.2 * (size < 3)
        return Batch(drawn.integers(1, self.vocab, (size, length + 1)), counted)

    def segments(self, length: int) -> int:
        return 3


def said(capsys: pytest.CaptureFixture[str], folder: Path) -> list[str]:
    """The lines of stderr and stdout, without places, times and engines, in which machines differ."""
    out, err = capsys.readouterr()
    masked = re.sub(r"\d[\d.,]*k? tokens/s", "# tokens/s", (out + err).replace(str(folder), "FOLDER"))
    return [f"said: {line}" for line in masked.splitlines() if line.strip() and "runs on the engine" not in line]


def written(run: Run) -> Iterator[str]:
    """Lines on the files of a run: their names, the status, the log without times, and what its checkpoints hold."""
    yield f"{run.id}: " + " ".join(sorted(str(p.relative_to(run.folder)) for p in run.folder.rglob("*") if p.is_file()))
    status = {key: value for key, value in run.status().items() if key in ("state", "step", "message")}
    yield f"status {json.dumps(status)}"
    env = json.loads((run.folder / "env.json").read_text(encoding="utf-8"))
    yield f"env {json.dumps({key: env[key] for key in ('schema', 'corpus', 'parameters', 'compiled', 'ranks')})}"
    header, *rows = run.train_csv.read_text(encoding="utf-8").splitlines()
    yield header
    for row in rows:
        step, tokens, *found, seconds, state = row.split(",")
        yield f"{step},{tokens}: {numbers(float(each or 'nan') for each in found)} {float(seconds):.2f} {state}"
    if (last := checkpoint.load_last(run.checkpoints)) is not None:
        yield f"checkpoint at {last.state['step']}: {sorted(last.state)}, log {sorted(last.state['log'])}"
        yield from in_line("model:", state_of(last.model))
        yield from in_line("optimizer:", state_of(last.optim))


def test_a_run_that_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """After seven of eleven steps, with a row of the log for every two: the files then, and when it has gone on."""
    monkeypatch.setattr(trainer, "LOG_ROWS", 4)
    run_config, gradient, lines = config(**RUNS["memory"]), Trainer._gradient, []

    def asked_to_stop(own: Trainer) -> tuple[float, float]:
        own.stop.signum = 15 if own.step == 6 else 0
        return gradient(own)

    monkeypatch.setattr(Trainer, "_gradient", asked_to_stop)
    with pytest.raises(PoscliError) as caught:
        training.train(run_config, CountedPieces(), tmp_path, CPU)
    monkeypatch.setattr(Trainer, "_gradient", gradient)
    run = next(Run(path.parent, run_config, {}) for path in tmp_path.glob("*/status.json"))
    lines += [f"{caught.value}", *written(run), *said(capsys, tmp_path)]
    (run.folder / "env.json").write_text(
        (run.folder / "env.json").read_text().replace('"engine": "', '"engine": "other ')
    )
    run = training.train(run_config, CountedPieces(), tmp_path, CPU)
    lines += [*written(run), *said(capsys, tmp_path)]
    snapshot("\n".join(lines) + "\n", rounded=True)


@pytest.mark.parametrize("kind", ["loss", "gradient", "memory", "error", "exit"])
def test_a_run_that_fails(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., None], capsys: Any
) -> None:
    """In its third step, and what the same command does then."""
    gradient, lines = Trainer._gradient, list[str]()
    found: dict[str, Any] = {
        "loss": (math.nan, 1.0), "gradient": (2.0, math.inf), "memory": RuntimeError("can't allocate memory: 5 bytes"),
        "error": ValueError("a bad value"), "exit": SystemExit(3),
    }  # fmt: skip

    def failing(own: Trainer) -> tuple[float, float]:
        if own.step != 2:
            return gradient(own)
        if isinstance(found[kind], BaseException):
            raise found[kind]
        return found[kind]

    monkeypatch.setattr(Trainer, "_gradient", failing)
    monkeypatch.setattr(trainer, "device_name", lambda device: f"a {device.type}")
    for what in (failing, gradient):
        monkeypatch.setattr(Trainer, "_gradient", what)
        try:
            training.train(config(), CountedPieces(), tmp_path, CPU)
        except (ValueError, SystemExit) as error:
            lines.append(f"raised {type(error).__name__}: {error}")
        run = next(Run(path.parent, config(), {}) for path in tmp_path.glob("*/status.json"))
        files = [line for line in written(run) if not line.startswith((" ", "kerple", "env"))]
        lines += [*files[:5], "...", *files[-2:], *said(capsys, tmp_path)]
    snapshot("\n".join(lines) + "\n", rounded=True)


# ---- the log, the parts of a batch, what goes between ranks


def test_rows_of_the_log(snapshot: Callable[..., None]) -> None:
    """Rows after some steps, after none, and after a pause, of which a checkpoint may know."""
    own, lines = Log(96, 2.5), []
    for losses in ([1.5, 2.5, 2.0], [], [0.25]):
        own.losses += losses
        lines.append(own.add_row(len(own.rows) * 3 + len(losses), 0.5 + len(losses), 0.75, "ok" if losses else "odd"))
    own.losses += [3.0, 4.0]
    other = Log(96, 2.5)
    other.load(state := own.state())
    lines += [state | {"rows": len(state["rows"])}, other.add_row(9, 1.0, 0.5)]
    older = Log(96, 2.5)
    older.load({key: value for key, value in own.state().items() if key != "spent"})
    lines += [older.add_row(9, 1.0, 0.5), other.state() | {"rows": len(other.rows)}]
    snapshot("\n".join(shown(line) for line in lines) + "\n", rounded=True)


def shown(row: dict[str, Any]) -> str:
    """A row as text with few digits."""
    return " ".join(f"{key}={number(value) if isinstance(value, int | float) else value}" for key, value in row.items())


def test_parts_of_batches(snapshot: Callable[..., None]) -> None:
    """The windows of each part, its share of the targets, and its targets, for ranks and parts of several numbers."""
    tokens = np.arange(48).reshape(12, 4)
    counted = np.arange(36).reshape(12, 3) % 5 < np.arange(12)[:, None] % 3
    lines = []
    for of_targets in (None, counted):
        for rank, count, accumulate in ((0, 1, 1), (0, 1, 4), (1, 2, 3), (2, 3, 2), (5, 6, 1)):
            for part in parts_of(Batch(tokens, of_targets), rank, count, accumulate):
                inputs, targets = part.tensors(CPU)
                lines.append(f"rank {rank} of {count}: {inputs[:, 0].tolist()} {part.share:.4f} {targets[-1].tolist()}")
    snapshot("\n".join(lines) + "\n", rounded=True)


def test_a_memory_of_ranks(monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., None]) -> None:
    """What each rank takes of the memory of a checkpoint, and what is gathered from two ranks."""
    stored = {
        "memory/0": torch.arange(24.0).view(6, 2, 2),
        "memory/1": torch.arange(12.0).view(6, 2, 1),
        "adamw/0": torch.ones(6),
    }
    lines = [f"from one rank: {handover.from_first(last := Checkpoint({}, stored, {'step': 3})) is last}"]
    memory = Memory(2)
    memory.load(stored, CPU)
    for count, rank in ((1, 0), (2, 1), (3, 0)):
        monkeypatch.setattr(handover, "ranks", lambda count=count, rank=rank: Ranks(rank, count))
        lines += [
            f"{rank} of {count}: {name} {x.flatten().tolist()}" for name, x in handover.own_memory(stored).items()
        ]
    monkeypatch.setattr(handover, "gathered", lambda x: [x, 100 + x])
    lines += [f"gathered {name} {list(x.shape)} {digest(x)}" for name, x in handover.gathered_memory(memory).items()]
    snapshot("\n".join(lines) + "\n", rounded=True)


# ---- estimates and recalibrations


def test_estimates_of_trainings(monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., None]) -> None:
    """Seconds and bytes by the count of operations and by measurement, for runs that have begun, are long, or large."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(estimate, "measured_step", lambda config, task, device: 0.001 * config.batch)
    monkeypatch.setattr(estimate, "training_bytes", lambda config, device, vocab: 2.0**17 * vocab)
    large = {"encoding": "gaussian(terms=4000)"}
    lines = []
    for free in (2.0**40, 2.0**20):
        monkeypatch.setattr("poscli.system.memory.available", lambda device, free=free: free)
        for changes in ({}, {"tokens": 10**7}, {"tokens": 10**9, "batch": 12}, large, {"length": 32}):
            own = config(**changes)
            found = [estimate.estimate_training(own, Pieces(), CPU, done) for done in (0, 7, 10**8)]
            assert {each.bytes for each in found} == {2.0**20}
            seconds, step = numbers(each.seconds for each in found), estimate.rough_step(own, Pieces(), CPU)
            unusual = estimate.is_unusual(own, Pieces(), CPU)
            lines.append(f"{changes} {own.steps} steps: {seconds} s, roughly {step:.3e} each, unusual {unusual}")
    snapshot("\n".join(lines) + "\n", rounded=True)


def test_measured_steps(monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., None]) -> None:
    """The seconds of a step by a clock that only steps move, for batches of several sizes, and refusals."""
    left, taken, clock, step, lines = list[float](), list[int](), [0.0], Optimizer.step, list[str]()

    def timed(own: Optimizer, number: int) -> None:
        clock[0] += left.pop(0)
        taken.append(number)
        step(own, number)

    monkeypatch.setattr(estimate, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Optimizer, "step", timed)
    for seconds, changes in (
        ((0.5, 0.25), {}), ((5.0, 1.0), {}), ((1.0, 0.4), {"batch": 30, "accumulate": 5}),
        ((0.9, 0.1, 0.3, 0.2), {"length": 16}), ((0.03, 0.01, 0.02) * 4, {"batch": 4, "accumulate": 1}),
    ):  # fmt: skip
        for most in (16384, 20):
            monkeypatch.setattr(estimate, "PROBE_TOKENS", most)
            left[:], taken[:] = seconds, []
            found = estimate.measured_step(config(**changes), Pieces(), CPU)
            lines.append(f"{seconds} {changes} of {most} tokens: {number(found)} after {len(taken)} steps")
    for limits in ({"available": lambda device: 2.0**12}, {"PROBE_SECONDS": 0.0}, {"PROBE_SECONDS": -1.0}):
        left[:] = [0.5] * 12
        for name, value in limits.items():
            monkeypatch.setattr(estimate, name, value)
        try:
            lines.append(number(estimate.measured_step(config(), Pieces(), CPU)))
        except UsageError as refused:
            lines.append(str(refused))
        monkeypatch.setattr(estimate, "available", lambda device: 2.0**40)
    snapshot("\n".join(lines) + "\n", rounded=True)


def test_configurations_of_recalibrations(tmp_path: Path, snapshot: Callable[..., None]) -> None:
    """What a short training under another encoding changes, for windows longer and shorter than those of the run."""
    lines, trained = [], config().model_dump()
    for tokens, length, rate in ((100, 8, 0.5), (1000, 24, 0.1), (999, 400, 1.0)):
        recalibration = Recalibration(tokens=tokens, length=length, rate=rate)
        run = SimpleNamespace(config=config(encoding="none"), recalibration=recalibration)
        found = recalibrate.config_of(run)  # type: ignore[arg-type]
        changed = {key: value for key, value in found.model_dump().items() if value != trained[key]}
        lines.append(f"{recalibration}: {found.steps} steps, {json.dumps(changed)}")
    snapshot("\n".join(lines) + "\n", rounded=True)
