"""How long a window may be: what is proven of safe and harmful lengths, and up to which length a task is solved.

A safe length is one at which, and at all shorter ones, the 95 % interval of the context gain excludes a harm of
HARM_BPB; lengths are asked from the shortest on, until one is not shown. A harmful length is one at which, and at all
longer ones that were measured, the whole interval lies at that harm or beyond it; lengths are asked from the longest
down. What lies between is undecided. Because a length is asked only after all before it were shown, the intervals of
single lengths need no correction for how many there are (tests in fixed order; Maurer, Hothorn and Lehmacher 1995):
each of the two statements goes too far in about one of 40 experiments, and in up to one of eight where few documents
carry most of the harm, because an interval of skewed numbers is too short on one side.

The effective length of a task is the largest at which, and at all shorter ones, SOLVED_SHARE of the answers are right.
Its interval goes from the largest length up to which that is sure, because the interval of the accuracy lies at that
share or above it at every length, to the largest up to which it is possible, because it lies below the share at none.
These are 95 % intervals, as those of the accuracies are: over seeds and episodes, with few seeds over episodes. Only
where the true accuracies of several lengths are all within a standard error of the share do fewer hold the truth: 90 %
if those of five lengths are the share itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from poscli.drawing.text import listed
from poscli.report.pooling import ACCURACY, ratio_name
from poscli.report.verdicts import HARM_BPB, PROVEN_HARMFUL, PROVEN_SAFE, SOLVED_SHARE, UNDECIDED
from poscli.statistics import FEWEST_SEEDS

EFFECTIVE = ("effective", "effective_low", "effective_high")  # columns of the summary
ROUNDING = 1e-9  # of a mean of accuracies


def proven_lengths(gains: pd.DataFrame) -> tuple[float, float]:
    """The largest proven safe and the smallest proven harmful length of one encoding, as multiples of L.

    `gains` are its points. The safe length is 1 if no longer one is proven; the harmful one is NaN if none is. Both are
    NaN if no longer length has enough seeds. A failed seed ends what is safe, and says nothing about harm.
    """
    longer = gains[gains["ratio"] > 1].sort_values("ratio")
    points = list(longer[["ratio", "gain_low", "gain_high", "seeds", "failed"]].itertuples(index=False, name=None))
    if all(seeds < FEWEST_SEEDS for *_, seeds, _ in points):
        return math.nan, math.nan
    enough = [
        (ratio, low, high, failed) for ratio, low, high, seeds, failed in points if seeds - failed >= FEWEST_SEEDS
    ]
    complete = {ratio: low > -HARM_BPB for ratio, low, _, failed in enough if not failed}
    safe = last_shown(1.0, ((ratio, complete.get(ratio, False)) for ratio, *_ in points))
    harmful = last_shown(math.nan, ((ratio, high <= -HARM_BPB) for ratio, _, high, _ in reversed(enough)))
    return safe, harmful


def last_shown(before: float, lengths: Iterable[tuple[float, bool]]) -> float:
    """The last of the lengths that, as all before it, is shown to have a property; `before` if the first is not."""
    for ratio, shown in lengths:
        if not shown:
            break
        before = ratio
    return before


def safety(safe: float, harmful: float, measured: Iterable[float]) -> str:
    """What is proven of the `measured` lengths, all multiples of L, in words; empty if the safe length is not known.

    >>> safety(2, 16, [1, 2, 4, 8, 16])
    'proven safe to 2x, undecided at 4x and 8x, proven harmful from 16x'
    >>> safety(1, math.nan, [1, 2]), safety(1, 2, [1, 2]), safety(2, math.nan, [1, 2])
    ('undecided at 2x', 'proven harmful from 2x', 'proven safe to 2x')
    """
    if math.isnan(safe):
        return ""
    open_ = [ratio_name(ratio) for ratio in sorted(measured) if safe < ratio and not ratio >= harmful]
    parts = [
        f"{PROVEN_SAFE} to {ratio_name(safe)}" if safe > 1 else "",
        f"{UNDECIDED} at {listed(open_)}" if open_ else "",
        f"{PROVEN_HARMFUL} from {ratio_name(harmful)}" if harmful == harmful else "",
    ]
    return ", ".join(filter(None, parts))


def effective_ratio(scores: pd.DataFrame) -> float:
    """The effective length of one encoding, from its points, indexed by the ratio: a multiple of L.

    It is the largest length at which, as at all shorter ones, the mean accuracy of its seeds is at least SOLVED_SHARE,
    and 0 if it is not at L. NaN if the task has no accuracy. (Hsieh et al., 2024, arXiv:2404.06654, call this the
    effective context size.)
    """
    return _solved_to(scores, ACCURACY)


def effective_interval(scores: pd.DataFrame, answers: pd.DataFrame) -> tuple[float, float]:
    """The 95 % interval of the effective length of one encoding; NaN where that of the accuracy is not known.

    `answers` are its points of `accuracy.by_length`.
    """
    ends = answers.set_index("ratio").reindex(scores.index)
    low, high = (_solved_to(scores.assign(end=ends[name]), "end") for name in ("low", "high"))
    return low, high


def _solved_to(scores: pd.DataFrame, column: str) -> float:
    """The largest length at which, as at all shorter ones, this column is at least SOLVED_SHARE."""
    if column not in scores or scores[column].isna().all():
        return math.nan
    ordered = scores.sort_index()
    solved = (ordered["failed"] == 0) & (ordered[column] >= SOLVED_SHARE - ROUNDING)
    return last_shown(0.0, zip(map(float, ordered.index), solved, strict=True))


def effective_text(summary: pd.DataFrame, train_length: int = 0) -> tuple[str, ...]:
    """The effective length of each encoding with its interval; with `train_length`, also in tokens.

    >>> table = pd.DataFrame([(2, 1, 4), (0, 0, 1), (4, math.nan, math.nan)], columns=EFFECTIVE)
    >>> effective_text(table), effective_text(table, 32)[0]
    (('2x [1x, 4x]', '0x [0x, 1x]', '4x'), '2x (64) [1x, 4x]')
    """
    texts = []
    for length, low, high in summary[list(EFFECTIVE)].itertuples(index=False, name=None):
        tokens = f" ({round(length * train_length)})" if train_length and length > 0 else ""
        ends = f" [{ratio_name(low)}, {ratio_name(high)}]" if low == low else ""
        texts.append("-" if length != length else f"{ratio_name(length)}{tokens}{ends}")
    return tuple(texts)
