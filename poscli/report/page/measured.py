"""The numbers of one section of the page: losses and gains by length, and whatever is known per seed only.

Losses are in bits per byte, of images per cell. A point is a list, short because there are thousands: status, failed
seeds, reason, then the loss with the ends of its interval, the gain with those of its own, and tokens per byte. Numbers
that have no table of documents behind them, such as seconds, are lists of one value per seed, in the order of the
section's seeds; from them the page computes Student's interval over seeds, absolute or relative to another encoding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from poscli.report.comparison import Pairs, losses_of
from poscli.report.per_byte import is_per_byte
from poscli.report.pooling import LN2, pool, sound, task_measures
from poscli.report.recalled import FEWEST_TOKENS, hits
from poscli.report.sections import Group
from poscli.runs.schema import FULL
from poscli.statistics.comparison import BETTER, NOT_COMPARED, TOO_FEW, WITHIN_NOISE, WORSE
from poscli.statistics.intervals import many_differences
from poscli.why.attribution import CAUSES
from poscli.why.attribution import FULL as WHOLE

Values = list[float | None]
DIGITS = 5


def short(value: float) -> float | None:
    """A number for JSON: five decimals, None for NaN and infinity.

    >>> short(2.1234567), short(float("nan")), short(3.0)
    (2.12346, None, 3)
    """
    value = float(value)
    if not math.isfinite(value):
        return None
    rounded = round(value, DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded


def shorts(values: Iterable[float]) -> Values:
    """Several numbers for JSON."""
    return [short(value) for value in values]


def points(group: Group, protocol: str, names: Sequence[str], lengths: Sequence[int]) -> list[list[Any]]:
    """The points of a protocol by encoding and length; None where there is no row."""
    table, per_byte = pool(group.rows, protocol), _tokens_per_byte(group.rows, protocol)
    if is_per_byte(group.rows):  # what `pool` calls a perplexity is then the loss in bits per byte already
        table, per_byte = table.assign(ppl_low=2 ** table["ppl_low"], ppl_high=2 ** table["ppl_high"]), {}
    known = {(row["encoding"], row["length"]): row for row in table.to_dict("records")}
    exact = None
    if group.units is not None:
        losses = losses_of(group.rows, group.units, protocol)
        cases = [losses.of((name, FULL), length) for name in names for length in lengths]
        exact = many_differences(cases, test=False)[:, :3].reshape(len(names), len(lengths), 3)
    found: list[list[Any]] = []
    for i, name in enumerate(names):
        line: list[Any] = []
        for k, length in enumerate(lengths):
            row = known.get((name, length))
            loss = exact[i, k] if exact is not None else np.full(3, math.nan)
            line.append(None if row is None else _point(row, loss, per_byte.get((name, length), 1.0)))
        found.append(line)
    return found


def _point(row: dict[Any, Any], loss: np.ndarray, per_byte: float) -> list[Any]:
    """A point from the pooled row; `loss` is [mean, low, high] over seeds and documents, NaN where that is unknown."""
    low, high = loss[1:]
    if math.isnan(low):  # without a table of units, the interval over documents from eval.csv
        low, high = (_bits(row[end], per_byte) for end in ("ppl_low", "ppl_high"))
    status = row["status"] if row["status"] != "ok" or math.isfinite(row["bpb"]) else "infinite"
    gain = shorts(row[name] for name in ("gain", "gain_low", "gain_high"))
    return [status, int(row["failed"]), row["reason"], *shorts([row["bpb"], low, high]), *gain, short(per_byte)]


def _bits(perplexity: float, per_byte: float) -> float:
    return math.log2(perplexity) * per_byte if perplexity and math.isfinite(perplexity) else math.nan


def _tokens_per_byte(rows: pd.DataFrame, protocol: str) -> dict[tuple[str, int], float]:
    own = rows[(rows["protocol"] == protocol) & (rows["variant"] == FULL) & sound(rows) & (rows["bytes"] > 0)]
    sums = own.groupby(["encoding", "length"])[["tokens", "bytes"]].sum()
    return (sums["tokens"] / sums["bytes"]).to_dict()


class PerSeed:
    """Lists of one value per seed, for each encoding."""

    def __init__(self, names: Sequence[str], seeds: Sequence[int]) -> None:
        self.names, self.seeds = list(names), list(seeds)

    def of(self, table: pd.DataFrame, column: str) -> list[Values]:
        """The values of a column of rows with `encoding` and `seed`, a list for each encoding; None if missing."""
        known = table.drop_duplicates(["encoding", "seed"]).set_index(["encoding", "seed"])[column].to_dict()
        return [shorts(known.get((name, seed), math.nan) for seed in self.seeds) for name in self.names]


def task_values(rows: pd.DataFrame, per_seed: PerSeed, lengths: Sequence[int]) -> dict[str, Any]:
    """The columns that a task added, such as accuracy: by name, then protocol, values by length, encoding and seed."""
    own = rows[(rows["variant"] == FULL) & (rows["status"] == "ok")]
    return {
        name: {
            str(protocol): [per_seed.of(part[part["length"] == length], name) for length in lengths]
            for protocol, part in own.groupby("protocol")
            if part[name].notna().any()
        }
        for name in task_measures(own)
    }


def by_position(group: Group, per_seed: PerSeed, skip: int, per_byte: float) -> list[dict[str, Any]]:
    """Loss by position in the longest window of each encoding: bins [from, to] with bits per byte by seed."""
    table = group.positions
    if table.empty:
        return []
    table = table[table["length"] == table.groupby("encoding")["length"].transform("max")]
    table = table[table["to"] > skip].assign(bits=lambda own: own["nll"] / LN2 * per_byte)
    return [
        {"from": int(first), "to": int(last), "values": per_seed.of(part, "bits")}
        for (first, last), part in table.groupby(["from", "to"])
    ]


def by_distance(group: Group, per_seed: PerSeed) -> list[dict[str, Any]]:
    """Recall by distance: bins [from, to] with the gain on tokens that could be copied, bits per token by seed."""
    if "recall" not in group.details:
        return []
    table = hits(group.details["recall"])
    table = table[table["tokens"] >= FEWEST_TOKENS].assign(bits=lambda own: own["gain"] / LN2)
    return [
        {"from": int(first), "to": int(last), "values": per_seed.of(part, "bits")}
        for (first, last), part in table.groupby(["from", "to"])
    ]


def attribution(group: Group, per_seed: PerSeed) -> list[dict[str, Any]]:
    """Harm of the long window, and of one change at a time, in bits per token by seed; or why there is none."""
    table = group.details.get("why/attribution")
    if table is None or table.empty:
        return []
    titles = {WHOLE: "the whole window"} | {change: f"{what} ({change})" for change, what in CAUSES.items()}
    found = []
    for change, title in titles.items():
        part = table[table["change"] == change]
        known = part[part["status"] == "ok"].assign(bits=lambda own: own["harm"] / LN2)
        failed = part[(part["status"] != "ok") & ~part["encoding"].isin(known["encoding"])]
        reasons = failed.drop_duplicates("encoding").set_index("encoding")
        why = [
            f"{reasons.loc[name, 'status']}: {reasons.loc[name, 'reason']}" if name in reasons.index else ""
            for name in per_seed.names
        ]
        found.append({"title": title, "values": per_seed.of(known, "bits"), "why": why})
    return found


UNITS = 100_000  # differences reach the page as whole multiples of 1e-5, which are half as long in JSON
LETTERS = {BETTER: "b", WORSE: "w", WITHIN_NOISE: "n", TOO_FEW: "t", NOT_COMPARED: "-"}


def packed(pairs: Pairs) -> dict[str, Any]:
    """Every pair at every length as [difference, low, high] in 1 / UNITS, and for every base a letter for each word."""
    numbers = [None if math.isnan(v) else round(v * UNITS) for each in pairs.comparisons for v in each.numbers]
    return {"numbers": numbers, "words": ["".join(map(LETTERS.__getitem__, pairs.words(base))) for base in pairs.names]}
