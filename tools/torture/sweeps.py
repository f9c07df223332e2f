"""A suite on several workers that are killed, with their driver; every run must end as in one process left alone."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from poscli.runs.run import list_runs

from .pipeline import _without_timing, differing

ENCODINGS, SEEDS = ("none", "alibi", "rope", "t5"), range(10)
RUNS = len(ENCODINGS) * len(SEEDS)
SUITE = f"""
title = "Torture"
encodings = {json.dumps(ENCODINGS)}
seeds = {list(SEEDS)}
[train]
preset = "nano"
length = 64
batch = 8
tokens = 80_000
[extrapolate]
max_len = 256
tokens = 512
stride = 32
"""
WORKER_KILLS, DRIVER_KILLS = 15, 3
LONGEST_PAUSE = 2.5  # seconds between two kills
LONGEST_SWEEP = 1800.0  # seconds; what takes longer hangs
LONGEST_STOP = 40.0


@cache
def alone(base: Path) -> Path:
    """The results of one process with one thread that was left alone."""
    out = base / "alone"
    assert _start(base, out).wait(LONGEST_SWEEP) == 0
    return out


@cache
def on_ray(base: Path) -> list[str]:
    """Run the suite on a local Ray cluster of two workers; kill workers, and three times the driver."""
    kills = ["worker"] * WORKER_KILLS
    for n in range(DRIVER_KILLS):
        kills.insert(4 + 5 * n, "driver")
    return _tortured(base, "ray", kills, "--ray", "--workers", "2")


@cache
def on_processes(base: Path) -> list[str]:
    """Run the suite on two worker processes; kill them, and once send SIGTERM to them and their driver at once."""
    kills = ["worker"] * WORKER_KILLS
    kills.insert(8, "everyone")
    return _tortured(base, "processes", kills, "--workers", "2")


def compared(base: Path, how: str, number: int) -> list[str]:
    """How the files of a run differ from those of the run that was left alone; and what went wrong on the way."""
    faults = {"ray": on_ray, "processes": on_processes}[how](base)
    theirs = sorted(run.folder.name for run in list_runs(alone(base) / "runs"))
    ours = sorted(run.folder.name for run in list_runs(base / how / "runs"))
    if len(theirs) != RUNS or ours != theirs:
        return [f"{len(ours)} runs, not {RUNS}"]
    expected, found = (_content(out / "runs" / theirs[number]) for out in (alone(base), base / how))
    return [*(faults if number == 0 else []), *(f"{theirs[number]}: {line}" for line in differing(found, expected))]


def _tortured(base: Path, how: str, kills: list[str], *options: str) -> list[str]:
    """The faults of a sweep that is killed so often; the same command is repeated until it has done everything."""
    draw, out, left, faults = random.Random(how), base / how, list(kills), []
    driver = _start(base, out, *options)
    deadline = time.monotonic() + LONGEST_SWEEP
    while left and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(draw.uniform(0.3, LONGEST_PAUSE))
        workers = _workers(out)
        if not workers:
            continue
        victim = left.pop(0)
        if victim == "worker":
            _kill(draw.choice(workers), signal.SIGKILL)
            continue
        if victim == "driver":
            driver.kill()
            driver.wait()
        else:
            for process in (driver.pid, *workers):
                _kill(process, signal.SIGTERM)
            if (code := driver.wait(LONGEST_STOP)) != 143:
                faults.append(f"code {code} after SIGTERM, not 143")
        driver = _start(base, out, *options)
    if (code := driver.wait(max(1.0, deadline - time.monotonic()))) != 0:
        faults.append(f"code {code} in the end: {(base / 'said').read_text().splitlines()[-1:]}")
    if left:
        faults.append(f"the suite ended before {len(left)} of {len(kills)} kills")
    return faults


def _start(base: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    (base / "torture.toml").write_text(SUITE)
    command = ["run", "torture.toml", "--cpus", "1", "--yes", "--quiet", "--out", str(out), *options]
    with (base / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "poscli", *command], stdout=subprocess.DEVNULL, stderr=said, cwd=base
        )


def _workers(out: Path) -> list[int]:
    """The processes that hold the lock of a run now, by the names that they left beside it."""
    found = set()
    for holder in out.glob("runs/*/.holder.lock"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            process = json.loads(holder.read_text())["process"]
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"poscli.sweep" in command or command.startswith(b"ray::"):
                found.add(process)
    return sorted(found)


def _kill(process: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signum)


def _content(folder: Path) -> dict[str, str]:
    """The files of a run that must be the same: weights of the last checkpoint, and tables without times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".csv":
            found[name] = _without_timing(path.read_bytes())
        elif path.name.endswith(".tmp") or path.name == "progress.json":
            found[name] = "left over"
    last = max(folder.glob("checkpoints/step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    found["the weights"] = hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()
    return found


def trials(how: str) -> Iterator[tuple[str, int]]:
    """The numbers of the runs, with a name."""
    for number in range(RUNS):
        yield f"run {number + 1} of {RUNS}, on {how}", number
