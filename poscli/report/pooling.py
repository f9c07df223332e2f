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

from poscli.runs.schema import EVAL_COLUMNS, FULL
from poscli.system.errors import PoscliError, UsageError

LN2 = math.log(2)  # nats per bit
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
    chosen = chosen.drop_duplicates(["run_id", "length"], keep="last")
    points = [_point(part, measures) for _, part in chosen.groupby(["encoding", "length"], sort=True)]
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


def _point(part: pd.DataFrame, measures: list[str]) -> dict:
    usable = sound(part)
    good, bad = part[usable], part[~usable]
    point = {
        "encoding": part["encoding"].iloc[0],
        "length": int(part["length"].iloc[0]),
        "ratio": int(part["length"].iloc[0]) / int(part["train_length"].iloc[0]),
        "seeds": len(part),
        "failed": len(bad),
        "parameters": int(part["parameters"].max()),
        "status": "ok",
        "reason": "",
    }
    numbers = _numbers(good) | {name: good[name].mean() for name in measures} if len(good) else {}
    return point | _failure(bad, len(part)) | numbers


def _failure(bad: pd.DataFrame, runs: int) -> dict:
    if bad.empty:
        return {}
    first = bad.iloc[0]
    status = "nonfinite" if first["status"] == "ok" else first["status"]
    reason = first["reason"] or "no finite loss"
    return {"status": status, "reason": reason if len(bad) == runs else f"{len(bad)} of {runs} seeds: {reason}"}


def _numbers(good: pd.DataFrame) -> dict:
    """Means over seeds. The band of the loss is its 95 % interval for one seed, the range over several seeds."""
    nll, several = good["nll"], len(good) > 1
    low, high = (nll.min(), nll.max()) if several else (good["nll_low"].iloc[0], good["nll_high"].iloc[0])
    gain, gain_low, gain_high = _gain(good)
    return {
        "nll": nll.mean(),
        "ppl": perplexity(nll.mean()),
        "ppl_low": perplexity(low),
        "ppl_high": perplexity(high),
        "bpb": good["bpb"].mean(),
        "documents": int(good["documents"].max()),
        "gain": gain,
        "gain_low": gain_low,
        "gain_high": gain_high,
    }


def _gain(good: pd.DataFrame) -> tuple[float, float, float]:
    """Mean gain in bits per byte with a 95 % interval over documents and, where there are several, over seeds.

    The interval over seeds is Student's t. It is added in quadrature to the mean interval over documents, which more
    seeds do not narrow, because all seeds are scored on the same documents. Where the interval over documents of one
    seed is not defined, neither is the pooled one. Seeds without a gain do not count.
    """
    good = good[good["gain"].notna()]
    if good.empty:
        return math.nan, math.nan, math.nan
    bits = good["tokens"] / good["bytes"].where(good["bytes"] > 0) / LN2
    gain, low, high = (good[name] * bits for name in ("gain", "gain_low", "gain_high"))
    if len(good) == 1:
        return gain.iloc[0], low.iloc[0], high.iloc[0]
    count = len(good)
    seeds = stdtrit(count - 1, 0.975) * gain.std(ddof=1) / math.sqrt(count)
    below, above = (gain - low).mean(skipna=False), (high - gain).mean(skipna=False)
    return gain.mean(), gain.mean() - math.hypot(below, seeds), gain.mean() + math.hypot(above, seeds)


def perplexity(nll: float) -> float:
    """exp(nll), or infinity where a float cannot hold it."""
    return math.exp(nll) if nll < 709 else (math.inf if nll == nll else math.nan)
