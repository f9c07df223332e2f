"""Summaries of a run, as dictionaries for tables and JSON."""

from __future__ import annotations

import math
from typing import Any

from poscli.runs.run import Run
from poscli.runs.schema import TRAIN_COLUMNS, read_table


def training_summary(run: Run) -> dict[str, Any]:
    """The outcome of a training, for `poscli train`."""
    last, status = read_table(run.train_csv, TRAIN_COLUMNS).iloc[-1], run.status()
    return {
        "run_id": run.id,
        "encoding": run.config.encoding,
        "seed": run.config.seed,
        "status": status["state"],
        "message": status["message"],
        "steps": status["step"],
        "tokens": int(last["tokens"]),
        "bpb": _training_bpb(run),
        "seconds": float(last["seconds"]),
        "tokens_per_s": float(last["tokens"] / max(last["seconds"], 1e-9)),
        "parameters": run.env["parameters"],
        "engine": run.env["engine"],
        "folder": str(run.folder),
    }


def _training_bpb(run: Run) -> float | None:
    """Bits per byte at the end of the training log; None if nothing is logged yet, or nothing finite."""
    if not run.train_csv.exists():
        return None
    bpb = read_table(run.train_csv, TRAIN_COLUMNS)["bpb"]
    mean = bpb.tail(max(1, len(bpb) // 20)).mean()  # a single row averages too few batches
    return float(mean) if math.isfinite(mean) else None


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
        "bpb": _training_bpb(run),
        "evaluated": run.eval_csv.exists(),
        "folder": str(run.folder),
    }
