"""Would other seeds give the same order? Pairs of encodings that some seeds tell apart, ordered by other seeds.

The seeds of a section are divided into two halves in every way. Each half says which pairs of encodings it tells apart
(p < 0.05 after Holm's correction for all pairs), and the other half, which had no part in that, orders them anew.
"""

from __future__ import annotations

import math
from itertools import combinations

import pandas as pd

from poscli.drawing.text import low_to_high, number
from poscli.report.comparison import losses_of
from poscli.report.data import Analysis
from poscli.report.pooling import headline, ratio_name
from poscli.report.table import Column, words
from poscli.report.verdicts import can_win
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import SIGNIFICANT, LossTable, judged

MOST_SEEDS = 8  # which have 35 divisions into halves; more would cost time and say no more


def order_under_other_seeds(rows: pd.DataFrame, units: LossTable, summary: pd.DataFrame) -> Analysis | None:
    """How far the halves of the seeds agree on the order of encodings, at L and at the longest length.

    `rows` are those of eval.csv. Encodings that failed or learned too little, by their verdict in the `summary`, are
    left out. None if a half would have fewer than three seeds, or if there are no two encodings.
    """
    protocol = headline(rows).gain
    scored = rows[(rows["protocol"] == protocol) & (rows["variant"] == FULL)]
    names = [str(row["encoding"]) for row in summary.to_dict("records") if can_win(row["verdict"])]
    of_each = [set(scored.loc[scored["encoding"] == name, "seed"]) for name in names]
    seeds = sorted(set.intersection(*of_each))[:MOST_SEEDS] if of_each else []
    if len(names) < 2 or len(seeds) < 2 * FEWEST_SEEDS:
        return None
    size = len(seeds) // 2
    # The halves in both roles: one tells apart, the other orders. Of an odd number, the last seed is in no half.
    divisions = [(set(one), set(seeds[: 2 * size]) - set(one)) for one in combinations(seeds[: 2 * size], size)]
    losses = {
        half: losses_of(rows[rows["seed"].isin(half)], units, protocol)
        for half in map(frozenset, combinations(seeds[: 2 * size], size))
    }
    pairs = list(combinations([(name, FULL) for name in names], 2))
    lines = []
    for length in sorted({int(scored["length"].min()), int(scored["length"].max())}):
        found = {half: judged(each.compare((*pair, length) for pair in pairs)) for half, each in losses.items()}
        told, taus = [], []
        for one, other in divisions:
            apart = [
                a.difference * b.difference > 0
                for a, b in zip(found[frozenset(one)], found[frozenset(other)], strict=True)
                if a.p_holm <= SIGNIFICANT
            ]
            told.append(len(apart))
            taus.append(2 * sum(apart) / len(apart) - 1 if apart else math.nan)
        lines.append((length, told, taus))
    return _analysis(lines, len(pairs), size, int(rows["train_length"].iloc[0]))


def _analysis(lines: list[tuple[int, list[int], list[float]]], pairs: int, size: int, train_length: int) -> Analysis:
    """The analysis of (length, pairs told apart, Kendall's tau on these) for every division."""
    ratios = [ratio_name(length / train_length) for length, _, _ in lines]
    known = [[tau for tau in taus if tau == tau] for _, _, taus in lines]
    cells = [
        f"{sum(each) / len(each):.2f} ({number(min(each))} to {number(max(each))})" if each else "-" for each in known
    ]
    _, told, _ = lines[-1]
    answer = f"At {ratios[-1]}, {size} seeds tell {low_to_high(set(told))} of {pairs} pairs apart"
    if known[-1]:
        answer += (
            f", and {size} other seeds order these with a Kendall's tau of {sum(known[-1]) / len(known[-1]):.2f} "
            f"(at least {min(known[-1]):.2f}, in {len(told)} divisions of the seeds)"
        )
    return Analysis(
        "Would other seeds give the same order?",
        f"{answer}.",
        (
            words("length", ratios),
            words("pairs told apart", [low_to_high(set(told)) for _, told, _ in lines]),
            Column("tau of other seeds", tuple(cells)),
        ),
        (
            f"pairs told apart: of {pairs}, by {size} seeds (p < {SIGNIFICANT} in a paired permutation test, after "
            "Holm's correction), the fewest and the most over all divisions of the seeds into halves",
            "tau of other seeds: Kendall's tau on these pairs, mean and range; 1 if the other half orders all of them "
            "alike, 0 if half of them",
        ),
    )
