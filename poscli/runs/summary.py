"""Summaries of a run, as dictionaries for tables and JSON, and what is being done on it at this moment.

Whoever works on a run leaves the progress in the run's folder: a command in another shell, the screen of a sweep, and a
worker on another machine all read the same files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poscli.runs.lock import is_locked
from poscli.runs.results import (
    check_evaluation,
    has_evaluation,
    open_evaluated,
    part_folders,
    training_log,
    was_evaluated,
)
from poscli.runs.run import POSTHOC, PROGRESS, Run, opened_runs
from poscli.system.errors import CorruptError
from poscli.system.files import read_object
from poscli.system.progress import duration

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Activity:
    """A piece of work on a run that has not ended."""

    label: str  # what is done, such as "train alibi"
    share: float  # of this piece of work, between 0 and 1
    words: str  # such as the loss
    seconds_left: float
    process: int
    host: str


def activity(folder: Path) -> Activity | None:
    """What a process does with a run, trained or evaluated as another encoding; None if nothing is being done.

    Work that has just begun shows nothing yet. Files that a killed process left behind do not count.
    """
    files = [folder / PROGRESS, *folder.glob(f"{POSTHOC}/*/{PROGRESS}")]
    activities = [_read(file) for file in files if file.exists() and is_locked(file.parent)]
    return next((each for each in activities if each is not None), None)


def _read(file: Path) -> Activity | None:
    """The content of a file of progress; None if it is gone, or is not what poscli writes."""
    try:
        known = read_object(file, "")
        share, seconds_left = known["done"] / known["total"], float(known["seconds_left"])
        if not (math.isfinite(share) and math.isfinite(seconds_left)):
            return None
        return Activity(
            label=str(known["label"]),
            share=min(1.0, max(0.0, share)),
            words=str(known["words"]),
            seconds_left=max(0.0, seconds_left),
            process=int(known["process"]),
            host=str(known["host"]),
        )
    except (CorruptError, ValueError, KeyError, TypeError, ArithmeticError):
        return None


def training_summary(run: Run) -> dict[str, Any]:
    """The outcome of a training, for `poscli train`; `accuracy` is the last share of right answers, if there is one."""
    status, log = run.status(), training_log(run)
    tokens, seconds = (log[name].iloc[-1] if len(log) else 0 for name in ("tokens", "seconds"))
    shares = list(log["accuracy"].dropna()) if "accuracy" in log else []
    return {
        "run_id": run.id,
        "encoding": run.config.encoding,
        "corpus": run.config.corpus,
        "seed": run.config.seed,
        "status": status["state"],
        "message": status["message"],
        "steps": status["step"],
        "tokens": int(tokens),
        "bpb": _bpb_at_end(log),
        **({"accuracy": float(shares[-1])} if shares else {}),
        "seconds": float(seconds),
        "tokens_per_s": float(tokens / max(seconds, 1e-9)),
        "parameters": run.env["parameters"],
        "engine": run.env["engine"],
        "folder": str(run.folder),
    }


def _bpb_at_end(log: pd.DataFrame) -> float | None:
    """Bits per byte at the end of a training log; None if nothing is logged yet, or nothing finite."""
    bpb = log["bpb"]
    mean = bpb.tail(max(1, len(bpb) // 20)).mean()  # a single row averages too few batches
    return float(mean) if math.isfinite(mean) else None


def run_summaries(runs: Path) -> list[dict[str, Any]]:
    """The state of every run in a folder, for `poscli ls runs`: those that are damaged come last, and say why.

    No rows if there are no runs; CorruptError if there are some, and none can be read.
    """
    opened, damaged = opened_runs(runs)
    rows = [run_summary(run) for run in opened]
    if damaged and not opened:
        raise next(iter(damaged.values()))
    nothing = dict.fromkeys(rows[0]) if rows else {}
    return rows + [
        nothing | {"run_id": name, "state": "damaged", "folder": str(runs / name), "damaged": str(error)}
        for name, error in damaged.items()
    ]


def run_summary(run: Run) -> dict[str, Any]:
    """The state of a run that can be read. `damaged` is what is wrong with its log or its evaluations, or empty."""
    status, config, now = run.status(), run.config, activity(run.folder)
    bpb, damaged = None, run.status_fault()
    try:
        bpb = _bpb_at_end(training_log(run))
        if was_evaluated(run):
            check_evaluation(run)
        for folder in part_folders(run):
            check_evaluation(open_evaluated(folder))
    except CorruptError as error:
        damaged = damaged or str(error)
    return {
        "run_id": run.id,
        "encoding": config.encoding,
        "seed": config.seed,
        "corpus": config.corpus,
        "fingerprint": run.fingerprint,
        "length": config.length,
        "state": status["state"],
        "step": status["step"],
        "steps": status["steps"],
        "bpb": bpb,
        "evaluated": has_evaluation(run) or bool(part_folders(run)),
        "doing": f"{now.label} {now.share:.0%}, {duration(now.seconds_left)} left" if now else "",
        "machine": str(run.env.get("machine", "")),
        "folder": str(run.folder),
        "damaged": damaged,
    }
