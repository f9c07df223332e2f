"""Summaries of a run, as dictionaries for tables and JSON."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from poscli.runs.activity import activity
from poscli.runs.results import is_evaluated, training_log
from poscli.runs.run import Run
from poscli.system.progress import duration


def training_summary(run: Run) -> dict[str, Any]:
    """The outcome of a training, for `poscli train`."""
    status, log = run.status(), training_log(run)
    tokens, seconds = (log[name].iloc[-1] if len(log) else 0 for name in ("tokens", "seconds"))
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


def _doing(run: Run) -> str:
    """What a process does with a run at this moment; "" if nothing is being done."""
    now = activity(run.folder)
    return f"{now.label} {now.share:.0%}, {duration(now.seconds_left)} left" if now else ""


def run_summary(run: Run) -> dict[str, Any]:
    """The state of a run, for `poscli ls runs`."""
    status, config = run.status(), run.config
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
        "bpb": _bpb_at_end(training_log(run)),
        "evaluated": is_evaluated(run),
        "doing": _doing(run),
        "machine": str(run.env.get("machine", "")),
        "folder": str(run.folder),
    }
