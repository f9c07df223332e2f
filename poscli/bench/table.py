"""The tables of a bench and their columns. Every row is whole by itself: what ran, where, and how sure the number is.

`bench.csv` has one row per encoding, engine, kind of work and length; `machine.csv` one per limit of the machine;
`against.csv` one per pair with another library. What could not run is a row with a status.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import poscli
from poscli.environment import commit, device_name
from poscli.results import frame, read_table, write_table

Columns = dict[str, tuple[str, str]]
Row = dict[str, Any]

STATUSES = ("ok", "oom", "unsupported", "skipped", "failed")

_WHERE: Columns = {
    "device": ("str", "cpu, cuda:NAME"),
    "machine": ("str", "the processor's name"),
    "cores": ("int64", "processors that the system shows"),
    "threads": ("int64", "that torch uses"),
    "torch": ("str", "version of torch"),
    "poscli": ("str", "version of poscli"),
    "commit": ("str", "commit of the source tree, where there is one; + if it was changed"),
}
_SHAPE: Columns = {
    "train_length": ("int64", "tokens in a training window, L: what the encoding was made for"),
    "layers": ("int64", "shape of the model"),
    "width": ("int64", ""),
    "heads": ("int64", ""),
    "mlp": ("int64", ""),
    "dtype": ("str", "precision of the run: float32, bfloat16 (weights and norms stay float32) or float16"),
}
_OUTCOME: Columns = {
    "status": ("str", "ok, or why there is no number: oom, unsupported, skipped, failed"),
    "message": ("str", "one line on the status, or on how an ok number was made"),
    "repeats": ("int64", "turns behind the medians; 1: its first run was too long to repeat"),
}

BENCH_COLUMNS: Columns = {
    "what": ("str", "train (a whole step), eval (a forward pass and its losses) or decode (one token, cached)"),
    "encoding": ("str", "canonical spec"),
    "tier": ("str", "highest tier of its blanks: token, distance, relative, pair or row"),
    "asked": ("str", "engine that was asked for; auto: the fastest one that can"),
    "engine": ("str", "attention engine that ran"),
    "engine_reason": ("str", "why no faster one ran"),
    "length": ("int64", "tokens in a window; of decode: tokens in the cache at the start"),
    "batch": ("int64", "windows at once"),
    "tokens": ("int64", "tokens of one run"),
    **_OUTCOME,
    "seconds": ("float64", "of one run: median over the turns"),
    "seconds_min": ("float64", ""),
    "seconds_max": ("float64", ""),
    "tokens_per_s": ("float64", "tokens / seconds"),
    "none_seconds": ("float64", "median of the same work with `none` on its fastest engine, in the same turns"),
    "ratio": ("float64", "seconds / none_seconds"),
    "ratio_low": ("float64", "least ratio of a turn"),
    "ratio_high": ("float64", "most"),
    "peak_mb": ("float64", "peak memory of one run above what lay in memory before it, MiB"),
    "none_peak_mb": ("float64", "the same of `none`"),
    "memory_of": ("str", "case: as said; process: the process's peak so far, where nothing better is known"),
    "flops": (
        "float64",
        "operations per token of the model's definition (poscli/flops.py); the encoding's are not in it",
    ),
    "product_gflops": ("float64", "rate of a matrix product in the same turns, at its median; train only"),
    "mfu": ("float64", "tokens_per_s x flops over the rate of that product; train only"),
    "parameters": ("int64", "of the model, encoding included"),
    **_SHAPE,
    **_WHERE,
}

LIMIT_COLUMNS: Columns = {
    "limit": ("str", "matrix product, memory copy, causal attention, causal attention with backward"),
    "dtype": ("str", ""),
    "shape": ("str", "rows x inner x columns; bytes; [B, H, S, D]"),
    "why": ("str", "what the shape is"),
    **_OUTCOME,
    "seconds": ("float64", "median"),
    "seconds_min": ("float64", ""),
    "seconds_max": ("float64", ""),
    "rate": ("float64", "at the median; attention: causal products only, 2 forward and 4 backward"),
    "unit": ("str", "GFLOP/s or GB/s"),
    **_WHERE,
}

AGAINST_COLUMNS: Columns = {
    "what": ("str", "train (a whole step, the same optimizer), forward+backward, or eval"),
    "encoding": ("str", "canonical spec"),
    "engine": ("str", "attention engine of poscli that ran"),
    "peer": ("str", "the other library and its version"),
    "peer_attention": ("str", "fused, or eager where the library has no fused path for this encoding"),
    "peer_differs": ("str", "in what its version of the encoding differs"),
    "length": ("int64", "tokens in a window"),
    "batch": ("int64", "windows at once"),
    "tokens": ("int64", "tokens of one run, the same for both"),
    **_OUTCOME,
    "seconds": ("float64", "poscli, of one run: median over the turns"),
    "seconds_min": ("float64", ""),
    "seconds_max": ("float64", ""),
    "peer_seconds": ("float64", "the same work in the other library, in the same turns"),
    "peer_seconds_min": ("float64", ""),
    "peer_seconds_max": ("float64", ""),
    "tokens_per_s": ("float64", "poscli"),
    "peer_tokens_per_s": ("float64", ""),
    "speedup": ("float64", "peer_seconds / seconds"),
    "speedup_low": ("float64", "least of a turn"),
    "speedup_high": ("float64", "most"),
    "peak_mb": ("float64", "peak memory of one run above what lay in memory before it, MiB"),
    "peer_peak_mb": ("float64", ""),
    "memory_of": ("str", "case: as said; process: the process's peak so far, where nothing better is known"),
    "parameters": ("int64", ""),
    "peer_parameters": ("int64", ""),
    **_SHAPE,
    **_WHERE,
}

# what names a measurement: a row with the same of all these need not be measured again
KEYS = {
    "bench.csv": ("what", "encoding", "asked", "length", "batch", *_SHAPE, *_WHERE),
    "machine.csv": ("limit", "dtype", "shape", "why", *_WHERE),
    "against.csv": ("what", "encoding", "peer", "length", "batch", *_SHAPE, *_WHERE),
}
SCHEMAS = {"bench.csv": BENCH_COLUMNS, "machine.csv": LIMIT_COLUMNS, "against.csv": AGAINST_COLUMNS}


class Table:
    """A CSV that is whole on disk after every row."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path, self.columns, self.key = path, SCHEMAS[path.name], KEYS[path.name]
        self.rows: list[Row] = []
        if resume and path.exists():
            known = read_table(path, self.columns)
            self.rows = [{str(name): value for name, value in row.items()} for row in known.to_dict("records")]

    def add(self, row: Row) -> None:
        """Append a row and write the file."""
        self.rows.append(row)
        write_table(self.path, self.frame())

    def has(self, row: Row) -> bool:
        """Is this measured already? `row` needs the columns of the key only."""
        return any(all(known[name] == row[name] for name in self.key) for known in self.rows)

    def frame(self) -> pd.DataFrame:
        """All rows; counts that a failure has not got are 0."""
        counts = dict.fromkeys((name for name, (kind, _) in self.columns.items() if kind == "int64"), 0)
        texts = dict.fromkeys((name for name, (kind, _) in self.columns.items() if kind == "str"), "")
        return frame([counts | texts | row for row in self.rows], self.columns)


def where(device: torch.device) -> Row:
    """The columns that say on what it ran."""
    return {
        "device": device_name(device),
        "machine": processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "poscli": poscli.__version__,
        "commit": commit(),
    }


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    except OSError:  # not Linux
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _cpuinfo() -> Iterator[str]:
    yield from Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
