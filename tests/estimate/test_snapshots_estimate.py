"""Estimates whole: the jobs of a command by what is done of them, and seconds by the count of operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lines import outcome, sections, table, told
from pieces_task import DOCUMENTS, Pieces, ended_run

from poscli import estimate
from poscli.config.run import CheckpointConfig, ModelConfig, Recalibration, RunConfig
from poscli.estimate import PlannedJob, Work
from poscli.evaluation.measure import EvaluationSetup
from poscli.evaluation.plan import Measurement
from poscli.evaluation.protocol import EvaluationSettings
from poscli.runs.run import evaluated_as
from poscli.runs.schema import FULL

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SETTINGS = EvaluationSettings(train_length=8, max_len=32, stride=4, tokens=48)
CHECKPOINT = CheckpointConfig(name="llama", source="hf:a/b", digest="0", parameters=10**9)


def config_of(**changes: Any) -> RunConfig:
    return RunConfig(**{"encoding": "alibi", "length": 8, "batch": 4, "tokens": 3200, "model": ModelConfig()} | changes)


def row(case: str, job: PlannedJob) -> dict[str, Any]:
    """A job with its memory in MiB and its time in milliseconds."""
    numbers = {"MiB": 1024 * job.memory_gib, "ms": 1000 * job.seconds}
    return {"case": case} | {each: getattr(job, each) for each in ("seed", "parameters", "steps", "done")} | numbers


def test_jobs(tmp_path: Path, snapshot: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings, evaluations and recalibrations by the state of their run."""
    task, rows, left = Pieces(DOCUMENTS), [], []
    states = {"not begun": None, "interrupted": 20, "oom": 99, "complete": 100, "diverged": 60}
    for seed, (state, step) in enumerate(states.items()):
        config = config_of(seed=seed)
        run = ended_run(tmp_path, task, config, state) if step is not None else None
        if run is not None and step is not None:
            run.set_status(state, step)
        for anew in (False, True):
            (job,) = estimate.trainings([config, config], task, tmp_path, CPU, anew=anew)
            rows.append(row(f"training {state}, {anew=}", job))
    run = ended_run(tmp_path, task, config_of())
    for evaluated in (False, True):
        monkeypatch.setattr(estimate, "is_evaluated", lambda *_, known=evaluated: known)
        for why, anew in ((False, False), (True, False), (False, True)):
            (job,) = estimate.evaluations([EvaluationSetup(run, task, SETTINGS, CPU)], why=why, anew=anew)
            rows.append(row(f"{evaluated=}, {why=}, {anew=}", job))
    broken = ended_run(tmp_path, task, config_of(seed=9), "diverged")
    for anew in (False, True):
        (job,) = estimate.evaluations([EvaluationSetup(broken, task, SETTINGS, CPU)], why=True, anew=anew)
        rows.append(row(f"of a training without an end, {anew=}", job))
    longer = Recalibration(tokens=640, length=16)
    other = evaluated_as(run, "none", longer)
    other.folder.mkdir(parents=True)
    for training, state, step in [
        ("interrupted", "", 0),
        ("diverged", "", 0),
        ("complete", "", 0),
        ("complete", "interrupted", 3),
        ("complete", "diverged", 3),
        ("complete", "complete", 10),
    ]:
        run.set_status(training, 50)
        if state:
            other.set_status(state, step)
        steps = [each.steps for each in estimate.recalibration_left(other, task, CPU)]
        left.append(f"of a {training} training, {state or 'not begun'}: {steps}")
    left.append(f"without one: {estimate.recalibration_left(run, task, CPU)}")
    broken.folder.rename(tmp_path / "renamed")
    (run.folder / "config.toml").write_text("damaged")
    found = {name: outcome(estimate.existing_run, tmp_path / name) for name in ("renamed", run.id, "absent")}
    parts = {"jobs": table(rows), "steps of recalibrations": "\n".join(left), "existing": told([*found.values()])}
    snapshot(sections(parts).replace(str(tmp_path), "HERE"), rounded=True)


def test_counts(snapshot: Callable[..., None]) -> None:
    """Seconds of a thousand steps and of windows by the count of operations, in milliseconds."""
    task, rows = Pieces(DOCUMENTS), []
    windows = {
        Measurement(64, 0, FULL): (100, 200),
        Measurement(16384, 0, FULL): (2, 0),
        Measurement(16384, 0, "window"): (0, 1),
    }
    for device in (CPU, GPU):
        for name, config in {"own": config_of(), "checkpoint": config_of(checkpoint=CHECKPOINT)}.items():
            works = [
                Work(config, task, device, steps=1000),
                Work(config, task, device, windows=windows),
                Work(config, task, device, steps=1000, windows=windows, share=1.5),
            ]
            rows.append({"device": device, "model": name} | {"ms": [1e3 * estimate.counted_seconds(x) for x in works]})
    paces = [1e3 * estimate.evaluation_at(2 * ((2e-5, slope),), windows, 64) for slope in (0.0, 1e-8)]
    snapshot(sections({"counted": table(rows), "at a pace": f"{paces[0]:.3f} {paces[1]:.3f}"}), rounded=True)


def test_what_does_not_fit(snapshot: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are refused if a third of what they need is more than what is free, losses if all of it is."""
    task = Pieces(DOCUMENTS)
    task.columns = {"accuracy": ("float64", "")}  # type: ignore[misc]
    lines = []
    for free in (2.0**28, 2.0**30, 2.0**32):
        monkeypatch.setattr("poscli.system.memory.free_memory", lambda _, free=free: free)
        lines.append(f"{free:.0f} bytes are free")
        for batch in (1, 16):
            lines.append(outcome(estimate.unaffordable_window, config_of(), 2**14, CPU, batch))
        windows = {Measurement(32, 0, FULL): (2**22, 0), Measurement(64, 0, FULL): (0, 2**21)}
        lines.append(outcome(estimate.refuse_unaffordable_losses, task, windows))
    snapshot("\n".join(lines) + "\n")
