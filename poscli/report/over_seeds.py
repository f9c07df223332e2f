"""Intervals of losses and gains over seeds and documents, from units.csv."""

from __future__ import annotations

import math

import pandas as pd

from poscli.evaluation.plan import PAIRED
from poscli.report.per_byte import is_per_byte
from poscli.report.pooling import SEED_COLUMNS, headline, sound
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import LossTable
from poscli.statistics.intervals import Interval, two_level_interval


def with_intervals(rows: pd.DataFrame, units: LossTable) -> pd.DataFrame:
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
    units: LossTable, runs: list[str], protocol: str, length: int, *, is_gain: bool, by_bytes: bool
) -> Interval | None:
    """The interval of the mean loss, or of the mean gain, over some runs; None if their units are too few."""
    losses = (
        units.gains(runs, protocol, length, FULL, PAIRED) if is_gain else units.losses(runs, protocol, length, FULL)
    )
    if losses is None or len(losses.units) < 2:
        return None
    return two_level_interval(losses.nats, losses.bytes if by_bytes else losses.tokens)
