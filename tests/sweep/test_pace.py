"""How long a suite takes: what is measured, how often, and how the rest is scaled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.evaluation.plan import Measurement
from poscli.runs.schema import FULL
from poscli.sweep import pace
from poscli.sweep.pace import BEGIN_SECONDS, STATISTICS_SECONDS, Pace, Rough

CPU = torch.device("cpu")
TASK = SimpleNamespace(vocab=257)


def config(encoding: str, seed: int = 0):
    return resolve(TrainRequest(preset="nano", length=32, batch=4, tokens=1280), encoding, seed, CPU)


@pytest.fixture
def measured(monkeypatch) -> list[str]:
    """A step takes 0.5 s, five times what the count of operations says, and measuring it 10; passes 1e-3 per token."""
    said: list[str] = []
    clock = [0.0]

    def step(config, task, device) -> float:
        said.append(f"step of {config.encoding}")
        clock[0] += 10
        return 0.5

    def window(config, task, device) -> tuple[float, float]:
        said.append(f"pass of {config.encoding}")
        return 1e-3, 1e-6

    monkeypatch.setattr(pace, "measured_step", step)
    monkeypatch.setattr(pace, "measured_pass", window)
    monkeypatch.setattr(pace, "rough_step", lambda config, task, device: 0.1)
    monkeypatch.setattr(pace, "rough_evaluation", lambda config, task, windows, device: 2.0)
    monkeypatch.setattr(pace, "is_unusual", lambda config, task, device: config.encoding == "learned")
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return said


def test_seeds_share_a_measurement(measured) -> None:
    known = Pace(1e6)
    seconds = [known.training(config("alibi", seed), TASK, CPU, 100) for seed in (0, 1, 2)]
    assert seconds == [BEGIN_SECONDS + 50] * 3
    assert measured == ["step of alibi"]
    assert known.training(config("alibi"), TASK, CPU, 0) == 0


def test_measuring_stops_in_time_and_the_rest_is_scaled(measured) -> None:
    known = Pace(0.0)  # 15 seconds of measuring, which two steps take
    encodings = ("alibi", "rope", "t5", "learned")
    seconds = [known.training(config(each), TASK, CPU, 10) for each in encodings]
    assert measured == ["step of alibi", "step of rope", "step of learned"]  # the last may not fit, and must be tried
    assert seconds == [BEGIN_SECONDS + 5] * 4  # of t5, ten rough steps of 0.1, which are five times as long


def test_an_evaluation_is_paced_by_length(measured) -> None:
    known = Pace(1e6)
    windows = {Measurement(64, 0, FULL): 10, Measurement(64, 0, "window"): 10}
    expected = STATISTICS_SECONDS + 640 * (1e-3 + 64e-6) + 640 * 1e-3
    assert known.evaluation(config("alibi"), TASK, windows, CPU) == pytest.approx(expected)
    assert known.evaluation(config("alibi"), TASK, {}, CPU) == 0
    known._left = 0.0
    scaled = 2.0 * (expected - STATISTICS_SECONDS) / 2.0
    assert known.evaluation(config("rope"), TASK, windows, CPU) == pytest.approx(STATISTICS_SECONDS + scaled)
    assert measured == ["pass of alibi"]


def test_a_rough_clock_counts(measured) -> None:
    assert Rough().training(config("alibi"), TASK, CPU, 10) == 1.0
    assert Rough().evaluation(config("alibi"), TASK, {}, CPU) == 2.0
