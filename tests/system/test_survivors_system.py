"""What processes say and how they end, and what the hub's client believes: values by hand."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_runner import NANO

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.data import hubclient
from poscli.data.hubclient import HubGaveUp, _Adapter
from poscli.sweep import __main__ as worker_process
from poscli.sweep.job import Job, Outcome
from poscli.system import early, files, memory, progress, streams
from poscli.system.device import device_of
from poscli.system.registry import Registry, subclass_of
from poscli.system.signals import Interrupted, stoppable
from poscli.tasks import Task


def job(encoding: str = "alibi") -> Job:
    request = TrainRequest(preset="nano", length=NANO[3], batch=4, tokens=4096)
    config = resolve(request, encoding, 0, device_of("cpu"))
    return Job(config=config, extrapolate=ExtrapolateRequest(), runs=Path("runs"))


# ---- jobs


@pytest.mark.parametrize(("ends", "code"), [("well", 0), ("with an error", 0), (2, 130), (15, 143)])
def test_a_worker_process_ends_with_0_unless_a_signal_stopped_it(
    ends: str | int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Outcome(error="no luck") if ends == "with an error" else Outcome(folders=(Path("a"),))

    def perform(given: Job, open_task: object) -> Outcome:
        assert given == job()
        if isinstance(ends, int):
            raise Interrupted("stopped", ends)
        return outcome

    monkeypatch.setattr(worker_process, "perform", perform)
    printed = io.StringIO()
    assert worker_process.main(io.StringIO(2 * (job().model_dump_json(by_alias=True) + "\n")), printed) == code
    assert printed.getvalue() == ("" if code else 2 * (outcome.model_dump_json() + "\n"))


@pytest.mark.parametrize(
    ("text", "cause"),
    [("{}", "the key 'config' is missing"), ("no JSON", "Invalid JSON")],
)
def test_a_worker_process_refuses_what_is_no_job(text: str, cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert worker_process.main(io.StringIO(text), io.StringIO()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith(f"error: stdin is not a job ({cause}")
    assert err.endswith("); it takes what Job.model_dump_json writes\n")


# ---- the end of a process


def stack(*files: str) -> Any:
    """The innermost frame of a stack of functions in these files, the outermost first."""
    frame = None
    for name in files:
        frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=name), f_back=frame)
    return frame


IMPORTING = "<frozen importlib._bootstrap>"


@pytest.mark.parametrize(
    ("told", "asked", "files", "leaves"),
    [
        (False, 0, ["main.py", "train.py"], False),
        (False, 0, [], False),
        (True, 0, ["main.py"], True),
        (False, 2, ["main.py"], True),
        (True, 2, ["main.py"], True),
        (False, 0, ["main.py", IMPORTING, "torch/__init__.py"], True),
        (False, 0, ["main.py", IMPORTING, early.TIDIES_UP, "os.py"], False),
        (False, 0, [early.TIDIES_UP, IMPORTING], False),
    ],
)
def test_a_signal_ends_the_process_at_once_if_it_is_the_second_or_something_is_imported(
    told: bool, asked: int, files: list[str], leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Left(Exception):
        pass

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(early, "_told", told)
    monkeypatch.setattr(early, "_asked", asked)
    monkeypatch.setattr(early, "leave", leave)
    assert early.asked() == (130 if asked else 0)
    with pytest.raises(Left if leaves else early.Interruption) as caught:
        early._handle(signal.SIGTERM, stack(*files))
    if leaves:
        assert caught.value.args == (143,)
    else:
        assert caught.value.exit_code == 143  # type: ignore[union-attr]
        assert early.asked() == 143


# ---- streams, files and memory


@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_descriptors_that_the_caller_has_closed_are_opened(
    closed: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input and output for reading, so that writing to stdout stays an error; errors for writing, to nowhere."""
    opened: list[tuple[str, int]] = []
    streams_opened: list[tuple[int, str, bool]] = []

    def fstat(descriptor: int) -> None:
        if descriptor in closed:
            raise OSError(9, "Bad file descriptor")

    def text_of(descriptor: int, mode: str, closefd: bool) -> str:
        streams_opened.append((descriptor, mode, closefd))
        return "opened"

    found = SimpleNamespace(stdout=None if 1 in closed else "usual", stderr=None if 2 in closed else "usual")
    system = SimpleNamespace(
        fstat=fstat, open=lambda path, mode: opened.append((path, mode)), devnull="/nowhere", O_RDONLY=0, O_WRONLY=1
    )
    monkeypatch.setattr(streams, "os", system)
    monkeypatch.setattr(streams, "sys", found)
    monkeypatch.setattr(streams, "open", text_of, raising=False)
    streams._open_missing()
    assert opened == [("/nowhere", 1 if descriptor == 2 else 0) for descriptor in closed]
    assert streams_opened == [(descriptor, "w", False) for descriptor in closed if descriptor]
    assert (found.stdout, found.stderr) == tuple("opened" if number in closed else "usual" for number in (1, 2))


def test_folders_that_are_made_reach_the_disk_with_their_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.make_folder(tmp_path / "a" / "b" / "c")
    assert set(synced) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
    files.make_folder(tmp_path / "a" / "d")
    assert synced[3:] == [tmp_path / "a"]
    files.make_folder(tmp_path / "a" / "d")
    assert len(synced) == 4
    files.write_atomic(tmp_path / "a" / "file", "text")
    assert synced[4:] == [tmp_path / "a"]


def test_peaks_are_in_mebibytes_whatever_the_system_counts_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux counts kibibytes, macOS and torch's allocator on a GPU bytes."""
    resource = pytest.importorskip("resource", reason="Unix only")
    usage = SimpleNamespace(ru_maxrss=3 * 2**20)
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * 2**20)
    monkeypatch.setattr(memory, "sys", SimpleNamespace(platform="linux"))
    assert memory.peak_memory_mb(torch.device("cpu")) == 3 * 2**10
    monkeypatch.setattr(memory, "sys", SimpleNamespace(platform="darwin"))
    assert memory.peak_memory_mb(torch.device("cpu")) == 3
    assert memory.peak_memory_mb(torch.device("cuda")) == 5


def test_the_peak_of_a_gpu_is_above_what_was_in_use_before(monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * 2**20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * 2**20)
    with memory.Peak(torch.device("cuda")) as peak:
        assert reset == [torch.device("cuda")]
    assert (peak.mb, peak.of) == (3.0, "case")


def test_what_is_left_of_a_job_is_told_by_its_pace_since_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 15 seconds where stderr is no terminal. What was done before counts as done, not as work of this time."""
    now = SimpleNamespace(now=1000.0)
    said: list[str] = []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.now))
    monkeypatch.setattr(progress, "err", SimpleNamespace(is_terminal=False, print=lambda text, **_: said.append(text)))
    monkeypatch.delenv("POSCLI_QUIET", raising=False)
    with progress.Meter("job", 100, done=40) as meter:
        for seconds, amount, words in ((14.9, 5, "early"), (0.1, 5, "first"), (15.0, 10, "second"), (14.0, 10, "not")):
            now.now += seconds
            meter.advance(amount, words)
        now.now += 1.0
        meter.advance(0, "third")
    assert said == [
        "job   50%  first  1:15 left",  # 10 units in 15 s; 50 are left
        "job   60%  second  1:00 left",  # 20 in 30 s; 40 are left
        "job   70%  third  0:45 left",  # 30 in 45 s; 30 are left
    ]
    monkeypatch.setenv("POSCLI_QUIET", "1")
    with progress.Meter("job", 100) as meter:
        now.now += 100.0
        meter.advance(5)
    assert len(said) == 3


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


# ---- plugins


def test_what_a_package_offers_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somebody-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: somebody\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[poscli.tasks]\nmine = poscli.tasks:Task\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[type[Task]] = Registry("task", "poscli.tasks", subclass_of(Task))
    first = registry.names()
    assert "mine" in first
    assert registry.names() == first
    assert registry.get("mine") is Task
    assert not registry.broken("mine")


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


def test_a_body_of_a_thousand_bytes_per_second_is_waited_for(clock: SimpleNamespace) -> None:
    stream = _Adapter()._watched(Body([b"a" * 4000] * 5, 4.0, clock).read)()
    assert len(list(stream)) == 5
    stream = _Adapter()._watched(Body([b"a" * 4000, b"a" * 4000, b"a" * 3999], 4.0, clock).read)()
    with pytest.raises(HubGaveUp, match="too slowly: 11999 bytes in 12 s"):
        list(stream)


@pytest.mark.parametrize(("status", "watched"), [(200, True), (404, True), (500, False)])
def test_bodies_are_watched_unless_the_hub_itself_failed(
    status: int, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw: Any = SimpleNamespace(read1=lambda *_: b"", stream="as it was")
    answer = SimpleNamespace(status_code=status, url="http://hub", raw=raw)
    monkeypatch.setattr(hubclient.HTTPAdapter, "send", lambda *_, **__: answer)
    _Adapter().send(SimpleNamespace())
    assert (raw.stream != "as it was") == watched


@pytest.mark.parametrize("status", [200, 404, 428, 429, 430, 499, 500, 599])
def test_one_fault_of_the_hub_is_forgiven_and_too_many_requests_are_not(status: int) -> None:
    adapter = _Adapter()
    answer = SimpleNamespace(status_code=status, url="http://hub")
    if status == 429:
        with pytest.raises(HubGaveUp, match="the hub answered 429 for http://hub"):
            adapter.answered(answer)
        return
    adapter.answered(answer)
    assert adapter.failures == (status >= 500)
    if status >= 500:
        with pytest.raises(HubGaveUp, match=f"the hub answered {status} for http://hub"):
            adapter.answered(answer)


def test_a_complete_answer_clears_a_fault_and_a_broken_connection_counts_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    fault = hubclient.requests.ConnectionError("refused")

    def send(self: object, request: object, **options: float) -> None:
        asked.append(options["timeout"])
        raise fault

    monkeypatch.setattr(hubclient.HTTPAdapter, "send", send)
    monkeypatch.setattr(hubclient.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10)
    adapter = _Adapter()
    for options in ({}, {"timeout": 3}):
        with pytest.raises(hubclient.requests.ConnectionError):
            adapter.send(SimpleNamespace(), **options)
        assert adapter.failures == 1
        adapter.answered(SimpleNamespace(status_code=200, url=""))
        assert adapter.failures == 0
    adapter.failures = 1
    with pytest.raises(HubGaveUp, match="refused"):
        adapter.send(SimpleNamespace(), timeout=30)
    assert asked == [10, 3, 10]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")
def test_a_block_that_was_stopped_leaves_no_alarm_behind() -> None:
    try:
        with stoppable(obeys=True) as stop:
            signal.raise_signal(signal.SIGINT)
        assert stop
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
