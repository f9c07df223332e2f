"""The table in which all encodings of a section are compared with one of them."""

from __future__ import annotations

import pandas as pd

from poscli.drawing.text import listed, named, signed
from poscli.evaluation.estimates import FEWEST_SEEDS
from poscli.report.analysis import Analysis
from poscli.report.comparison import BETTER, SIGNIFICANT, TOO_FEW, WITHIN_NOISE, WORSE, compared_with
from poscli.report.over_seeds import Units
from poscli.report.summary import ratio_name
from poscli.report.table import Column, gain_text


def compared(rows: pd.DataFrame, units: Units, baseline: str) -> Analysis | None:
    """Differences to the baseline at every length; None where the section does not have the baseline."""
    if baseline not in set(rows["encoding"]) or rows["encoding"].nunique() < 2:
        return None
    table = compared_with(rows, units, baseline)
    score, unit, better, items = ANSWERS if units.of_answers else LOSSES
    last = table[table["ratio"] == table["ratio"].max()]
    last = last.sort_values("difference", ascending=not units.of_answers)
    names = tuple(last["encoding"])
    columns = [Column("encoding", names, right=False)]
    for ratio, part in table.groupby("ratio"):
        cells = part.set_index("encoding").reindex(list(names))
        columns.append(Column(ratio_name(float(ratio)), tuple(_cell(*cells.loc[name, CELL]) for name in names)))
    few = table["seeds"].max() < FEWEST_SEEDS
    return Analysis(
        f"Compared with {baseline}",
        _answer(last, baseline, unit),
        tuple(columns),
        (
            f"{score}, minus that of {baseline}, with its 95 % interval; {better} zero is better",
            f"better, worse: the paired permutation test gives p < {SIGNIFICANT} after Holm's correction for "
            f"{int(table['p'].notna().sum())} comparisons; within noise: it does not",
            *([UNTESTED] if (table["word"] == TOO_FEW).any() else []),
            *([f"fewer than {FEWEST_SEEDS} seeds: intervals and tests are over {items} only"] if few else []),
        ),
    )


UNTESTED = "too few documents: even if all of them agreed, the test would not give that for so many comparisons"
LOSSES = ("loss in bits per byte", "bits per byte", "below", "documents")
ANSWERS = ("accuracy", "of the answers", "above", "episodes")
CELL = ["difference", "low", "high", "word"]


def _cell(difference: float, low: float, high: float, word: str) -> str:
    return f"{gain_text(difference, low, high)} {word}" if difference == difference else "-"


def _answer(last: pd.DataFrame, baseline: str, unit: str) -> str:
    """Which encodings are better and worse at the longest length, and which cannot be told apart."""
    ratio = ratio_name(float(last["ratio"].iloc[0]))
    parts = []
    phrases = {BETTER: "better", WITHIN_NOISE: "within noise", TOO_FEW: "too few documents to tell", WORSE: "worse"}
    for word, phrase in phrases.items():
        if len(mine := last[last["word"] == word]):
            best = mine.iloc[0]
            told = f" (the best by {signed(abs(best['difference']))[1:]} {unit})" if word == BETTER else ""
            parts.append(f"{phrase}: {listed(list(mine['encoding']), 8)}{told}")
    if not parts:
        return "Nothing here can be compared."
    return f"At {ratio}, compared with {named(baseline)}, {'; '.join(parts)}."
