"""What processes say and how they end, and what the hub's client believes: values by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_runner import NANO

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.data import hubclient
from poscli.data.hubclient import HubGaveUp, _Adapter
from poscli.sweep import suite
from poscli.sweep.job import Job, Outcome
from poscli.sweep.runners import Runner, Subprocess
from poscli.sweep.suite import run_jobs
from poscli.system import early
from poscli.system.device import device_of
from poscli.system.signals import Interrupted


def job(encoding: str = "alibi") -> Job:
    request = TrainRequest(preset="nano", length=NANO[3], batch=4, tokens=4096)
    config = resolve(request, encoding, 0, device_of("cpu"))
    return Job(config=config, extrapolate=ExtrapolateRequest(), runs=Path("runs"))


# ---- jobs


@pytest.mark.parametrize(("code", "signum"), [(-15, 15), (-2, 2), (143, 15), (130, 2)])
def test_a_process_that_a_signal_ended_interrupts_the_sweep(
    code: int, signum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code, stdout=""))
    with pytest.raises(Interrupted) as caught:
        Subprocess().run(job())
    assert caught.value.exit_code == 128 + signum


@pytest.mark.parametrize("code", [0, 1, 9, 137, -9])
def test_any_other_end_without_an_outcome_is_a_failure(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code, stdout=""))
    assert Subprocess().run(job()).error == f"the process of alibi, seed 0 ended with code {code} and no outcome"


def test_a_job_that_another_process_holds_waits_and_says_who(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    held = {"alibi": ["alibi-1 is being worked on by process 7 on here; wait for it to end"]}

    class Answers(Runner):
        def run(self, job: Job) -> Outcome:
            name = job.config.encoding
            return Outcome(held=held[name].pop()) if held.get(name) else Outcome(folders=(Path(name),))

    monkeypatch.setattr(suite, "note", said.append)
    monkeypatch.setattr(suite, "SECONDS_BETWEEN_TRIES", 0.0)
    found = run_jobs([job("alibi"), job("rope")], Answers(), said.append)
    assert found.folders == [Path("alibi"), Path("rope")]
    assert said == [
        "[1/2] alibi, seed 0",
        "alibi, seed 0 is put off: alibi-1 is being worked on by process 7 on here",
        "[2/2] rope, seed 0",
    ]


# ---- the end of a process


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("arguments", [["poscli", "ls"], ["poscli", "ls", "--json"]])
def test_a_process_that_leaves_says_so_once(told: bool, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, str]] = []
    ended: list[int] = []
    monkeypatch.setattr(early, "_told", told)
    monkeypatch.setattr(early, "_write", lambda stream, text: written.append((stream, text)))
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(sys, "argv", arguments)
    early.leave(128 + signal.SIGTERM)
    assert ended == [143]
    line = (2, f"error: {early.MESSAGE}\n")
    document = (1, f'{{"error": "{early.MESSAGE}", "exit_code": 143}}\n')
    assert written == ([] if told else [line, document][: len(arguments) - 1])


# ---- the hub


class Body:
    """The body of an answer, in pieces that take some seconds each."""

    def __init__(self, pieces: list[bytes], seconds: float, clock: SimpleNamespace) -> None:
        self.pieces, self.seconds, self.clock = [*pieces, b""], seconds, clock

    def read(self, size: int, decode_content: bool | None = None) -> bytes:
        self.clock.now += self.seconds
        return self.pieces.pop(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(hubclient, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(hubclient.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10)
    return made


def test_a_body_that_comes_in_time_is_whole_and_clears_the_failures(clock: SimpleNamespace) -> None:
    adapter = _Adapter()
    adapter.failures = 2
    pieces = [b"a" * hubclient.SLOWEST_BYTES_PER_SECOND * 5] * 20
    stream: Iterator[bytes] = adapter._watched(Body(pieces, 4.0, clock).read)()
    assert list(stream) == pieces
    assert clock.now == 21 * 4.0
    assert adapter.failures == 0


def test_a_body_that_drips_is_given_up_once_the_timeout_is_over(clock: SimpleNamespace) -> None:
    stream = _Adapter()._watched(Body([b"a"] * 20, 4.0, clock).read)()
    assert [next(stream), next(stream)] == [b"a", b"a"]
    with pytest.raises(HubGaveUp, match="too slowly: 3 bytes in 12 s"):
        next(stream)


@pytest.mark.parametrize(("status", "watched"), [(200, True), (404, True), (500, False)])
def test_bodies_are_watched_unless_the_hub_itself_failed(
    status: int, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw: Any = SimpleNamespace(read1=lambda *_: b"", stream="as it was")
    answer = SimpleNamespace(status_code=status, url="http://hub", raw=raw)
    monkeypatch.setattr(hubclient.HTTPAdapter, "send", lambda *_, **__: answer)
    _Adapter().send(SimpleNamespace())
    assert (raw.stream != "as it was") == watched
