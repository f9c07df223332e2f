"""Losses of each unit of text over several runs, from units.csv, and intervals over seeds and documents from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from poscli.evaluation.plan import PAIRED
from poscli.report.per_byte import is_per_byte
from poscli.report.pooling import SEED_COLUMNS, headline, sound
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.intervals import Interval, two_level_interval, unseen_share

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UnitLosses:
    """Of S runs on the D units of text that all of them scored: nats `[S, D]`, and tokens and bytes `[D]`.

    Where runs scored other amounts of a unit, the nats are those of as many bytes as the first run scored there.
    """

    units: NDArray[np.str_]
    nats: Array
    tokens: Array
    bytes: Array

    def on(self, units: NDArray[np.str_]) -> UnitLosses:
        """The losses on some of the units, which are sorted."""
        chosen = np.searchsorted(self.units, units)
        return UnitLosses(units, self.nats[:, chosen], self.tokens[chosen], self.bytes[chosen])

    def minus(self, other: UnitLosses) -> Array:
        """The differences in nats, `[S, D]`, of as many bytes as these are; units and runs are the same."""
        return self.nats - other.nats * _as_much(self.bytes, other.bytes)


def _as_much(wanted: Array, scored: Array) -> Array:
    """By how much losses of the scored bytes grow to be those of as many bytes as are wanted."""
    return np.divide(wanted, scored, out=np.ones_like(wanted), where=scored > 0)


class Units:
    """The table of units, in parts by run, protocol, length and variant. (Tables of pandas are slow to cut.)

    `of_answers` says that a loss is the share of wrong tokens of an answer, in bits (`accuracy.wrong_answers`).
    """

    def __init__(self, table: pd.DataFrame, *, of_answers: bool = False) -> None:
        self.of_answers = of_answers
        table = table.sort_values("unit", kind="stable")
        names = table["unit"].to_numpy(dtype=str)
        columns = [table[name].to_numpy(dtype=float) for name in ("nll", "tokens", "bytes")]
        groups = table.groupby(["run_id", "protocol", "length", "variant"]).indices
        self._parts = {key: (names[at], *(values[at] for values in columns)) for key, at in groups.items()}

    def losses(self, runs: Sequence[str], protocol: str, length: int, variant: str = FULL) -> UnitLosses | None:
        """The losses of these runs, one row each; None if one of them has none, or they share no unit."""
        keys = [(run, protocol, length, variant) for run in runs]
        if not keys or any(key not in self._parts for key in keys):
            return None
        parts = [self._parts[key] for key in keys]
        common = parts[0][0]
        for names, *_ in parts[1:]:
            common = np.intersect1d(common, names)
        if not len(common):
            return None
        at = [np.searchsorted(names, common) for names, *_ in parts]
        tokens, sizes = (column[at[0]] for column in parts[0][2:])
        nats = [part[1][i] * part[2][i] * _as_much(sizes, part[3][i]) for part, i in zip(parts, at, strict=True)]
        return UnitLosses(common, np.stack(nats), tokens, sizes)

    def least_reach(self, differences: Array) -> float:
        """How far the interval of the mean of differences `[S, D]` reaches at least, to either side.

        It is 0 for losses. Two encodings whose answers are the same in all D documents would still differ in some of a
        million: the interval then has to allow for a share of these that D documents are likely to miss.
        """
        return unseen_share(differences.shape[1]) if self.of_answers else 0.0

    def bounded(self, estimate: Array, low: Array, high: Array, least: Array) -> tuple[Array, Array]:
        """The ends of intervals of differences, which reach at least so far; shares do not differ by more than 1."""
        low, high = np.minimum(low, estimate - least), np.maximum(high, estimate + least)
        return (np.maximum(low, -1.0), np.minimum(high, 1.0)) if self.of_answers else (low, high)


def with_intervals(rows: pd.DataFrame, units: Units) -> pd.DataFrame:
    """Rows of eval.csv with SEED_COLUMNS: intervals over the seeds and documents of each encoding, in nats per token.

    They stand on the rows of every encoding with FEWEST_SEEDS runs that have a loss, for the loss under the protocol
    that reports quote, and for the gain under the protocol of the gain; elsewhere they are NaN. On rows of several
    tokenizers, which `per_byte` has converted, they are per byte and stand on all rows that have a loss: the intervals
    of eval.csv are over tokens, and documents differ in how many bytes a token has.
    """
    chosen, by_bytes = headline(rows), is_per_byte(rows)
    fewest = 1 if by_bytes else FEWEST_SEEDS
    made = {column: pd.Series(math.nan, index=rows.index) for column in SEED_COLUMNS}
    own = rows[sound(rows) & (rows["variant"] == FULL)]
    for protocol, low, high, is_gain in (
        (chosen.perplexity, "seeds_nll_low", "seeds_nll_high", False),
        (chosen.gain, "seeds_gain_low", "seeds_gain_high", True),
    ):
        for (_, length), group in own[own["protocol"] == protocol].groupby(["encoding", "length"]):
            runs = list(group["run_id"].unique())
            if len(runs) < fewest:
                continue
            found = _interval(units, runs, protocol, int(length), is_gain=is_gain, by_bytes=by_bytes)
            if found is not None:
                made[low][group.index], made[high][group.index] = found.low, found.high
    return rows.assign(**made)


def _interval(
    units: Units, runs: list[str], protocol: str, length: int, *, is_gain: bool, by_bytes: bool
) -> Interval | None:
    """The interval of the mean loss, or of the mean gain, over some runs; None if their units are too few."""
    found = units.losses(runs, protocol, length)
    if found is None:
        return None
    nats = found.nats
    if is_gain:
        cropped = units.losses(runs, protocol, length, PAIRED)
        if cropped is None or not np.array_equal(cropped.units, found.units):
            return None
        nats = cropped.minus(found)
    counts = found.bytes if by_bytes else found.tokens
    return two_level_interval(nats, counts) if nats.shape[1] > 1 else None
