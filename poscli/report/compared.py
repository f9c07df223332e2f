"""The table in which all encodings of a section are compared with one of them."""

from __future__ import annotations

import pandas as pd

from poscli.drawing.text import listed, named, signed
from poscli.evaluation.estimates import FEWEST_SEEDS
from poscli.report.analysis import Analysis
from poscli.report.comparison import BETTER, SIGNIFICANT, WITHIN_NOISE, WORSE, compared_with
from poscli.report.over_seeds import Units
from poscli.report.summary import ratio_name
from poscli.report.table import Column, gain_text


def compared(rows: pd.DataFrame, units: Units, baseline: str) -> Analysis | None:
    """Differences to the baseline at every length; None where the section does not have the baseline."""
    if baseline not in set(rows["encoding"]):
        return None
    table = compared_with(rows, units, baseline)
    last = table[table["ratio"] == table["ratio"].max()].sort_values("difference")
    names = tuple(last["encoding"])
    columns = [Column("encoding", names, right=False)]
    for ratio, part in table.groupby("ratio"):
        cells = part.set_index("encoding").reindex(list(names))
        columns.append(Column(ratio_name(float(ratio)), tuple(_cell(*cells.loc[name, CELL]) for name in names)))
    few, score = table["seeds"].max() < FEWEST_SEEDS, WRONG if units.of_answers else LOSS
    return Analysis(
        f"Compared with {baseline}",
        _answer(last, baseline, "of the answers" if units.of_answers else "bits per byte"),
        tuple(columns),
        (
            f"{score}, minus that of {baseline}, with its 95 % interval; below zero is better",
            f"better, worse: the paired permutation test gives p < {SIGNIFICANT} after Holm's correction for "
            f"{int(table['p'].notna().sum())} comparisons; within noise: it does not",
            *([f"fewer than {FEWEST_SEEDS} seeds: intervals and tests are over documents only"] if few else []),
        ),
    )


LOSS, WRONG = "loss in bits per byte", "share of the tokens of the answers that are wrong"
CELL = ["difference", "low", "high", "word"]


def _cell(difference: float, low: float, high: float, word: str) -> str:
    return f"{gain_text(difference, low, high)} {word}" if difference == difference else "-"


def _answer(last: pd.DataFrame, baseline: str, unit: str) -> str:
    """Which encodings are better and worse at the longest length, and which cannot be told apart."""
    ratio = ratio_name(float(last["ratio"].iloc[0]))
    parts = []
    for word, phrase in ((BETTER, "better"), (WITHIN_NOISE, "within noise"), (WORSE, "worse")):
        if len(mine := last[last["word"] == word]):
            best = mine.iloc[0]
            told = f" (the best by {signed(abs(best['difference']))[1:]} {unit})" if word == BETTER else ""
            parts.append(f"{phrase}: {listed(list(mine['encoding']), 8)}{told}")
    return f"At {ratio}, than {named(baseline)}: {'; '.join(parts)}." if parts else "Nothing here can be compared."
