"""How long the evaluations of a checkpoint take, before they begin. The clock is one that attention moves on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoints import LENGTH, make, write_corpus

from poscli import estimate
from poscli.checkpoints import matrix
from poscli.checkpoints.request import AdviceRequest
from poscli.runs.run import Run


class Clock:
    """Attention to T tokens takes T * T nanoseconds, and ten times as long under self-extend; all else takes none."""

    def __init__(self) -> None:
        self.now = 0.0
        self.attend = estimate.attend

    def monotonic(self) -> float:
        return self.now

    def __call__(self, engine: Any, encoding: Any, q: Any, *others: Any) -> Any:
        self.now += 1e-9 * q.shape[2] ** 2 * (10 if "self-extend" in encoding.name else 1)
        return self.attend(engine, encoding, q, *others)


def test_each_encoding_is_timed_and_the_checkpoint_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, models, load = Clock(), list[Any](), estimate.load_model
    monkeypatch.setattr(estimate, "attend", clock)
    monkeypatch.setattr(estimate, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(estimate, "CORE_SPEED", 1e3)  # so that it is worth while to measure

    def counted(run: Run, device: Any) -> Any:
        model = load(run, device)
        models.append(model)
        return model

    monkeypatch.setattr(estimate, "load_model", counted)
    folder, corpus = make("llama", tmp_path / "tiny"), write_corpus(tmp_path / "ships.jsonl")
    request = AdviceRequest(corpus=corpus, tokens=256, **{"as": ["yarn", "self-extend"]})
    asked = matrix.opened(str(folder), "4x", request, device_name="cpu", runs=tmp_path / "runs")
    jobs = estimate.evaluations(asked.work, why=False)
    seconds = {name: job.seconds for job in jobs for name in ("yarn", "self-extend") if name in job.encoding}
    passes = {name: each - estimate.STATISTICS_SECONDS for name, each in seconds.items()}
    assert passes["self-extend"] == pytest.approx(10 * passes["yarn"], rel=1e-6)
    layers, windows = 3, estimate.windows_of(asked.work[0].task, asked.work[0].settings)
    pairs = sum(sum(counts) * each.window**2 for each, counts in windows.items() if each.model == "full")
    assert passes["yarn"] == pytest.approx(1e-9 * layers * pairs, rel=1e-6)
    assert max(each.window for each in windows) == 4 * LENGTH
    assert len({id(model.stock) for model in models}) == 1
