"""From rows of single runs to one point per encoding and length, pooled over seeds; failures are kept.

Losses are averaged in nats over seeds, so a pooled perplexity is a geometric mean. Gains and bits are per byte of the
original text, because nats per token cannot be compared between tokenizers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from poscli.runs.schema import EVAL_COLUMNS, FULL, perplexity
from poscli.system.errors import PoscliError, UsageError

LN2 = math.log(2)  # nats per bit
Part = dict[str, np.ndarray]  # the columns of some rows
POINT = [
    "encoding", "length", "ratio", "seeds", "failed", "status", "reason", "parameters", "documents", "nll", "ppl",
    "ppl_low", "ppl_high", "bpb", "gain", "gain_low", "gain_high",
]  # fmt: skip


class NothingToPlot(PoscliError):
    """A figure has no number to show."""


class Headline(NamedTuple):
    """The protocols that summary and figures quote; `gain` is empty where no protocol measured a gain."""

    perplexity: str
    gain: str


def headline(rows: pd.DataFrame) -> Headline:
    """Choose the protocols to quote among those in the rows.

    Perplexity comes from `sliding`, the gain from `fixed`. Where the rows lack these, perplexity comes from the first
    protocol in the rows and the gain from the first that has one.
    """
    found = list(dict.fromkeys(rows["protocol"]))
    with_gain = dict.fromkeys(rows.loc[rows["gain"].notna(), "protocol"])
    perplexity = "sliding" if "sliding" in found else found[0]
    return Headline(perplexity, "fixed" if "fixed" in found else next(iter(with_gain), ""))


def task_measures(rows: pd.DataFrame) -> list[str]:
    """The numeric columns that a task added to the schema, such as `accuracy`, if any row has a number there."""
    added = rows[[name for name in rows.columns if name not in EVAL_COLUMNS]].select_dtypes("number")
    return [str(name) for name in added.columns if added[name].notna().any()]


def pool(rows: pd.DataFrame, protocol: str, variant: str = FULL) -> pd.DataFrame:
    """One point per (encoding, length) of one protocol and variant, over its seeds, sorted by both.

    `status` is `ok` or the first failure among the seeds; `failed` counts failed seeds. Numbers come from the seeds
    that have one. `gain` and its interval are in bits per byte. Measures of a task are averaged over seeds.
    """
    measures = task_measures(rows)
    chosen = rows[(rows["protocol"] == protocol) & (rows["variant"] == variant)]
    chosen = chosen.drop_duplicates(["run_id", "length"], keep="last").assign(sound=sound)
    columns = {
        str(name): chosen[name].to_numpy() for name in chosen.columns
    }  # a hundred times faster to cut than a table
    groups = sorted(chosen.groupby(["encoding", "length"]).indices.items())
    points = [_point({name: values[at] for name, values in columns.items()}, measures) for _, at in groups]
    return pd.DataFrame(points, columns=[*POINT, *measures])


def sound(rows: pd.DataFrame) -> pd.Series:
    """Which rows have a loss that is a number."""
    return (rows["status"] == "ok") & np.isfinite(rows["nll"])


def the_train_length(rows: pd.DataFrame) -> int:
    """The only training length of these rows; UsageError if there are several, which cannot be compared."""
    lengths = sorted(set(rows["train_length"]))
    if len(lengths) != 1:
        found = ", ".join(map(str, lengths)) or "none"
        raise UsageError(f"training lengths {found}: one table or plot needs exactly one; split the rows first")
    return int(lengths[0])


def _point(part: Part, measures: list[str]) -> dict:
    good, bad = _where(part, part["sound"]), _where(part, ~part["sound"])
    runs, failed = len(part["sound"]), len(bad["sound"])
    point = {
        "encoding": part["encoding"][0],
        "length": int(part["length"][0]),
        "ratio": int(part["length"][0]) / int(part["train_length"][0]),
        "seeds": runs,
        "failed": failed,
        "parameters": int(part["parameters"].max()),
        "status": "ok",
        "reason": "",
    }
    numbers = _numbers(good) | {name: _mean(good[name]) for name in measures} if failed < runs else {}
    return point | (_failure(bad, runs) if failed else {}) | numbers


def _where(part: Part, chosen: np.ndarray) -> Part:
    return {name: values[chosen] for name, values in part.items()}


def _mean(values: np.ndarray) -> float:
    """The mean of the values that are numbers; NaN if none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _failure(bad: Part, runs: int) -> dict:
    status = "nonfinite" if bad["status"][0] == "ok" else bad["status"][0]
    reason, failed = bad["reason"][0] or "no finite loss", len(bad["status"])
    return {"status": status, "reason": reason if failed == runs else f"{failed} of {runs} seeds: {reason}"}


def _numbers(good: Part) -> dict:
    """Means over seeds. The band of the loss is its 95 % interval for one seed, the range over several seeds."""
    nll = good["nll"]
    low, high = (nll.min(), nll.max()) if len(nll) > 1 else (good["nll_low"][0], good["nll_high"][0])
    gain, gain_low, gain_high = _gain(good)
    return {
        "nll": nll.mean(),
        "ppl": perplexity(nll.mean()),
        "ppl_low": perplexity(low),
        "ppl_high": perplexity(high),
        "bpb": _mean(good["bpb"]),
        "documents": int(good["documents"].max()),
        "gain": gain,
        "gain_low": gain_low,
        "gain_high": gain_high,
    }


def _gain(good: Part) -> tuple[float, float, float]:
    """Mean gain in bits per byte with a 95 % interval over documents and, where there are several, over seeds.

    The interval over seeds is Student's t. It is added in quadrature to the mean interval over documents, which more
    seeds do not narrow, because all seeds are scored on the same documents. Where the interval over documents of one
    seed is not defined, neither is the pooled one. Seeds without a gain do not count.
    """
    good = _where(good, ~np.isnan(good["gain"]))
    count = len(good["gain"])
    if not count:
        return math.nan, math.nan, math.nan
    bits = good["tokens"] / np.where(good["bytes"] > 0, good["bytes"], math.nan) / LN2
    gains, lows, highs = (good[name] * bits for name in ("gain", "gain_low", "gain_high"))
    if count == 1:
        return gains[0], lows[0], highs[0]
    seeds = stdtrit(count - 1, 0.975) * gains.std(ddof=1) / math.sqrt(count)
    gain, below, above = _mean(gains), (gains - lows).mean(), (highs - gains).mean()
    return gain, gain - math.hypot(below, seeds), gain + math.hypot(above, seeds)
