"""Right answers of a synthetic task: by length, and by where in the window lay what was asked for.

Intervals are over the seeds of an encoding and over episodes, which all seeds share; with few seeds, over episodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from poscli.drawing.text import named
from poscli.report.analysis import Analysis
from poscli.report.pooling import LN2
from poscli.report.summary import ratio_name
from poscli.report.table import Column
from poscli.report.verdicts import SOLVED_TEXT
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import LossTable
from poscli.statistics.intervals import Case, many_differences, unseen_share
from poscli.tasks.episodes import DEPTH

LITTLE = 0.05  # a difference of accuracy that is not worth a sentence
FEWEST_TOKENS = 50  # in a bin; with fewer, its accuracy is not shown


def by_length(answers: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of each encoding at each length, from the rows of answers.csv.

    Columns: encoding, length, ratio to the training length, seeds, tokens scored of a seed, and accuracy with the ends
    of its 95 % interval, low and high.
    """
    points = _points(answers, ["encoding", "length"])
    return points.assign(ratio=points["length"] / answers["train_length"].iloc[0])


def by_place(answers: pd.DataFrame) -> pd.DataFrame:
    """Accuracy at the longest length by encoding and bin (`from`, `to`), without bins of too few tokens."""
    points = _points(answers[answers["length"] == answers["length"].max()], ["encoding", "from", "to"])
    return points[points["tokens"] >= FEWEST_TOKENS].reset_index(drop=True)


def wrong_answers(answers: pd.DataFrame, protocol: str) -> LossTable:
    """The answers as a table of losses, so that whatever compares losses in bits per byte can compare answers.

    A wrong token of an answer counts as a loss of one bit, a right one as none, and each as one byte: the mean loss in
    bits per byte is then the share of wrong tokens.
    """
    keys = ["run_id", "length", "unit"]
    totals = answers.groupby(keys, as_index=False)[["right", "tokens"]].sum()
    losses = {"nll": LN2 * (1 - totals["right"] / totals["tokens"]), "bytes": totals["tokens"]}
    return LossTable(totals.assign(protocol=protocol, variant=FULL, **losses), of_answers=True)


def units_of(rows: pd.DataFrame, details: Mapping[str, pd.DataFrame], protocol: str) -> LossTable:
    """What comparisons on the text of these rows are of: answers, if the task has right ones, otherwise losses."""
    answers = details["answers"]
    answers = answers[answers["fingerprint"].isin(rows["fingerprint"])]
    return LossTable(details["units"]) if answers.empty else wrong_answers(answers, protocol)


def answered(answers: pd.DataFrame, summary: pd.DataFrame) -> Analysis:
    """The accuracy of every encoding by length, and up to which length it solves the task."""
    points = by_length(answers)
    names, ratios = _names(points, summary), sorted(set(points["ratio"]))
    effective = summary.set_index("encoding")["effective"]
    columns = [Column("encoding", tuple(names), right=False)]
    columns += [Column(f"{ratio_name(ratio)} [95 %]", _cells(points, names, "ratio", ratio)) for ratio in ratios]
    seeds = _seeds(answers).reindex(names)
    several = answers.groupby("encoding")["run_id"].nunique().max() > 1
    if several:
        cells = tuple("-" if low != low else _range(low, high) for low, high in seeds.itertuples(index=False))
        columns.append(Column(f"seeds at {ratio_name(ratios[-1])}", cells))
    columns.append(Column("effective", tuple(_length(effective[name], answers) for name in names)))
    return Analysis(
        "What share of the answers is right?",
        " ".join([chance_is(answers), *([_apart(seeds, ratio_name(ratios[-1]))] if several else [])]),
        tuple(columns),
        (
            "accuracy: the share of the tokens of the answers that the model ranks first, with its 95 % interval over "
            f"{resampled(points)}; chance: that of a guess which knows the task and not the text",
            f"effective: the longest window up to which the accuracy is at least {SOLVED_TEXT} at every length",
        ),
    )


def placed(answers: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """The accuracy at the longest length by depth or gap; None if too few tokens were scored for that."""
    points = by_place(answers)
    if points["from"].nunique() < 2:
        return None
    names, length = _names(points, summary), int(answers["length"].max())
    columns = [Column("encoding", tuple(names), right=False)]
    for first, last in sorted(set(zip(points["from"], points["to"], strict=True))):
        name = f"{first} to {last + 1} %" if is_depth(answers) else f"{first} to {last}"
        columns.append(Column(name, _cells(points, names, "from", first, interval=False)))
    return Analysis(
        f"Does it matter {question(answers)}?",
        _spread(points),
        tuple(columns),
        (f"accuracy in windows of {length} tokens by {place_name(answers).removesuffix(', fewer than')}",),
    )


def chance_is(answers: pd.DataFrame) -> str:
    """What a guess gets right, in a sentence."""
    return f"Chance is {answers['chance'].iloc[0]:.3f}."


def resampled(points: pd.DataFrame) -> str:
    """What the intervals of these points are over."""
    return "seeds and episodes" if points["seeds"].max() >= FEWEST_SEEDS else "episodes"


def is_depth(answers: pd.DataFrame) -> bool:
    """Whether the bins are depths in percent of the window, and not gaps in tokens."""
    return answers["by"].iloc[0] == DEPTH


def question(answers: pd.DataFrame) -> str:
    """What the bins tell, as the rest of a question."""
    return "where in the window it lies" if is_depth(answers) else "how far back it lies"


def place_name(answers: pd.DataFrame) -> str:
    """What the bins are."""
    if is_depth(answers):
        return "depth of what was asked for, from the start of the window"
    return "tokens back to what was asked for, fewer than"


def _points(answers: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Accuracy with its interval for each group of rows; columns: the key, seeds, tokens, accuracy, low and high.

    A group counts the episodes that all of its runs have.
    """
    totals = answers.groupby([*key, "run_id", "unit"], sort=False)[["right", "tokens"]].sum()
    groups, cases = [], list[Case]()
    for group, part in totals.groupby(key):
        right, tokens = (part[name].unstack("run_id").dropna() for name in ("right", "tokens"))
        groups.append((*group, right.shape[1]))
        cases.append((right.to_numpy(float).T, tokens.iloc[:, 0].to_numpy(float)))
    found = many_differences([case if len(case[1]) else None for case in cases], test=False)
    # Where all answers are right, or all wrong, nothing varies, and the interval is the exact one of a binomial. Where
    # nearly all are, the few episodes that differ say too little, and the interval ends no nearer to 0 or 1.
    unseen = np.array([unseen_share(max(1, len(counts))) for _, counts in cases])
    return pd.DataFrame(groups, columns=[*key, "seeds"]).assign(
        tokens=[int(counts.sum()) for _, counts in cases],
        accuracy=found[:, 0],
        low=np.minimum(np.maximum(found[:, 1], 0), 1 - unseen),
        high=np.maximum(np.minimum(found[:, 2], 1), unseen),
    )


def _names(points: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """The encodings with an accuracy, in the order of the summary."""
    return [name for name in summary["encoding"] if name in set(points["encoding"])]


def _cells(
    points: pd.DataFrame, names: list[str], column: str, value: float, *, interval: bool = True
) -> tuple[str, ...]:
    """The accuracies of these encodings where a column has a value, as text."""
    at = points[points[column] == value].set_index("encoding").reindex(names)
    cells = []
    for accuracy, low, high in at[["accuracy", "low", "high"]].itertuples(index=False):
        ends = f" [{low:.3f}, {high:.3f}]" if interval and low == low else ""
        cells.append("-" if accuracy != accuracy else f"{accuracy:.3f}{ends}")
    return tuple(cells)


def _seeds(answers: pd.DataFrame) -> pd.DataFrame:
    """The smallest and the largest accuracy of single seeds at the longest length, by encoding: `min`, `max`."""
    last = answers[answers["length"] == answers["length"].max()]
    totals = last.groupby(["encoding", "run_id"])[["right", "tokens"]].sum()
    return (totals["right"] / totals["tokens"]).groupby("encoding").agg(["min", "max"])


def _range(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _apart(seeds: pd.DataFrame, ratio: str) -> str:
    """Of which encoding the seeds differ most."""
    apart = seeds["max"] - seeds["min"]
    if apart.max() < LITTLE:
        return f"At {ratio}, the seeds of each encoding differ by less than {LITTLE}."
    most = str(apart.idxmax())
    return f"At {ratio}, seeds of {named(most)} differ most ({_range(*seeds.loc[most])})."


def _length(ratio: float, answers: pd.DataFrame) -> str:
    """An effective length as text: a multiple of the training length, and in tokens."""
    if not ratio > 0:
        return "-"
    return f"{ratio_name(ratio)} ({round(ratio * answers['train_length'].iloc[0])})"


def _spread(points: pd.DataFrame) -> str:
    """The encoding whose accuracy depends most on the place."""
    spans = points.groupby("encoding")["accuracy"].agg(["min", "max"]).dropna()
    if spans.empty:
        return "Unknown: no encoding has a number there."
    most = str((spans["max"] - spans["min"]).idxmax())
    low, high = spans.loc[most]
    if high - low < LITTLE:
        return f"No: the accuracies of each encoding differ by less than {LITTLE}."
    return f"Most for {named(most)}, whose accuracy lies between {low:.3f} and {high:.3f}."
