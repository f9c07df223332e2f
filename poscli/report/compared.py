"""The table in which all encodings of a section are compared with one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from poscli.drawing.text import listed, named, signed
from poscli.report.analysis import Analysis
from poscli.report.comparison import compared_with, losses_of
from poscli.report.origin import bits_per
from poscli.report.pooling import headline, the_train_length
from poscli.report.summary import ratio_name
from poscli.report.table import Column, gain_text
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import BETTER, SIGNIFICANT, TOO_FEW, WITHIN_NOISE, WORSE, Comparison, LossTable


def compared(rows: pd.DataFrame, summary: pd.DataFrame, table: LossTable, baseline: str) -> Analysis | None:
    """Differences to the baseline at every length; None where the section does not have the baseline."""
    names = [str(name) for name in summary["encoding"]]
    if baseline not in names or len(names) < 2:
        return None
    protocol, train_length = headline(rows).perplexity, the_train_length(rows)
    measured = rows[(rows["protocol"] == protocol) & (rows["variant"] == FULL)]
    lengths = [int(length) for length in sorted(set(measured["length"]))]
    found = compared_with(losses_of(rows, table, protocol), names, lengths, baseline)
    bits = bits_per(rows)
    losses = (f"loss in {bits}", bits, "below", "documents")
    score, unit, better, items = ANSWERS if table.of_answers else losses
    last = {name: found[name, lengths[-1]] for name in sorted(names) if name != baseline}
    order = sorted(last, key=lambda name: (math.isnan(d := last[name].difference), -d if table.of_answers else d))
    columns = [Column("encoding", tuple(order), right=False)]
    for length in lengths:
        cells = (found[name, length] for name in order)
        columns.append(Column(ratio_name(length / train_length), tuple(map(_cell, cells))))
    return Analysis(
        f"Compared with {baseline}",
        _answer({name: last[name] for name in order}, baseline, unit, ratio_name(lengths[-1] / train_length)),
        tuple(columns),
        (
            f"{score}, minus that of {baseline}, with its 95 % interval; {better} zero is better",
            f"better, worse: the difference is significant (p < {SIGNIFICANT} in a paired permutation test, after "
            f"Holm's correction for {sum(each.p == each.p for each in found.values())} comparisons); within noise: it "
            "is not",
            f"differences are taken between runs of equal seeds on the same {items}, so one encoding can be better "
            "than another although the intervals of the two overlap",
            *([UNTESTED] if any(each.word == TOO_FEW for each in found.values()) else []),
            *(
                [f"fewer than {FEWEST_SEEDS} seeds: intervals and tests are over {items} only"]
                if max(each.seeds for each in found.values()) < FEWEST_SEEDS
                else []
            ),
        ),
    )


UNTESTED = "too few documents: so few were scored that no difference could be significant among so many comparisons"
ANSWERS = ("accuracy", "of the answers", "above", "episodes")


def _cell(each: Comparison) -> str:
    return f"{gain_text(*each.numbers)} {each.word}" if each.difference == each.difference else "-"


def _answer(last: Mapping[str, Comparison], baseline: str, unit: str, ratio: str) -> str:
    """Which encodings are better and worse than the baseline at the longest length, the best first, and by how much."""
    base, parts = named(baseline), []
    phrases = {
        BETTER: f"better than {base}",
        WITHIN_NOISE: f"within noise of {base}",
        TOO_FEW: f"with too few documents to tell from {base}",
        WORSE: f"worse than {base}",
    }
    for word, phrase in phrases.items():
        if names := [name for name, each in last.items() if each.word == word]:
            by = ""
            if word in (BETTER, WORSE):  # the best of those that are better, the worst of those that are worse
                farthest = names[0 if word == BETTER else -1]
                amount = f"{signed(abs(last[farthest].difference)).lstrip('+')} {unit}"
                by = f" by {amount}" if len(names) == 1 else f" ({named(farthest)} by {amount})"
            parts.append(f"{listed(names, 8)} {'is' if len(names) == 1 else 'are'} {phrase}{by}")
    return f"At {ratio}, {'; '.join(parts)}." if parts else "Nothing here can be compared."
