"""The result files of a bench: their columns, and a CSV that is written after every row, so that nothing is lost.

Every row says by itself what was measured, where, and with what spread. `bench.csv` has one row per encoding, engine,
workload and length; `machine.csv` has one per limit of the machine, and `profile.csv` one per part of a run. A case
without a number is a row too: its status says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from poscli.bench.timing import Row
from poscli.runs.schema import frame, read_table, write_table
from poscli.system.errors import UsageError
from poscli.system.text import counted

Columns = dict[str, tuple[str, str]]  # name -> (pandas dtype, meaning)

VERSIONS: Columns = {
    "torch": ("str", "version of torch"),
    "poscli": ("str", "version of poscli"),
    "commit": ("str", "commit of the source tree, + if it was changed; empty for an installed package"),
}
WHERE: Columns = {
    "device": ("str", "cpu, or cuda: and the name of the GPU"),
    "machine": ("str", "name of the processor"),
    "cores": ("int64", "number of processors that the system reports"),
    "threads": ("int64", "number of threads that torch uses"),
    **VERSIONS,
}
SHAPE: Columns = {
    "train_length": ("int64", "tokens in a training window, L; the encoding is built for it"),
    "layers": ("int64", "layers of the model"),
    "width": ("int64", "width of the model"),
    "heads": ("int64", "attention heads of a layer"),
    "mlp": ("int64", "width of the hidden layer of the MLP"),
    "dtype": ("str", "precision of the run: float32, bfloat16 (weights and norms stay float32) or float16"),
}
OUTCOME: Columns = {
    "status": ("str", "ok, or why there is no number: oom, unsupported, skipped, failed"),
    "message": ("str", "one line on the status, or on how an ok number was measured"),
    "repeats": ("int64", "turns behind the medians; 1 if the first run was too long to repeat"),
}
TIMES: Columns = {
    "seconds": ("float64", "time of one run in poscli: median over the turns"),
    "seconds_min": ("float64", "shortest turn"),
    "seconds_max": ("float64", "longest turn"),
}
MEMORY_OF: Columns = {
    "memory_of": ("str", "case: of this run; process: of the process so far, where the system reports nothing better"),
}

BENCH_COLUMNS: Columns = {
    "what": ("str", "train (a whole step), eval (a forward pass and its losses) or decode (one token, cached)"),
    "encoding": ("str", "canonical spec"),
    "tier": ("str", "highest tier of the encoding's blanks: token, distance, relative, pair or row"),
    "asked": ("str", "engine that was asked for; auto is the fastest one that can run the encoding"),
    "engine": ("str", "attention engine that ran"),
    "engine_reason": ("str", "why no faster engine ran"),
    "length": ("int64", "tokens in a window; for decode: tokens in the cache at the start"),
    "batch": ("int64", "windows at once"),
    "tokens": ("int64", "tokens that one run processes"),
    **OUTCOME,
    **TIMES,
    "tokens_per_s": ("float64", "tokens / seconds"),
    "none_seconds": ("float64", "median for the encoding `none` on its fastest engine, in the same turns"),
    "ratio": ("float64", "seconds / none_seconds"),
    "ratio_low": ("float64", "smallest ratio of a turn"),
    "ratio_high": ("float64", "largest ratio of a turn"),
    "peak_mb": ("float64", "peak memory of one run above what was in use before it, MiB"),
    "none_peak_mb": ("float64", "peak_mb of `none`"),
    **MEMORY_OF,
    "flops": (
        "float64",
        "operations per token by the model's definition (poscli/model/flops.py), without those of the encoding",
    ),
    "product_gflops": ("float64", "median rate of a matrix product in the same turns, GFLOP/s; train only"),
    "mfu": ("float64", "model FLOP utilisation: tokens_per_s x flops over the rate of that product; train only"),
    "parameters": ("int64", "parameters of the model, encoding included"),
    **SHAPE,
    **WHERE,
}

LIMIT_COLUMNS: Columns = {
    "limit": ("str", "matrix product, memory copy, causal attention, causal attention with backward"),
    "dtype": ("str", "dtype of the operands"),
    "shape": ("str", "rows x inner x columns; bytes; [B, H, S, D]"),
    "why": ("str", "where in the model this shape occurs"),
    **OUTCOME,
    **TIMES,
    "rate": ("float64", "work / seconds; attention counts its causal products only, 2 forward and 4 backward"),
    "unit": ("str", "GFLOP/s or GB/s"),
    **WHERE,
}

BREAKDOWN_COLUMNS: Columns = {
    "what": BENCH_COLUMNS["what"],
    "encoding": BENCH_COLUMNS["encoding"],
    "asked": BENCH_COLUMNS["asked"],
    "engine": BENCH_COLUMNS["engine"],
    "length": BENCH_COLUMNS["length"],
    "batch": BENCH_COLUMNS["batch"],
    **OUTCOME,
    "part": ("str", "part of the run; what belongs to no other one is the rest"),
    "seconds": ("float64", "time of the part under the profiler: share x profiled_seconds"),
    "share": ("float64", "share of the part: median over the turns"),
    "profiled_seconds": (
        "float64",
        "time of the whole under the profiler: median over the turns; the sum of its parts",
    ),
    "plain_seconds": ("float64", "time of the whole without the profiler: median over the turns"),
    **SHAPE,
    **WHERE,
}

COLUMNS = {"bench.csv": BENCH_COLUMNS, "machine.csv": LIMIT_COLUMNS}

# The columns that identify a measurement: `--resume` measures nothing again if a row with these values has a number.
KEYS: dict[str, tuple[str, ...]] = {
    "bench.csv": ("what", "encoding", "asked", "length", "batch", *SHAPE, *WHERE),
    "machine.csv": ("limit", "dtype", "shape", "why", *WHERE),
}


class ResultFile:
    """The rows of one CSV with these columns; those of one case have equal values of `key`.

    Without a key nothing is known of what was measured before, so that such a file is never resumed.
    """

    def __init__(self, path: Path, columns: Columns, key: Sequence[str] = ()) -> None:
        self.path, self.columns, self.key = path, columns, key
        self.rows: list[Row] = []
        self.failed = False  # whether a row was added since whose case failed

    def open(self, *, resume: bool) -> None:
        """Take over the rows on disk. UsageError if there are any without `resume`, CorruptError if it is damaged.

        No other process may be writing the file.
        """
        if not self.path.exists():
            return
        known = read_table(self.path, self.columns)
        if len(known) and not resume:
            raise UsageError(
                f"{self.path} has {counted(len(known), 'row')}, which would be replaced; "
                f"{'keep them with --resume, or ' if self.key else ''}delete it, or choose another folder with --out"
            )
        self.rows = [{str(name): value for name, value in row.items()} for row in known.to_dict("records")]

    def add(self, row: Row) -> None:
        """Append a row, in place of an earlier one of its case, and write the file."""
        if self.key:
            self.rows = [known for known in self.rows if not self._are_of_one_case(known, row)]
        self.rows.append(row)
        self.failed = self.failed or row["status"] == "failed"
        write_table(self.path, self.table())

    def find(self, row: Row) -> Row | None:
        """The row of this file that has a number for the same case as `row`; None if there is none.

        What has no number is to be tried again: another limit, more memory or a package may help.
        """
        known = (known for known in self.rows if known["status"] == "ok")
        return next((each for each in known if self._are_of_one_case(each, row)), None)

    def _are_of_one_case(self, one: Row, other: Row) -> bool:
        return all(one[name] == other[name] for name in self.key)

    def known_columns(self, row: Row) -> Row:
        """The part of a row whose columns this file has."""
        return {name: value for name, value in row.items() if name in self.columns}

    def table(self) -> pd.DataFrame:
        """All rows; a failed row has 0 in counts and empty texts where nothing was measured."""
        counts = dict.fromkeys((name for name, (kind, _) in self.columns.items() if kind == "int64"), 0)
        texts = dict.fromkeys((name for name, (kind, _) in self.columns.items() if kind == "str"), "")
        return frame([counts | texts | row for row in self.rows], self.columns)
