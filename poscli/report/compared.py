"""The table in which all encodings of a section are compared with one of them."""

from __future__ import annotations

import pandas as pd

from poscli.drawing.text import listed, named, signed
from poscli.report.analysis import Analysis
from poscli.report.comparison import BETTER, SIGNIFICANT, TOO_FEW, WITHIN_NOISE, WORSE, compared_with
from poscli.report.origin import bits_per
from poscli.report.over_seeds import Units
from poscli.report.summary import ratio_name
from poscli.report.table import Column, gain_text
from poscli.statistics import FEWEST_SEEDS


def compared(rows: pd.DataFrame, units: Units, baseline: str) -> Analysis | None:
    """Differences to the baseline at every length; None where the section does not have the baseline."""
    if baseline not in set(rows["encoding"]) or rows["encoding"].nunique() < 2:
        return None
    table = compared_with(rows, units, baseline)
    bits = bits_per(rows)
    losses = (f"loss in {bits}", bits, "below", "documents")
    score, unit, better, items = ANSWERS if units.of_answers else losses
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
            f"better, worse: the difference is significant (p < {SIGNIFICANT} in a paired permutation test, after "
            f"Holm's correction for {int(table['p'].notna().sum())} comparisons); within noise: it is not",
            f"differences are taken between runs of equal seeds on the same {items}, so one encoding can be better "
            "than another although the intervals of the two overlap",
            *([UNTESTED] if (table["word"] == TOO_FEW).any() else []),
            *([f"fewer than {FEWEST_SEEDS} seeds: intervals and tests are over {items} only"] if few else []),
        ),
    )


UNTESTED = "too few documents: so few were scored that no difference could be significant among so many comparisons"
ANSWERS = ("accuracy", "of the answers", "above", "episodes")
CELL = ["difference", "low", "high", "word"]


def _cell(difference: float, low: float, high: float, word: str) -> str:
    return f"{gain_text(difference, low, high)} {word}" if difference == difference else "-"


def _answer(last: pd.DataFrame, baseline: str, unit: str) -> str:
    """Which encodings are better and worse than the baseline at the longest length, the best first, and by how much."""
    base, parts = named(baseline), []
    phrases = {
        BETTER: f"better than {base}",
        WITHIN_NOISE: f"within noise of {base}",
        TOO_FEW: f"with too few documents to tell from {base}",
        WORSE: f"worse than {base}",
    }
    for word, phrase in phrases.items():
        if len(mine := last[last["word"] == word]):
            by = ""
            if word in (BETTER, WORSE):  # the best of those that are better, the worst of those that are worse
                farthest = mine.iloc[0 if word == BETTER else -1]
                amount = f"{signed(abs(farthest['difference'])).lstrip('+')} {unit}"
                by = f" by {amount}" if len(mine) == 1 else f" ({named(farthest['encoding'])} by {amount})"
            verb = "is" if len(mine) == 1 else "are"
            parts.append(f"{listed(list(mine['encoding']), 8)} {verb} {phrase}{by}")
    if not parts:
        return "Nothing here can be compared."
    return f"At {ratio_name(float(last['ratio'].iloc[0]))}, {'; '.join(parts)}."
