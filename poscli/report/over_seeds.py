"""Intervals over seeds and documents together, from the losses of each document in units.csv."""

from __future__ import annotations

import math
from collections.abc import Hashable

import pandas as pd

from poscli.evaluation.intervals import Interval, two_level_interval
from poscli.evaluation.plan import PAIRED
from poscli.report.pooling import SEED_COLUMNS, headline, sound
from poscli.report.verdicts import ENOUGH_SEEDS
from poscli.runs.schema import FULL


def with_intervals(rows: pd.DataFrame, units: pd.DataFrame) -> pd.DataFrame:
    """Rows of eval.csv with SEED_COLUMNS: intervals over the seeds and documents of each encoding, in nats per token.

    They stand on the rows of every encoding with ENOUGH_SEEDS runs that have a loss, for the loss under the protocol
    that reports quote, and for the gain under the protocol of the gain; elsewhere they are NaN.
    """
    chosen = headline(rows)
    made = {column: pd.Series(math.nan, index=rows.index) for column in SEED_COLUMNS}
    own = rows[sound(rows) & (rows["variant"] == FULL)]
    for protocol, low, high, is_gain in (
        (chosen.perplexity, "seeds_nll_low", "seeds_nll_high", False),
        (chosen.gain, "seeds_gain_low", "seeds_gain_high", True),
    ):
        part = units[units["protocol"] == protocol]
        for (_, length), group in own[own["protocol"] == protocol].groupby(["encoding", "length"]):
            found = _interval(part[part["length"] == length], list(group["run_id"].unique()), is_gain=is_gain)
            if found is not None:
                made[low][group.index], made[high][group.index] = found.low, found.high
    return rows.assign(**made)


def _interval(units: pd.DataFrame, runs: list[Hashable], *, is_gain: bool) -> Interval | None:
    """The interval of the mean loss, or of the mean gain, over some runs; None if they are too few."""
    if len(runs) < ENOUGH_SEEDS:
        return None
    totals, tokens = nats(units, runs, FULL)
    if is_gain:
        cropped, _ = nats(units, runs, PAIRED)
        totals = (cropped - totals).dropna(axis=1)
    if totals.shape[0] < ENOUGH_SEEDS or totals.shape[1] < 2:
        return None
    return two_level_interval(totals.to_numpy(), tokens[totals.columns].to_numpy())


def nats(units: pd.DataFrame, runs: list[Hashable], variant: str) -> tuple[pd.DataFrame, pd.Series]:
    """(nats, tokens) of every unit of text that all of these runs scored; one row per run, in their order."""
    part = units[(units["variant"] == variant) & units["run_id"].isin(runs)]
    part = part.assign(total=part["nll"] * part["tokens"])
    totals = part.pivot_table(index="run_id", columns="unit", values="total", aggfunc="last")
    totals = totals.reindex(runs).dropna(axis=0, how="all").dropna(axis=1)
    return totals, part.groupby("unit")["tokens"].last().reindex(totals.columns)
