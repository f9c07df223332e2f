"""Sweeps on several workers: who gets which job, what happens when a worker dies, and what people see meanwhile."""

from __future__ import annotations

import io
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cli_runner import NANO, SUITE, assert_same_runs, cli, run_of
from rich.console import Console
from torture.processes import Started

from poscli.cli.screen import run_shown, screen
from poscli.cluster.cluster import RayCrew
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import PRESETS
from poscli.runs.lock import locked
from poscli.runs.run import list_runs
from poscli.runs.summary import Activity, activity
from poscli.sweep import __main__ as worker_process
from poscli.sweep import crew, drive
from poscli.sweep.crew import Crew, refuse_crowded
from poscli.sweep.drive import TimeLeft, Watcher, makespan, run_jobs
from poscli.sweep.job import Job, Outcome, needed
from poscli.sweep.workers import Here, Processes, WorkerDied, Workers
from poscli.system.console import collected_warnings
from poscli.system.device import usable_cores
from poscli.system.errors import Interrupted, UsageError
from poscli.system.progress import Meter
from poscli.system.text import counted

GIB = 2.0**30


def job(encoding: str = "alibi", runs: Path = Path("runs"), tokens: int = 1280) -> Job:
    request = TrainRequest(preset="nano", length=32, batch=4, tokens=tokens)
    config = resolve(request, encoding, 0, torch.device("cpu"))
    return Job(config=config, extrapolate=ExtrapolateRequest(max_len=64, tokens=64, stride=16), runs=runs)


class Scripted(Workers):
    """Answers each submission with the next line of a script: an outcome, or a death."""

    def __init__(self, count: int, script: list[Outcome | Exception]) -> None:
        self.count, self.script = count, script
        self.submitted: list[str] = []
        self.most = self.now = 0
        self.stopped = False

    def submit(self, job: Job) -> Future[Outcome]:
        self.submitted.append(job.config.encoding)
        self.now += 1
        self.most = max(self.most, self.now)
        future: Future[Outcome] = Future()
        threading.Timer(0.02, self._answer, (future, self.script.pop(0))).start()
        return future

    def _answer(self, future: Future[Outcome], answer: Outcome | Exception) -> None:
        self.now -= 1
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def stop(self) -> None:
        self.stopped = True


class Said(Watcher):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def began(self, number: int) -> None:
        self.lines.append(f"began {number}")

    def postponed(self, number: int, why: str) -> None:
        self.lines.append(f"postponed {number}: {why}")


def done(name: str) -> Outcome:
    return Outcome(folders=(Path(name),))


# ---- the driver


def test_jobs_run_as_many_at_a_time_as_there_are_workers_and_results_keep_their_order() -> None:
    names = ["none", "alibi", "rope", "t5", "fox"]
    workers = Scripted(2, [done(name) for name in names])
    results = run_jobs([job(name) for name in names], workers, Watcher())
    assert workers.submitted == names
    assert workers.most == 2
    assert results.folders == [Path(name) for name in names]


def test_a_job_whose_worker_dies_goes_on_before_the_others_until_too_many_have_died() -> None:
    said = Said()
    workers = Scripted(1, [WorkerDied("it was killed"), done("alibi"), done("rope")])
    assert run_jobs([job("alibi"), job("rope")], workers, said).folders == [Path("alibi"), Path("rope")]
    assert said.lines == [
        "began 0",
        "postponed 0: it was killed; going on from what it has saved",
        "began 0",
        "began 1",
    ]
    deaths: list[Outcome | Exception] = [WorkerDied("it was killed") for _ in range(6)]  # as docs/PARALLEL.md has it
    assert not run_jobs([job("alibi")], Scripted(1, [*deaths[:5], done("alibi")]), Watcher()).failures
    results = run_jobs([job("alibi"), job("rope")], Scripted(1, [*deaths, done("rope")]), Watcher())
    assert results.folders == [Path("rope")]
    (failure,) = results.failures
    assert failure["encoding"] == "alibi"
    assert failure["error"] == "its worker died 6 times, in the end because it was killed"


def test_a_job_that_another_process_holds_waits_for_the_others_and_says_who(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "SECONDS_BETWEEN_TRIES", 0.1)
    said = Said()
    held = Outcome(held="alibi-1 is being worked on by process 7 on here; wait for it to end")
    workers = Scripted(1, [held, held, done("alibi"), done("rope")])
    results = run_jobs([job("alibi"), job("rope")], workers, said)
    assert results.folders == [Path("alibi"), Path("rope")]
    assert workers.submitted == ["alibi", "rope"] * 2
    assert said.lines[:3] == [
        "began 0",
        "postponed 0: is put off: alibi-1 is being worked on by process 7 on here",
        "began 1",
    ]


def test_a_suite_says_once_for_whom_a_job_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep on another machine may hold a run for hours."""
    monkeypatch.setattr(drive, "SECONDS_BETWEEN_TRIES", 0.01)
    held = [Outcome(held=f"alibi-1 is being worked on by process {number} on here") for number in (7, 7, 7, 8)]
    run_shown([job("alibi")], [1.0], Scripted(1, [*held, done("alibi")]))
    waits = "alibi, seed 0 is put off: alibi-1 is being worked on by process"
    assert capsys.readouterr().err.splitlines() == [
        "[1/1] alibi, seed 0",
        f"{waits} 7 on here",
        f"{waits} 8 on here",
    ]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_the_workers_first(signum: int, code: int) -> None:
    workers = Scripted(1, [done("alibi")] * 3)

    class Killing(Watcher):
        def began(self, number: int) -> None:
            if number == 1:
                os.kill(os.getpid(), signum)

    with pytest.raises(Interrupted, match="stopped with 2 of 3 runs done") as caught:
        run_jobs([job("alibi"), job("rope"), job("t5")], workers, Killing())
    assert caught.value.exit_code == code
    assert workers.stopped


def test_the_time_left_follows_the_jobs_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("poscli.sweep.drive.time", SimpleNamespace(monotonic=lambda: clock[0]))
    left = TimeLeft([0.0, 10.0, 10.0, 10.0], workers=1)
    left.began(0)
    assert left.ended(0) == 0  # it was there already, and says nothing about the pace
    assert left.left() == 30
    left.began(1)
    clock[0] = 20.0
    assert left.ended(1) == 20  # twice as long as estimated
    left.began(2)
    clock[0] = 25.0
    assert left.left() == 35
    clock[0] = 100.0  # longer than it should have taken
    assert left.left() == 20
    left.postponed(2)
    assert left.left() == 40


# ---- worker processes


def test_workers_share_a_suite_and_give_the_bits_of_one(here: Path) -> None:
    """Two processes of one thread, one of which is killed in the middle, against this process with one thread."""
    (here / "tiny.toml").write_text(SUITE.replace("seeds = [0, 1]", "seeds = [0]"))
    alone = cli("run", "tiny.toml", "--cpus", 1, "--out", "alone")
    assert alone.code == 0, alone.err
    planned = cli("run", "tiny.toml", "--workers", 2, "--dry-run", "--json").json
    assert planned["seconds"] == pytest.approx(makespan([each["seconds"] for each in planned["jobs"]], 2) + 4)
    killed = threading.Thread(target=_kill_one, args=(Path("shared/runs"),))
    killed.start()
    shared = cli("run", "tiny.toml", "--workers", 2, "--cpus", 1, "--out", "shared")
    killed.join()
    assert shared.code == 0, shared.err
    assert "2 jobs, about 0:0" in shared.err
    assert "on 2 workers" in shared.err
    assert shared.err.count("killed by SIGKILL") == 1, shared.err
    assert "2 of 2 runs done" in shared.err
    assert_same_runs(Path("alone/runs"), Path("shared/runs"))
    assert (here / "alone/tiny/summary.csv").read_text() == (here / "shared/tiny/summary.csv").read_text()


def _kill_one(runs: Path) -> None:
    """Kill the process that works on the first run that has begun to train."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for holder in runs.glob("*/.holder.lock"):
            try:
                process = json.loads(holder.read_text())["process"]
            except (ValueError, OSError):
                continue
            os.kill(process, signal.SIGKILL)
            return
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forked processes")
def test_the_same_suite_started_twice_is_done_once_and_reported_by_both(here: Path) -> None:
    """As machines without Ray do that share a results folder."""
    (here / "tiny.toml").write_text(SUITE.replace("seeds = [0, 1]", "seeds = [0]"))
    started = [Started(("run", "tiny.toml", "--out", "shared", "--to", f"report-{n}")) for n in range(2)]
    ended = [each.wait(300) for each in started]
    assert [each.code for each in ended] == [0, 0], ended
    said = "".join(each.err for each in ended)
    runs = list_runs(Path("shared/runs"))
    assert [said.count(f"{run.id} is complete already: nothing to train") for run in runs] == [1, 1], said
    assert Path("report-0/summary.csv").read_text() == Path("report-1/summary.csv").read_text()


def test_workers_that_are_stopped_or_whose_driver_is_gone_save_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings that would take hours; the pipe to the driver is all that ties workers to it."""
    started, start = [], subprocess.Popen

    def noted(*words: object, **options: object) -> object:
        started.append(start(*words, **options))
        return started[-1]

    monkeypatch.setattr("poscli.sweep.workers.subprocess.Popen", noted)
    workers = Processes(2, threads=1)
    for encoding in ("alibi", "none"):
        workers.submit(job(encoding, runs=tmp_path, tokens=10**8))
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*/progress.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    started[0].stdin.close()
    assert started[0].wait(60) == 143
    workers.stop()
    workers.close()
    statuses = [run.status() for run in list_runs(tmp_path)]
    assert [status["state"] for status in statuses] == ["interrupted"] * 2
    assert all(status["step"] > 0 for status in statuses)


def test_a_module_of_the_current_folder_hides_none_of_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` looks into that folder first, where it has the command not done so."""
    (tmp_path / "token.py").write_text("raise SystemExit('hidden')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    with Processes(1, threads=1) as workers:
        assert workers.submit(job(runs=tmp_path / "runs")).result(120).error == ""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.stderr.write('first\\nlast\\n\\n'); sys.exit(2)", "its process ended with code 2: last"),
        ("", "its process ended with code 0"),
        ("import os; os.kill(os.getpid(), 15)", "its process was killed by SIGTERM"),
        ("import os; os.kill(os.getpid(), 9)", "its process was killed by SIGKILL, as the system does when memory is"),
    ],
)
def test_a_worker_that_ends_says_how(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = [sys.executable, "-c", code]
    start = subprocess.Popen
    monkeypatch.setattr("poscli.sweep.workers.subprocess.Popen", lambda command, **options: start(ending, **options))
    with (
        Processes(1, threads=1) as workers,
        pytest.raises(WorkerDied, match=f"^{said}( short)?$"),
    ):
        workers.submit(job()).result(60)


def test_workers_take_the_gpus_in_turn_by_the_names_that_the_system_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        seen.append(env)
        raise WorkerDied("there is no such machine")

    monkeypatch.setattr("poscli.sweep.workers.subprocess.Popen", start)
    monkeypatch.setattr(crew, "device_of", torch.device)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for device, visible, expected in (
        ("cuda", "4,7", ["4", "7", "4"]),
        ("cuda", "", ["0", "1", "0"]),
        ("cuda:1", "4,7", ["4,7"] * 3),
    ):
        seen.clear()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with Crew(workers=3, cpus=2, device=device).assembled([("alibi", 1e30)], tmp_path) as workers:  # on the GPUs
            for _ in range(3):
                with pytest.raises(WorkerDied):
                    workers.submit(job()).result()
        assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == expected
        assert {env["OMP_NUM_THREADS"] for env in seen} == {"2"}
        with pytest.raises(UsageError, match=r"lower --memory 1e\+09$"):  # of the machine
            Crew(workers=3, memory=1e9, device=device).assembled([("alibi", GIB)], tmp_path).__enter__()


@pytest.mark.parametrize(("ends", "code"), [("well", 0), ("with an error", 0), (2, 130), (15, 143)])
def test_a_worker_process_ends_with_0_unless_a_signal_stopped_it(
    ends: str | int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = Outcome(error="no luck") if ends == "with an error" else done("a")

    def perform(submitted: Job, open_task: object) -> Outcome:
        assert submitted == job()
        if isinstance(ends, int):
            raise Interrupted("stopped", ends)
        return outcome

    def lines() -> Iterator[str]:
        """What a driver writes, which waits for an outcome before it goes on, and is there until the process ends."""
        for _ in range(2):
            yield job().model_dump_json(by_alias=True) + "\n"
            answered.get()

    monkeypatch.setattr(worker_process, "perform", perform)
    answered, printed = queue.SimpleQueue[None](), io.StringIO()
    monkeypatch.setattr(printed, "flush", lambda: answered.put(None))
    assert worker_process.main(lines(), printed) == code  # type: ignore[arg-type]
    assert printed.getvalue() == ("" if code else 2 * (outcome.model_dump_json() + "\n"))


def test_a_worker_process_whose_driver_is_gone_asks_its_job_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has not begun yet when the driver goes."""
    asked, begun = threading.Event(), threading.Event()

    def lines(before_it_begins: bool) -> Iterator[str]:
        yield job().model_dump_json(by_alias=True) + "\n"
        assert before_it_begins or begun.wait(60)

    def perform(submitted: Job, open_task: object) -> Outcome:
        begun.set()
        for _ in range(3000):  # short waits: another thread may take the signal, which ends no wait of this one
            if asked.wait(0.02):
                raise Interrupted("stopped", signal.SIGTERM)
        return done("a")

    monkeypatch.setattr(worker_process, "perform", perform)
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        for before_it_begins in (False, *[True] * 20):
            assert worker_process.main(lines(before_it_begins), io.StringIO()) == 143  # type: ignore[arg-type]
            asked.clear()
        assert worker_process.main(io.StringIO(""), io.StringIO()) == 0
        assert not asked.wait(0.05)  # there is no job to stop
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("text", "cause"), [("{}", "the key 'config' is missing"), ("no JSON", "Invalid JSON")])
def test_a_worker_process_refuses_what_is_not_a_job(text: str, cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert worker_process.main(io.StringIO(text), io.StringIO()) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith(f"error: stdin is not a job ({cause}")
    assert err.endswith("); it takes what Job.model_dump_json(by_alias=True) writes\n")


# ---- who is wanted


def test_options_become_workers(tmp_path: Path) -> None:
    cores = usable_cores()
    for made, facts in (
        (Crew(), (1, None, 9)),
        (Crew(workers=2), (2, max(1, cores // 2), 4 + 5)),
        (Crew(workers=2, cpus=3), (2, 3, 4 + 5)),
        (RayCrew(), (cores, 1, 4 + (9 if cores == 1 else 5))),
        (RayCrew(cpus=2 * cores), (1, 2 * cores, 4 + 9)),
    ):
        jobs = [SimpleNamespace(seconds=seconds) for seconds in (5, 4)]
        assert (made.count, made.threads, made.seconds_for(jobs)) == facts
        assert made.seconds_for([]) == 0
    with Crew(workers=8).assembled([], tmp_path) as alone:  # nothing is left to do
        assert isinstance(alone, Here)
    with pytest.raises(UsageError, match="--memory 2 is for several workers; give --workers too"):
        Crew(memory=2).assembled([("alibi", 1.0)], tmp_path).__enter__()
    with pytest.raises(UsageError, match=r"--gpus 0\.5 is for a cluster, as .* take its GPUs in turn; give --ray too"):
        Crew(workers=2, gpus=0.5, device="cuda").check()


@pytest.mark.parametrize(
    ("workers", "cpus", "suits"), [(2, 2, None), (4, None, None), (5, 1, 4), (3, 2, 2), (2, 3, 1), (2, 9, 1)]
)
def test_workers_are_warned_about_where_they_take_more_cores_than_there_are(
    workers: int, cpus: int | None, suits: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "usable_cores", lambda: 4)
    wanted = Crew(workers=workers, cpus=cpus, memory=1e-6, device="cpu")
    with collected_warnings() as warned, wanted.assembled([("alibi", 1.0)], tmp_path) as assembled:
        assert assembled.count == workers
    said = f"{workers} workers of {counted(cpus or 1, 'thread')} each slow each other down on 4 cores; "
    assert warned == ([] if suits is None else [f"{said}--workers {suits} suits this machine"])


def test_many_small_runs_get_a_worker_for_each_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody asks for a number; what is done already is not asked, so that a run goes on with its threads."""
    monkeypatch.setattr(crew, "usable_cores", lambda: 3)
    monkeypatch.setattr(crew, "free_memory", lambda device: 100 * GIB)
    small = [job(tokens=100_000_000).config for _ in range(12)]
    chosen = Crew(device="cpu").suited_to(small)
    assert (chosen.count, chosen.threads, chosen.chosen) == (3, 1, True)
    wide = small[0].model_copy(update={"model": PRESETS["small"]})
    for few in (small[:11], [*small, wide], [job().config for _ in range(12)]):  # too few, too wide, too short
        assert Crew(device="cpu").suited_to(few) == Crew(device="cpu")
    for asked in (Crew(workers=1, device="cpu"), Crew(cpus=2, device="cpu"), RayCrew(device="cpu")):
        assert asked.suited_to(small) == asked
    assert Crew(memory=2, device="cpu").suited_to(small).count == 3
    assert Crew(memory=40, device="cpu").suited_to(small).count == 2
    for asked in (Crew(memory=60, device="cpu"), Crew(device="cpu")):  # one run at a time has all cores
        one = asked.suited_to(small)
        assert (one.count, one.threads) == (1, None)
        with one.assembled([("alibi", 1.0)], tmp_path) as alone:
            assert isinstance(alone, Here)
        monkeypatch.setattr(crew, "free_memory", lambda device: 0.5 * GIB)


def test_workers_that_nobody_asked_for_are_as_many_as_fit_what_the_evaluations_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "usable_cores", lambda: 3)
    monkeypatch.setattr(crew, "free_memory", lambda device: 10 * GIB)
    own = Crew(workers=3, cpus=1, device="cpu", chosen=True)
    for gib, count in ((0.1, 3), (3, 2), (8, 1)):
        with own.assembled([("alibi", gib * GIB)] * 5, tmp_path) as assembled:
            assert assembled.count == count
    with (
        pytest.raises(UsageError, match="give --workers 2"),
        Crew(workers=3, cpus=1, device="cpu").assembled([("alibi", 3.0 * GIB)] * 5, tmp_path),
    ):
        pass


def test_workers_that_nobody_asked_for_are_done_without_where_locks_do_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "unlockable", lambda folder: f"the file system of {folder} refuses locks (no)")
    with Crew(workers=2, cpus=1, device="cpu", chosen=True).assembled([("alibi", 1.0)], tmp_path) as alone:
        assert isinstance(alone, Here)


def test_workers_need_locks_that_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "unlockable", lambda folder: f"the file system of {folder} refuses locks (no)")
    with pytest.raises(UsageError, match=r"refuses locks \(no\), so that two workers .* give --workers 1 without"):
        Crew(workers=2).assembled([("alibi", 1.0)], tmp_path).__enter__()
    with Crew().assembled([("alibi", 1.0)], tmp_path) as alone:
        assert isinstance(alone, Here)


def test_jobs_that_do_not_fit_together_are_refused_by_the_largest() -> None:
    both = [("a", GIB), ("b", 3 * GIB)]
    refuse_crowded(both, workers=2, free=8 * GIB, cure="")
    refuse_crowded([], workers=2, free=0, cure="")
    together = r"2 workers may need 5\.0 GiB .*\(b: 3\.0 GiB\), 5\.0 GiB are free; give --workers 1"
    with pytest.raises(UsageError, match=together):
        refuse_crowded(both, workers=2, free=5 * GIB, cure="less")
    with pytest.raises(
        UsageError, match=r"^3 workers may need 7\.5 GiB .*\(b: 3\.0 GiB\).*; give --workers 2, or less$"
    ):
        refuse_crowded([*both, ("c", 2 * GIB)], workers=3, free=7 * GIB, cure="less")
    with pytest.raises(UsageError, match=r"b needs about 3\.5 GiB .* 3\.0 GiB are free; less$"):
        refuse_crowded(both, workers=2, free=3 * GIB, cure="less")
    planned = [SimpleNamespace(encoding=name, seed=2, memory_gib=3.0, seconds=n) for n, name in enumerate(("a", "b"))]
    assert needed(planned) == [("b, seed 2", 3 * GIB)]  # the other one is done
    with pytest.raises(UsageError, match=r"lower --memory 1e\+09$"):
        Crew(workers=2, cpus=1, memory=1e9, device="cpu").assembled([("a", GIB)], Path()).__enter__()


# ---- what people see

PROGRESS = {"label": "train", "done": 1, "total": 2, "words": "", "seconds_left": 3.0, "process": 4, "host": "here"}
WRONG = [
    *({"done": wrong} for wrong in (None, math.nan, 10**400)),
    *({"seconds_left": wrong} for wrong in (math.nan, math.inf)),
    {"process": math.inf},
    {"total": 0},
]


def test_a_file_of_progress_that_says_nothing_is_not_an_activity(tmp_path: Path) -> None:
    """The screen of a sweep reads it, and must not end because of it."""
    with locked(tmp_path):
        for changes, share, left in (
            ({}, 0.5, 3.0),
            ({"done": 3}, 1.0, 3.0),
            ({"done": -1}, 0.0, 3.0),
            ({"seconds_left": -0.5}, 0.5, 0.0),
        ):
            (tmp_path / "progress.json").write_text(json.dumps(PROGRESS | changes))
            assert activity(tmp_path) == Activity("train", share, "", left, 4, "here")
        for content in ("", "[]", "{}", "\0", "[" * 100_000, *(json.dumps(PROGRESS | wrong) for wrong in WRONG)):
            (tmp_path / "progress.json").write_text(content)
            assert activity(tmp_path) is None, content[:100]
        (tmp_path / "progress.json").write_text(json.dumps(PROGRESS))
        assert activity(tmp_path) is not None
    assert activity(tmp_path) is None  # the process that wrote it was killed


def painted(renderable: object) -> list[str]:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_the_screen_has_a_line_for_each_worker_and_names_machines_if_there_are_several() -> None:
    now = Activity("train alibi", 0.25, "loss 2.345", 61.0, 7, "one")
    head, first, second = painted(screen("3 of 8 runs done", [("alibi, seed 0", now), ("[red]rope[/], seed 0", None)]))
    assert head == "3 of 8 runs done"
    assert first.startswith("alibi, seed 0 train")
    assert first.endswith("25% 1:01 left loss 2.345")
    assert second == "[red]rope[/], seed 0 at work"
    other = Activity("extrapolate rope", 1.0, "", 0.0, 8, "two")
    _, first, second = painted(screen("", [("alibi, seed 0", now), ("rope, seed 0", other)]))
    assert first.endswith("loss 2.345 one")
    assert second.endswith("two")


def test_runs_are_watched_from_another_shell(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `ls runs` and its --watch say of a run that is being evaluated and of one that is trained."""
    assert cli("train", "--enc", "alibi", "--enc", "rope", *NANO).code == 0
    busy = run_of("results", "alibi")
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("poscli.system.progress.SECONDS_BETWEEN_WRITES", 0.0)
    monkeypatch.setattr("poscli.cli.screen.time.sleep", look)
    with Meter("train", 4, file=Path("nowhere/progress.json")) as meter:  # which stops nothing
        meter.advance(1)
    with busy.locked(), Meter("extrapolate alibi", 4, file=busy.progress) as meter:
        meter.advance(1, "64 tokens")
        (now, then) = cli("ls", "runs", "--json").json
        assert now["doing"].startswith("extrapolate alibi 25%, 0:0")
        assert then["doing"] == ""
        watched = cli("ls", "runs", "--watch")
    assert not busy.progress.exists()
    assert watched.code == 0, watched.err
    lines = watched.out.splitlines()
    assert lines[0] == "2 runs in results/runs: 1 at work, 1 trained"
    assert lines[1].startswith("  alibi, seed 0: extrapolate 25%, 0:0")
    assert len(lines) == 2  # the second look sees no change
    looks.clear()
    assert cli("ls", "runs", "--watch", "--out", "nowhere").out == "0 runs in nowhere/runs: none yet\n"
