"""What is said of work that goes on: the share done, the time left."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from types import SimpleNamespace

import pytest

from poscli.system import progress


def test_what_is_left_of_a_job_is_told_by_its_pace_since_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 15 seconds where stderr is no terminal, and every second in a file.

    What was done before counts as done, not as work of this time.
    """
    now = SimpleNamespace(now=1000.0)
    said: list[str] = []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.now))
    monkeypatch.setattr(progress, "err", SimpleNamespace(is_terminal=False, print=lambda text, **_: said.append(text)))
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 15.0)  # as before the tests began
    monkeypatch.delenv("POSCLI_QUIET", raising=False)
    file = tmp_path / "progress.json"
    with progress.Meter("job", 100, done=40, file=file) as meter:
        for seconds, amount, words, written in (
            (14.9, 5, "early", "early"),
            (0.1, 5, "first", "early"),
            (15.0, 10, "second", "second"),
            (14.0, 10, "not", "not"),
            (1.0, 0, "third", "third"),
        ):
            now.now += seconds
            meter.advance(amount, words)
            assert json.loads(file.read_text())["words"] == written
        work = {"label": "job", "done": 70, "total": 100, "words": "third", "seconds_left": 45.0}
        assert json.loads(file.read_text()) == work | {"process": os.getpid(), "host": platform.node()}
    assert not file.exists()
    assert said == [
        "job   50%  first  1:15 left",  # 10 units in 15 s; 50 are left
        "job   60%  second  1:00 left",  # 20 in 30 s; 40 are left
        "job   70%  third  0:45 left",  # 30 in 45 s; 30 are left
    ]
    with progress.Meter("small", 1) as meter:
        now.now += 15.0
        meter.advance(0.25, "a part")
    assert said[3:] == ["small   25%  a part  0:45 left"]
    monkeypatch.setenv("POSCLI_QUIET", "1")
    with progress.Meter("job", 100) as meter:
        now.now += 100.0
        meter.advance(5)
    assert len(said) == 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"), (59.4, "0:59"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00"), (172_799, "47:59:59"),
        (172_800, "2 days"), (63_115_199, "730 days"), (63_115_200, "2 years"), (31_557_600_000, "1000 years"),
        (31_557_600_001, "1,000 years or more"),
    ],
)  # fmt: skip
def test_durations_are_in_units_that_people_read(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text
