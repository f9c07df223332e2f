"""From timings to rows."""

from __future__ import annotations

from collections.abc import Sequence

from poscli.bench.machine import Limit
from poscli.bench.measure import Timing, ratio
from poscli.bench.settings import Case
from poscli.bench.table import Row
from poscli.config import RunConfig
from poscli.data import VOCAB
from poscli.flops import evaluation_flops, training_flops


def case_row(config: RunConfig, case: Case) -> Row:
    """The columns that name a case of a model."""
    shape = config.model
    return {
        "what": case.what,
        "encoding": config.encoding,
        "length": case.length,
        "batch": case.batch,
        "tokens": case.tokens,
        "train_length": config.length,
        "layers": shape.layers,
        "width": shape.width,
        "heads": shape.heads,
        "mlp": shape.mlp,
        "dtype": config.precision,
    }


def bench_numbers(config: RunConfig, case: Case, own: Timing, none: Timing) -> Row:
    """What was measured of a case, beside `none` in the same turns."""
    compared = ratio(own, none)
    numbers = _times(own) | {
        "tokens_per_s": case.tokens / own.median,
        "none_seconds": none.median,
        "ratio": compared.median,
        "ratio_low": compared.low,
        "ratio_high": compared.high,
        "peak_mb": own.peak_mb,
        "none_peak_mb": none.peak_mb,
        "memory_of": own.memory_of,
    }
    if case.what == "decode":
        return numbers
    flops = training_flops if case.what == "train" else evaluation_flops
    return numbers | {"flops": flops(config.model, VOCAB, case.length)}


def utilisation(numbers: Row, product: Timing, limit: Limit) -> Row:
    """Model FLOPs of a training step per second, over those of a matrix product in the same turns."""
    rate = limit.amount / product.median
    return {"product_gflops": rate / 1e9, "mfu": numbers["tokens_per_s"] * numbers["flops"] / rate}


def against_numbers(case: Case, own: Timing, peer: Timing | None) -> Row:
    """What was measured of a pair; of poscli alone where the other library gives no number."""
    numbers = _times(own) | {
        "tokens_per_s": case.tokens / own.median,
        "peak_mb": own.peak_mb,
        "memory_of": own.memory_of,
    }
    if peer is None:
        return numbers
    faster = ratio(peer, own)
    others = {f"peer_{name}": value for name, value in _times(peer).items() if name.startswith("seconds")}
    return numbers | others | {
        "peer_tokens_per_s": case.tokens / peer.median,
        "speedup": faster.median,
        "speedup_low": faster.low,
        "speedup_high": faster.high,
        "peer_peak_mb": peer.peak_mb,
    }  # fmt: skip


def limit_numbers(limit: Limit, timing: Timing) -> Row:
    """What was measured of a limit."""
    return _times(timing) | {"rate": limit.amount / timing.median / 1e9}


def repeated(timings: Sequence[Timing], seconds: float) -> str:
    """What a row says where there is one run only."""
    once = len(timings[0].seconds) == 1 and timings[0].median > seconds
    return f"one run, not repeated: it took longer than --seconds {seconds:g}" if once else ""


def _times(timing: Timing) -> Row:
    return {
        "status": "ok",
        "repeats": len(timing.seconds),
        "seconds": timing.median,
        "seconds_min": min(timing.seconds),
        "seconds_max": max(timing.seconds),
    }
