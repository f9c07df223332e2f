"""The columns of a bench's result files. Every row says by itself what was measured, where, and with what spread.

`bench.csv` has one row per encoding, engine, workload and length; `machine.csv` has one per limit of the machine;
`against.csv` has one per workload that was compared with a peer. A case without a number is a row too: its
status says why.
"""

from __future__ import annotations

Columns = dict[str, tuple[str, str]]  # name -> (pandas dtype, meaning)

_WHERE: Columns = {
    "device": ("str", "cpu, or cuda: and the name of the GPU"),
    "machine": ("str", "name of the processor"),
    "cores": ("int64", "number of processors that the system reports"),
    "threads": ("int64", "number of threads that torch uses"),
    "torch": ("str", "version of torch"),
    "poscli": ("str", "version of poscli"),
    "commit": ("str", "commit of the source tree, + if it was changed; empty for an installed package"),
}
_SHAPE: Columns = {
    "train_length": ("int64", "tokens in a training window, L; the encoding is built for it"),
    "layers": ("int64", "layers of the model"),
    "width": ("int64", "width of the model"),
    "heads": ("int64", "attention heads of a layer"),
    "mlp": ("int64", "width of the hidden layer of the MLP"),
    "dtype": ("str", "precision of the run: float32, bfloat16 (weights and norms stay float32) or float16"),
}
_OUTCOME: Columns = {
    "status": ("str", "ok, or why there is no number: oom, unsupported, skipped, failed"),
    "message": ("str", "one line on the status, or on how an ok number was measured"),
    "repeats": ("int64", "turns behind the medians; 1 if the first run was too long to repeat"),
}
_TIMES: Columns = {
    "seconds": ("float64", "time of one run in poscli: median over the turns"),
    "seconds_min": ("float64", "shortest turn"),
    "seconds_max": ("float64", "longest turn"),
}
_MEMORY_OF: Columns = {
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
    **_OUTCOME,
    **_TIMES,
    "tokens_per_s": ("float64", "tokens / seconds"),
    "none_seconds": ("float64", "median for the encoding `none` on its fastest engine, in the same turns"),
    "ratio": ("float64", "seconds / none_seconds"),
    "ratio_low": ("float64", "smallest ratio of a turn"),
    "ratio_high": ("float64", "largest ratio of a turn"),
    "peak_mb": ("float64", "peak memory of one run above what was in use before it, MiB"),
    "none_peak_mb": ("float64", "peak_mb of `none`"),
    **_MEMORY_OF,
    "flops": (
        "float64",
        "operations per token by the model's definition (poscli/model/flops.py), without those of the encoding",
    ),
    "product_gflops": ("float64", "median rate of a matrix product in the same turns, GFLOP/s; train only"),
    "mfu": ("float64", "model FLOP utilisation: tokens_per_s x flops over the rate of that product; train only"),
    "parameters": ("int64", "parameters of the model, encoding included"),
    **_SHAPE,
    **_WHERE,
}

LIMIT_COLUMNS: Columns = {
    "limit": ("str", "matrix product, memory copy, causal attention, causal attention with backward"),
    "dtype": ("str", "dtype of the operands"),
    "shape": ("str", "rows x inner x columns; bytes; [B, H, S, D]"),
    "why": ("str", "where in the model this shape occurs"),
    **_OUTCOME,
    **_TIMES,
    "rate": ("float64", "work / seconds; attention counts its causal products only, 2 forward and 4 backward"),
    "unit": ("str", "GFLOP/s or GB/s"),
    **_WHERE,
}

AGAINST_COLUMNS: Columns = {
    "what": ("str", "train (a whole step with poscli's optimizer in both), forward+backward, or eval"),
    "encoding": ("str", "canonical spec"),
    "engine": ("str", "attention engine of poscli that ran"),
    "peer": ("str", "what poscli is compared with: a library and its version, or nanogpt-like"),
    "peer_attention": ("str", "fused, or eager where the peer has no fused path for this encoding and workload"),
    "peer_differs": ("str", "how its model and its version of the encoding differ; empty if they do not"),
    "length": ("int64", "tokens in a window"),
    "batch": ("int64", "windows at once"),
    "tokens": ("int64", "tokens that one run processes, equal for both"),
    **_OUTCOME,
    **_TIMES,
    "peer_seconds": ("float64", "time of one run in the peer: median over the same turns"),
    "peer_seconds_min": ("float64", "shortest turn"),
    "peer_seconds_max": ("float64", "longest turn"),
    "tokens_per_s": ("float64", "tokens / seconds"),
    "peer_tokens_per_s": ("float64", "tokens / peer_seconds"),
    "speedup": ("float64", "peer_seconds / seconds"),
    "speedup_low": ("float64", "smallest speedup of a turn"),
    "speedup_high": ("float64", "largest speedup of a turn"),
    "peak_mb": ("float64", "peak memory of one run in poscli above what was in use before it, MiB"),
    "peer_peak_mb": ("float64", "peak memory of one run in the peer"),
    **_MEMORY_OF,
    "parameters": ("int64", "parameters of poscli's model, encoding included"),
    "peer_parameters": ("int64", "parameters of the peer's model"),
    **_SHAPE,
    **_WHERE,
}

COLUMNS = {"bench.csv": BENCH_COLUMNS, "machine.csv": LIMIT_COLUMNS, "against.csv": AGAINST_COLUMNS}

# The columns that identify a measurement: `--resume` measures nothing again that has a row with equal values in them.
KEYS = {
    "bench.csv": ("what", "encoding", "asked", "length", "batch", *_SHAPE, *_WHERE),
    "machine.csv": ("limit", "dtype", "shape", "why", *_WHERE),
    "against.csv": ("what", "encoding", "peer", "length", "batch", *_SHAPE, *_WHERE),
}
