"""From rows of single runs to one point per encoding and length, pooled over seeds; failures are kept.

Losses are averaged in nats over seeds, so a pooled perplexity is a geometric mean. Gains and bits are per byte of the
original text, because nats per token cannot be compared between tokenizers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from poscli.report.per_byte import TOKENS, is_per_byte
from poscli.runs.schema import EVAL_COLUMNS, FULL, perplexity
from poscli.system.errors import PoscliError, UsageError

LN2 = math.log(2)  # nats per bit
ACCURACY = "accuracy"  # the measure of the tasks that have right answers
Part = dict[str, np.ndarray]  # the columns of some rows
POINT = [
    "encoding", "length", "ratio", "seeds", "failed", "status", "reason", "parameters", "documents", "nll", "ppl",
    "ppl_low", "ppl_high", "bpb", "excess", "gain", "gain_low", "gain_high",
]  # fmt: skip
# Ends of 95 % intervals over seeds and documents, in nats per token, which over_seeds.py adds to rows.
SEED_COLUMNS = ("seeds_nll_low", "seeds_nll_high", "seeds_gain_low", "seeds_gain_high")


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


def gain_protocol(rows: pd.DataFrame, protocol: str) -> str:
    """The protocol whose gain is shown with the losses of a protocol: its own if it has one, else the quoted one.

    The quoted protocol of losses is shown with the quoted protocol of gains, as everywhere in a report. Empty if
    neither measured a gain.
    """
    chosen = headline(rows)
    measured = set(rows.loc[rows["gain"].notna() & (rows["variant"] == FULL), "protocol"])
    if protocol in measured and protocol != chosen.perplexity:
        return protocol
    return chosen.gain if chosen.gain in measured else ""


def task_measures(rows: pd.DataFrame) -> list[str]:
    """The numeric columns that a task added to the schema, such as `accuracy`, if any row has a number there."""
    added = rows[[name for name in rows.columns if name not in (*EVAL_COLUMNS, *SEED_COLUMNS, TOKENS)]].select_dtypes(
        "number"
    )
    return [str(name) for name in added.columns if added[name].notna().any()]


def pool(rows: pd.DataFrame, protocol: str, variant: str = FULL) -> pd.DataFrame:
    """One point per (encoding, length) of one protocol and variant, over its seeds, sorted by both.

    `status` is `ok` or the first failure among the seeds; `failed` counts failed seeds. Numbers come from the seeds
    that have one. `gain` and its interval are in bits per byte; of rows of several tokenizers, `ppl` and its interval
    are, too. Measures of a task are averaged over seeds. Rows with SEED_COLUMNS have intervals over seeds; without
    them, the intervals are over documents only.
    """
    measures = task_measures(rows)
    rows = rows if SEED_COLUMNS[0] in rows else rows.assign(**dict.fromkeys(SEED_COLUMNS, math.nan))
    chosen = rows[(rows["protocol"] == protocol) & (rows["variant"] == variant)]
    chosen = chosen.drop_duplicates(["run_id", "length"], keep="last").assign(sound=sound)
    columns = {
        str(name): chosen[name].to_numpy() for name in chosen.columns
    }  # a hundred times faster to cut than a table
    groups = sorted(chosen.groupby(["encoding", "length"]).indices.items())
    points = [_point({name: values[at] for name, values in columns.items()}, measures) for _, at in groups]
    table = pd.DataFrame(points, columns=[*POINT, *measures])
    if is_per_byte(rows):  # the score is then the loss in bits per byte, which its logarithm was
        table[["ppl", "ppl_low", "ppl_high"]] = np.log(table[["ppl", "ppl_low", "ppl_high"]].astype(float)) / LN2
    return table


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
    """Means over seeds. The band of the loss is its interval over seeds; without one, over documents."""
    nll = good["nll"]
    low, high = _interval(good, "nll", np.ones(len(nll)))
    gain, gain_low, gain_high = _gain(good)
    return {
        "nll": nll.mean(),
        "ppl": perplexity(nll.mean()),
        "ppl_low": perplexity(low),
        "ppl_high": perplexity(high),
        "bpb": _mean(good["bpb"]),
        "excess": _mean(good["bpb"] * (1 - good["optimum"] / good["nll"])),  # bits per byte above the optimum
        "documents": int(good["documents"].max()),
        "gain": gain,
        "gain_low": gain_low,
        "gain_high": gain_high,
    }


def _gain(good: Part) -> tuple[float, float, float]:
    """Mean gain in bits per byte with its 95 % interval. Seeds without a gain do not count."""
    good = _where(good, ~np.isnan(good["gain"]))
    if not len(good["gain"]):
        return math.nan, math.nan, math.nan
    bits = good["tokens"] / np.where(good["bytes"] > 0, good["bytes"], math.nan) / LN2
    return _mean(good["gain"] * bits), *_interval(good, "gain", bits)


def _interval(good: Part, column: str, scale: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean over seeds: that over seeds and documents if it is known, else that over documents.

    The interval over documents is that of the mean of the seeds, as if these seeds were all there are. It is as wide as
    that of one seed, because all seeds are scored on the same documents.
    """
    low, high = good[f"seeds_{column}_low"] * scale, good[f"seeds_{column}_high"] * scale
    if not np.isnan(low).all():
        return _mean(low), _mean(high)
    values, lows, highs = (good[name] * scale for name in (column, f"{column}_low", f"{column}_high"))
    return values.mean() - (values - lows).mean(), values.mean() + (highs - values).mean()
