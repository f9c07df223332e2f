"""The gate at the training length: which encodings are too far behind the best there to be ranked beyond it.

The limit is UNDERTRAINED_RATIO times the perplexity of the best encoding on the same tokens. It stands on published
comparisons, which are of text. It does not hold for tasks with right answers, for images and for texts of known limit,
where a model that ignores positions may be behind by any factor, however long it is trained. Nor does it hold for
models that are scored as an encoding that they were not trained with, and for sections of several tokenizers, whose
losses are per byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from poscli.drawing.text import listed, named, number
from poscli.report.origin import bits_per
from poscli.report.pooling import headline, is_answered, is_per_byte, of_model, sound
from poscli.report.verdicts import UNDERTRAINED_RATIO, can_win
from poscli.runs.run import AS
from poscli.runs.schema import FULL
from poscli.statistics.comparison import EncodingLosses, LossTable
from poscli.statistics.intervals import many_differences


class Behind(NamedTuple):
    """An encoding at its training length beside the best one: their perplexities, and how many times as large it is.

    `low` and `high` are the ends of the 95 % interval of the `ratio`, paired over seeds and documents; they are the
    ratio itself where the interval is not known.
    """

    encoding: str
    best: str
    perplexity: float
    least: float
    ratio: float
    low: float
    high: float

    @property
    def times(self) -> str:
        """The ratio with its interval, such as `1.31 [1.28, 1.34]`."""
        return f"{self.ratio:.2f}" + (f" [{self.low:.2f}, {self.high:.2f}]" if self.low < self.high else "")


def behind(rows: pd.DataFrame, units: LossTable | None = None) -> list[Behind]:
    """Every encoding that the gate may judge, but for the best.

    `units` are the losses of single documents, without which no intervals are known.
    """
    if is_answered(rows) or rows["optimum"].notna().any() or is_per_byte(rows) or bits_per(rows) != "bits per byte":
        return []
    protocol, found = headline(rows).perplexity, list[Behind]()
    scored = of_model(rows, protocol)
    own = ~scored["encoding"].str.contains(AS, regex=False)  # the label of one that was trained with another
    scored = scored[(scored["length"] == scored["train_length"]) & own & (scored["bytes"] > 0)]
    scored = scored.drop_duplicates("run_id", keep="last")
    losses = None if units is None else EncodingLosses(rows, sound(rows), units, protocol)
    for _, part in scored.groupby("fingerprint"):
        means, length = part.groupby("encoding")["nll"].mean(), int(part["length"].iloc[0])
        best, bytes_per_token = str(means.idxmin()), float(part["bytes"].sum() / part["tokens"].sum())
        others = [str(name) for name in means.index if name != best]
        pairs = [None if losses is None else losses.pair((name, FULL), (best, FULL), length) for name in others]
        for name, numbers in zip(others, many_differences(pairs, test=False)[:, :3].tolist(), strict=True):
            ends = [2 ** (bits * bytes_per_token) for bits in numbers]
            if math.isnan(ends[1]):
                ends = [math.exp(means[name] - means[best])] * 3
            found.append(Behind(name, best, math.exp(means[name]), math.exp(means[best]), *ends))
    return found


def undertrained(found: Sequence[Behind]) -> dict[str, str]:
    """The encodings whose whole interval lies above the limit, each with the numbers."""
    return {
        each.encoding: f"perplexity {number(each.perplexity)} at its training length, {each.times} times that of "
        f"{named(each.best)} ({number(each.least)}); the limit is {UNDERTRAINED_RATIO}"
        for each in found
        if each.low > UNDERTRAINED_RATIO
    }


def gate_note(found: Sequence[Behind], summary: pd.DataFrame) -> list[str]:
    """The ranked encodings of which the limit lies within the interval, as one note, or none."""
    ranked = set(summary.loc[summary["verdict"].map(can_win), "encoding"])
    near = [
        f"{named(each.encoding)} with {each.times}"
        for each in found
        if each.low <= UNDERTRAINED_RATIO < each.high and each.encoding in ranked
    ]
    times = f"times the perplexity of the best at 1x; the interval includes the limit of {UNDERTRAINED_RATIO}"
    return [f"Perhaps undertrained, but ranked: {listed(near)} {times}."] if near else []
