"""Whole short trainings as tables of numbers: all that a run writes and says."""

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
from measured import digest, in_line, numbers
from pieces_task import Pieces

from poscli.config.run import ModelConfig, Recipe, RunConfig
from poscli.runs import checkpoint
from poscli.runs.run import Run
from poscli.system.errors import PoscliError
from poscli.tasks import Batch
from poscli.training import train as training
from poscli.training import trainer
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
    monkeypatch.setattr("poscli.training.optimizer.cpu_has_bfloat16", lambda: False)
    ticks = iter(range(100, 10**6, 2))
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def config(**changes: Any) -> RunConfig:
    """A run of ten steps with options that all differ from their defaults."""
    values: dict[str, Any] = {
        "encoding": "kerple-log+shaw(clip=3)", "task": "pieces", "corpus": "pieces", "length": 8, "batch": 6,
        "accumulate": 3, "tokens": 10 * 48 + 5, "model": TINY, "recipe": RECIPE, "seed": 2,
    }  # fmt: skip
    return RunConfig(**(values | changes))


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
    log = (run.folder / "train.csv").read_text(encoding="utf-8") if (run.folder / "train.csv").exists() else "no log"
    header, *rows = log.splitlines()
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
    run_config, gradient, lines = config(**RUNS["memory"]), Trainer.gradient, []

    def asked_to_stop(own: Trainer) -> tuple[float, float]:
        own.stop.signum = 15 if own.step == 6 else 0
        return gradient(own)

    monkeypatch.setattr(Trainer, "gradient", asked_to_stop)
    with pytest.raises(PoscliError) as caught:
        training.train(run_config, CountedPieces(), tmp_path, CPU)
    monkeypatch.setattr(Trainer, "gradient", gradient)
    run = next(Run(path.parent, run_config, {}) for path in tmp_path.glob("*/status.json"))
    lines += [f"{caught.value}", *written(run), *said(capsys, tmp_path)]
    (run.folder / "env.json").write_text(
        (run.folder / "env.json").read_text().replace('"engine": "', '"engine": "other ')
    )
    run = training.train(run_config, CountedPieces(), tmp_path, CPU)
    lines += [*written(run), *said(capsys, tmp_path)]
    snapshot("\n".join(lines) + "\n", rounded=True)


@pytest.mark.parametrize("kind", ["loss", "gradient", "memory", "error", "exit", "disk"])
def test_a_run_that_fails(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., None], capsys: Any
) -> None:
    """In its third step, and what the same command does then."""
    gradient, lines = Trainer.gradient, list[str]()
    found: dict[str, Any] = {
        "loss": (math.nan, 1.0), "gradient": (2.0, math.inf), "memory": RuntimeError("can't allocate memory: 5 bytes"),
        "error": ValueError("a bad value"), "exit": SystemExit(3), "disk": PoscliError("the disk is full"),
    }  # fmt: skip

    def failing(own: Trainer) -> tuple[float, float]:
        if own.step != 2:
            return gradient(own)
        if isinstance(found[kind], BaseException):
            raise found[kind]
        return found[kind]

    monkeypatch.setattr(Trainer, "gradient", failing)
    monkeypatch.setattr(trainer, "device_name", lambda device: f"a {device.type}")
    for what in (failing, gradient):
        monkeypatch.setattr(Trainer, "gradient", what)
        try:
            training.train(config(), CountedPieces(), tmp_path, CPU)
        except (ValueError, SystemExit, PoscliError) as error:
            lines.append(f"raised {type(error).__name__}: {error}")
        run = next(Run(path.parent, config(), {}) for path in tmp_path.glob("*/status.json"))
        files = [line for line in written(run) if not line.startswith((" ", "kerple", "env"))]
        lines += [*files[:5], "...", *files[-2:], *said(capsys, tmp_path)]
    snapshot("\n".join(lines) + "\n", rounded=True)
