"""Synthetic results that behave as real encodings do, so that reports can be tested without training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from poscli.config.code import MEASURING, code_of
from poscli.config.run import SCHEMA
from poscli.runs.schema import DETAILS, EVAL_COLUMNS, POSITION_COLUMNS, frame

LN2 = math.log(2)
RATIOS = (1, 2, 4, 8, 16)
PROTOCOLS = ("nonoverlapping", "sliding", "fixed")
UNIGRAM = 3.3  # nats per byte of English text or source code

# (nll at the training length, gain in nats as a function of log2(l / L)); None: unsupported beyond L
Shape = tuple[float, Callable[[float], float] | None]
BEHAVIOUR: dict[str, Shape] = {
    "alibi": (1.385, lambda octaves: 0.004 * octaves),
    "learned": (1.44, None),
    "none": (1.47, lambda octaves: -0.05 * octaves**1.6),
    "rope": (1.36, lambda octaves: -0.16 * octaves**1.5),
    "sinusoidal": (1.43, lambda octaves: -0.75 * octaves),
    "t5(buckets=32)": (1.375, lambda octaves: 0.008 * octaves if octaves < 3 else -0.01 * octaves),
}

MACHINE = {
    "schema": SCHEMA, "tokenizer": "bytes", "tokens_per_s": 150000.0, "peak_mb": 620.0, "parameters": 842000,
    "engine": "sdpa", "device": "cpu", "dtype": "float32", "poscli": "0.1.0", "commit": "0123abc", "machine": "bench",
    "cpu": "a processor", "torch": "2.13.0", "trained_code": "",
}  # fmt: skip


def many(count: int) -> dict[str, Shape]:
    """`count` invented encodings, from a small gain to a collapse; every fourteenth has no number beyond L."""
    random = np.random.default_rng(count)
    shapes: dict[str, Shape] = {}
    for index in range(count):
        slope = 0.006 - 0.9 * (index / count) ** 4
        base = 1.36 + 0.1 * float(random.random())
        shapes[f"encoding{index:02d}"] = (base, None if index % 14 == 13 else _line(slope))
    return shapes


def _line(slope: float) -> Callable[[float], float]:
    return lambda octaves: slope * octaves


def results(
    shapes: dict[str, Shape] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    train_length: int = 256,
    lengths: Sequence[int] = (),
    corpus: str = "stdlib",
    fingerprint: str = "3f2a9c41d0e7",
    protocols: Sequence[str] = PROTOCOLS,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The eval and position tables of one run per encoding and seed. Reports of one protocol take half of the time."""
    lengths = lengths or [train_length * ratio for ratio in RATIOS]
    evals: list[dict] = []
    positions: list[dict] = []
    for name, shape in (shapes or BEHAVIOUR).items():
        for seed in seeds:
            run = {"run_id": f"{name.split('(')[0]}-{fingerprint[:3]}{train_length}{seed}", "encoding": name}
            run |= {"seed": seed, "fingerprint": fingerprint, "train_length": train_length}
            for length, protocol in itertools.product(lengths, protocols):
                variants = ("full", "crop", "window") if protocol != "nonoverlapping" else ("full",)
                evals += [_eval(shape, run | {"corpus": corpus}, length, protocol, each) for each in variants]
            positions += _positions(shape, run, lengths)
    return frame(evals, EVAL_COLUMNS), frame(positions, POSITION_COLUMNS)


def of_two_tokenizers() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs on bytes, and runs with tokens of 4 bytes whose losses per token are 5 times as large."""
    ours, of_bytes = results(corpus="stdlib")
    theirs, of_tokens = results(fingerprint="77aa88bb99cc")
    five = ["nll", "nll_low", "nll_high", "gain", "gain_low", "gain_high", "unigram", "chance", "guess_gain_low"]
    theirs = theirs.assign(tokenizer="bpe:300 (bpe1-0123456789abcdef)", bytes=4 * theirs["tokens"])
    theirs = theirs.assign(**{name: 5 * theirs[name] for name in five})
    theirs = theirs.assign(ppl=np.exp(theirs["nll"]), bpb=theirs["nll"] / LN2 / 4)
    return pd.concat([ours, theirs], ignore_index=True), pd.concat(
        [of_bytes, of_tokens.assign(nll=5 * of_tokens["nll"])], ignore_index=True
    )


def _eval(shape: Shape, run: dict, length: int, protocol: str, variant: str) -> dict:
    base, gain_of = shape
    ratio = length / run["train_length"]
    row = run | {"length": length, "ratio": ratio, "protocol": protocol, "variant": variant, "seconds": 0.4 * ratio}
    row |= MACHINE | {"measured_code": code_of(run["encoding"], MEASURING)}
    row |= {"stride": length if protocol == "nonoverlapping" else 128}
    if gain_of is None and ratio > 1 and variant != "crop":
        reason = f"learned table of {run['train_length']} positions has no row for position {length}"
        return row | {"status": "unsupported", "reason": reason, "tokens": 0, "bytes": 0, "documents": 0}
    gain = {"crop": 0.0, "window": (1.3 - base) * 0.3 * math.log2(ratio)}.get(variant)
    gain = gain_of(math.log2(ratio)) if gain is None and gain_of else gain or 0.0
    gain *= 1 + 0.06 * (run["seed"] - 1)
    nll = base + {"nonoverlapping": 0.12 / ratio, "sliding": 0.0, "fixed": -0.02}[protocol] - gain
    half = 0.002 + 0.08 * abs(gain) if ratio > 1 and variant != "crop" else 0.0
    told = math.nan if protocol == "nonoverlapping" else gain
    loss = {"nll": nll, "bpb": nll / LN2, "ppl": math.exp(nll), "nll_low": nll - 0.03, "nll_high": nll + 0.03}
    gains = {"gain": told, "gain_low": told - half, "gain_high": told + half}
    guess = {"unigram": UNIGRAM, "chance": math.log(257), "guess_gain_low": UNIGRAM - nll - 0.01}
    sizes = {"tokens": 131072, "bytes": 131072, "documents": 21, "resampled": "documents"}
    return row | {"status": "ok", "reason": ""} | loss | gains | guess | sizes


def _positions(shape: Shape, run: dict, lengths: Sequence[int]) -> list[dict]:
    base, gain_of = shape
    rows = []
    for length in lengths:
        if gain_of is None and length > run["train_length"]:
            continue
        edges = np.unique(np.round(2 ** np.arange(0, math.log2(length) + 0.01, 0.5)).astype(int))
        for first, last in zip(np.r_[1, edges[:-1] + 1], edges, strict=True):
            past = max(0.0, math.log2(last / run["train_length"]))
            gain = gain_of(past) if gain_of else 0.0
            nll = base + 2.6 / math.sqrt(last) - gain + 0.012 * math.sin(7 * last + base * 100)
            count = int(last - first + 1) * 64
            rows.append(
                dict(run, length=length, to=int(last), tokens=count, nll=nll, tail_slope=0.0) | {"from": int(first)}
            )
    return rows


def runs_of(rows: pd.DataFrame) -> list[dict]:
    """The columns that name a run, of every run in rows of eval.csv."""
    names = ["run_id", "encoding", "seed", "fingerprint", "train_length"]
    return rows.drop_duplicates("run_id")[names].to_dict("records")


def units_of(evals: pd.DataFrame, documents: int = 12) -> pd.DataFrame:
    """The table of units that belongs to rows of eval.csv: documents whose losses average to those of the rows.

    A document is as hard for every model; its gain differs from the mean by a tenth or so.
    """
    draw = np.random.default_rng(7)
    hard, gains = draw.normal(0, 0.3, documents), draw.normal(0, 0.1, documents)
    hard, gains = hard - hard.mean(), gains - gains.mean()
    rows = []
    for row in evals[evals["status"] == "ok"].to_dict("records"):
        common = {name: row[name] for name in DETAILS["units"] if name in row}
        tokens = row["tokens"] // documents
        gain = 0.0 if math.isnan(row["gain"]) else row["gain"]
        for n in range(documents):
            nll = row["nll"] + hard[n] - gain * gains[n]
            rows.append(common | {"unit": str(n), "tokens": tokens, "bytes": tokens, "nll": nll})
    return frame(rows, DETAILS["units"])
