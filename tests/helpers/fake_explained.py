"""Invented tables of `poscli extrapolate --why` and of other analyses, for the tests of what reports say of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from fake_results import LN2, runs_of

from poscli.runs.schema import DETAILS, frame

LONG = 4  # times L: the long window of an attribution
CHANGES = ("base", "full", "offset", "gap", "crowd", "sinkless")
# The harm in bits of every change of CHANGES, or the status of one without a number.
HARMS: dict[str, tuple[float | str, ...]] = {
    "alibi": (0, 0.004, 0.001, 0.4, 0.002, "void"),
    "fire": (0, 0.1, 0.08, 0.09, 0.025, "void"),
    "learned": (0, "unsupported", "unsupported", "void", "void", "void"),
    "none": (0, 0.9, "void", "void", 0.8, 0.7),
    "rope": (0, 0.5, 0.0, 0.45, 0.1, "void"),
    "sinusoidal": (0, 1.5, 1.2, 0.3, "void", "void"),
    "t5(buckets=32)": (0, -0.02, 0.0, "fault", 0.0, "void"),
}
REASONS = {
    "unsupported": "learned table of 256 positions has no row for position 1023",
    "void": "it uses no positions",
    "fault": "by definition nothing may change, but the loss of a token changes by 0.3 nats",
}


def explained(rows: pd.DataFrame, all_harms: Mapping[str, tuple[float | str, ...]] = HARMS) -> dict[str, pd.DataFrame]:
    """All tables of --why for the runs in rows of eval.csv; each later seed has a tenth more of everything."""
    made: dict[str, list[dict]] = {name: [] for name in DETAILS if name.startswith("why/")}
    for n, run in enumerate(runs_of(rows)):
        harms, more = all_harms[run["encoding"]], 1 + 0.1 * run["seed"]
        made["why/attribution"] += [run | each for each in _attribution(harms, run["train_length"], more)]
        if harms[1] == "unsupported":
            continue
        made["why/saturation"] += [run | each for each in _saturation(n, run["train_length"], more)]
        made["why/receptive"] += [run | each for each in _receptive(n, run["train_length"], more)]
        made["why/dilution"] += [run | each for each in _dilution(n, run["train_length"], more)]
        made["why/key_tokens"] += [run | each for each in _key_tokens(n, more)]
    return {name: _frame(each, name) for name, each in made.items()}


def _attribution(harms: tuple[float | str, ...], length: int, more: float) -> list[dict]:
    rows = []
    for change, harm in zip(CHANGES, harms, strict=True):
        status = harm if isinstance(harm, str) else "ok"
        nats = math.nan if isinstance(harm, str) else harm * more * LN2
        row = {"change": change, "status": status, "reason": REASONS.get(status, ""), "nll": 1.0 + nats, "harm": nats}
        rows.append(
            row
            | {
                "train_length": length,
                "length": LONG * length,
                "share": math.nan,
                "share_low": math.nan,
                "share_high": math.nan,
            }
        )
    return rows


def _saturation(n: int, length: int, more: float) -> list[dict]:
    """Every third run is best with the longest window, one needs less than L, one is harmed beyond L."""
    slope = (-0.05, 0.0, 0.08)[n // 3 % 3]
    windows = [length // 4, length // 2, length, 2 * length, 4 * length]
    nll = [1.2, 1.1 if n % 2 else 1.004, 1.0, 1.0 + slope * more, 1.0 + 2 * slope * more]
    rows = []
    for window, loss in zip(windows, nll, strict=True):
        excess, half = loss - min(nll), 0.004 * (loss > min(nll))
        ends = {"excess": excess, "excess_low": excess - half, "excess_high": excess + half}
        rows.append({"window": window, "tokens": 900, "documents": 9, "nll": loss} | ends)
    return rows


def _receptive(n: int, length: int, more: float) -> list[dict]:
    beyond = math.nan if n == 0 else 0.04 * n * more
    bins = [(0, length - 1), (length, 4 * length - 1)]
    rows = [{"method": "gradient", "from": a, "to": b, "value": 0.5, "beyond": beyond} for a, b in bins]
    return rows + [{"method": "replace", "from": a, "to": b, "value": 0.01 * n * more * LN2} for a, b in bins]


def _dilution(n: int, length: int, more: float) -> list[dict]:
    at = [(window, layer, head) for window in (length, 4 * length) for layer in (1, 2) for head in (1, 2)]
    return [
        {"window": window, "layer": layer, "head": head}
        | {"entropy": 0.3 + 0.03 * n + 0.02 * layer + 0.01 * head + 1e-4 * window}
        | {"far_mass": 0.02 * n * more + 0.01 * head * (window > length)}
        for window, layer, head in at
    ]


def _key_tokens(n: int, more: float) -> list[dict]:
    few = n // 3 % 4 == 3
    gain = math.nan if few else 0.15 * (n // 3 % 4) * more
    key = {"kind": "key", "tokens": 3 if few else 60 + n, "nll": 1.5 * LN2 if not few else math.nan}
    key |= {"nll_crop": (1.5 + gain) * LN2, "gain": gain * LN2, "gain_low": (gain - 0.2) * LN2, "gain_high": gain + 1}
    other = {"kind": "other", "tokens": 900, "nll": 1.0, "nll_crop": 1.01, "gain": 0.01 * n, "gain_low": 0.0}
    return [key, other]


def with_optimum(rows: pd.DataFrame, per_octave: float) -> pd.DataFrame:
    """Rows of eval.csv of a source whose smallest loss falls by so many nats with each doubling of the window."""
    octaves = np.log2(rows["ratio"].where(rows["variant"] != "crop", 1.0))
    return rows.assign(optimum=1.2 - per_octave * octaves)


def recall_of(rows: pd.DataFrame, gains: dict[int, float], tokens: int = 400) -> pd.DataFrame:
    """recall.csv of the runs in rows of eval.csv: the gain in bits at each distance, less with every encoding."""
    made = []
    kinds = {name: n for n, name in enumerate(dict.fromkeys(rows["encoding"]))}
    for run in runs_of(rows):
        for first, bits in gains.items():
            gain = (bits - 0.03 * kinds[run["encoding"]] + 0.01 * run["seed"]) * LN2
            bins = {"from": first, "to": 2 * first - 1, "ngram": 5, "tokens": tokens - (first == 64) * 380}
            made += [
                run | bins | {"kind": kind, "gain": gain, "gain_low": gain - 0.05, "gain_high": gain + 0.06}
                for kind in ("hit", "miss")
            ]
    return _frame(made, "recall")


def _frame(rows: list[dict], name: str) -> pd.DataFrame:
    """The table of a name; counts that rows do not say are 0."""
    counts = {column: 0 for column, (kind, _) in DETAILS[name].items() if kind == "int64"}
    return frame([counts | row for row in rows], DETAILS[name])
