"""The values of rows: what identifies a case, and what follows from its timings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from poscli.bench.cases import BenchCase
from poscli.bench.conditions import Row
from poscli.bench.limits import MachineLimit
from poscli.bench.synthetic import VOCAB
from poscli.bench.timing import Timing, ratio
from poscli.config.run import RunConfig
from poscli.equation import TIERS
from poscli.model.flops import evaluation_flops, training_flops
from poscli.model.transformer import Model


def case_values(config: RunConfig, case: BenchCase) -> Row:
    """The columns that identify a case of a model."""
    return {
        "what": case.what,
        "encoding": config.encoding,
        "length": case.length,
        "batch": case.batch,
        "tokens": case.tokens,
        "train_length": config.length,
        "dtype": config.precision,
        **config.model.model_dump(include={"layers", "width", "heads", "mlp"}),
    }


def model_values(model: Model, case: BenchCase) -> Row:
    """The columns that say how the model computes attention in a case."""
    with torch.set_grad_enabled(case.training):
        return {
            "tier": max((encoding.tier for encoding in model.encodings), key=TIERS.index),
            "engine": model.engine,
            "engine_reason": model.engine_reason,
            "parameters": model.size,
        }


def bench_values(config: RunConfig, case: BenchCase, own: Timing, none: Timing) -> Row:
    """The measured columns of a case; `none` is the timing of the same case without a position encoding."""
    compared = ratio(own, none)
    values = _case_measurements(case, own) | {
        "none_seconds": none.median,
        "ratio": compared.median,
        "ratio_low": compared.low,
        "ratio_high": compared.high,
        "none_peak_mb": none.peak_mb,
    }
    if case.what == "decode":
        return values
    flops = training_flops if case.what == "train" else evaluation_flops
    return values | {"flops": flops(config.model, VOCAB, case.length)}


def utilisation(values: Row, product: Timing, limit: MachineLimit) -> Row:
    """Model FLOP/s of a training step over the FLOP/s of a matrix product that was timed in turns with it."""
    rate = limit.amount / product.median
    return {"product_gflops": rate / 1e9, "mfu": values["tokens_per_s"] * values["flops"] / rate}


def against_values(case: BenchCase, own: Timing, peer: Timing | None) -> Row:
    """The measured columns of a comparison; those of poscli alone where the peer was not timed."""
    values = _case_measurements(case, own)
    if peer is None:
        return values
    faster, measured = ratio(peer, own), _case_measurements(case, peer)
    names = ("seconds", "seconds_min", "seconds_max", "tokens_per_s", "peak_mb")
    return values | {f"peer_{name}": measured[name] for name in names} | {
        "speedup": faster.median,
        "speedup_low": faster.low,
        "speedup_high": faster.high,
    }  # fmt: skip


def limit_values(limit: MachineLimit, timing: Timing) -> Row:
    """The measured columns of a limit of the machine."""
    return _times(timing) | {"rate": limit.amount / timing.median / 1e9}


def once_message(timings: Sequence[Timing], seconds: float) -> str:
    """The message of a row whose first run took longer than `seconds` and was not repeated; else empty."""
    once = len(timings[0].seconds) == 1 and timings[0].median > seconds
    return f"one run, not repeated: it took longer than --seconds {seconds:g}" if once else ""


def _case_measurements(case: BenchCase, timing: Timing) -> Row:
    memory = {"peak_mb": timing.peak_mb, "memory_of": timing.memory_of}
    return _times(timing) | memory | {"tokens_per_s": case.tokens / timing.median}


def _times(timing: Timing) -> Row:
    return {
        "status": "ok",
        "repeats": len(timing.seconds),
        "seconds": timing.median,
        "seconds_min": min(timing.seconds),
        "seconds_max": max(timing.seconds),
    }
