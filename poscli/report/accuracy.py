"""Right answers of a synthetic task: by length, and by where in the window lay what was asked for.

Intervals are over the seeds of an encoding and over episodes, which all seeds share; with few seeds, over episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

import numpy as np
import pandas as pd

from poscli.drawing.text import listed, named
from poscli.report.collect import Trained
from poscli.report.data import Analysis
from poscli.report.pooling import ratio_name
from poscli.report.reach import effective_text
from poscli.report.table import Column, words
from poscli.report.verdicts import SOLVED_SHARE, SOLVED_TEXT
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.intervals import Case, many_differences, unseen_share
from poscli.tasks.episodes import DEPTH

# Whether bins are depths -> the rest of the question that they answer, what they are, and the same in short.
PLACES = {
    True: (
        "where in the window the answer stands",
        "depth of what was asked for, from the start of the window",
        "depth, from the start of the window",
    ),
    False: (
        "how far back the answer stands",
        "tokens back to what was asked for, fewer than",
        "tokens back to it, fewer than",
    ),
}
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
    numbers = many_differences([case if len(case[1]) else None for case in cases], test=False)
    # Where all answers are right, or all wrong, nothing varies, and the interval is the exact one of a binomial. Where
    # nearly all are, the few episodes that differ say too little, and the interval ends no nearer to 0 or 1.
    unseen = np.array([unseen_share(max(1, len(counts))) for _, counts in cases])
    return pd.DataFrame(groups, columns=[*key, "seeds"]).assign(
        tokens=[int(counts.sum()) for _, counts in cases],
        accuracy=numbers[:, 0],
        low=np.minimum(np.maximum(numbers[:, 1], 0), 1 - unseen),
        high=np.maximum(np.minimum(numbers[:, 2], 1), unseen),
    )


def answered(answers: pd.DataFrame, points: pd.DataFrame, summary: pd.DataFrame) -> Analysis:
    """The accuracy of every encoding by length (`points` of `by_length`), and up to which length it solves the task."""
    names = [name for name in summary["encoding"] if name in set(points["encoding"])]
    ratios = sorted(set(points["ratio"]))
    reaches = effective_text(summary.set_index("encoding").loc[names], int(answers["train_length"].iloc[0]))
    last = ratio_name(ratios[-1])
    columns = [words("encoding", names)]
    columns += [Column(f"{ratio_name(r)} [95 %]", _cells(points[points["ratio"] == r], names)) for r in ratios]
    sentences = [chance_is(answers)]
    if answers.groupby("encoding")["run_id"].nunique().max() > 1:
        at_end = answers[answers["length"] == answers["length"].max()]
        totals = at_end.groupby(["encoding", "run_id"])[["right", "tokens"]].sum()
        seeds = (totals["right"] / totals["tokens"]).groupby("encoding").agg(["min", "max"]).reindex(names)
        ranges = {name: f"{low:.3f} to {high:.3f}" for name, low, high in seeds.itertuples() if low == low}
        columns.append(Column(f"seeds at {last}", tuple(ranges.get(name, "-") for name in names)))
        apart = seeds["max"] - seeds["min"]
        if apart.max() < LITTLE:
            sentences.append(f"At {last}, the seeds of each encoding differ by less than {LITTLE}.")
        else:
            most = str(apart.idxmax())
            sentences.append(f"At {last}, seeds of {named(most)} differ most ({ranges[most]}).")
    columns.append(Column("effective", reaches))
    return Analysis(
        "What share of the answers is right?",
        " ".join(sentences),
        tuple(columns),
        (
            "accuracy: the share of the tokens of the answers that the model ranks first, with its 95 % interval over "
            f"{resampled(points)}; chance: that of a guess which knows the task and not the text",
            f"effective: the longest window up to which the accuracy is at least {SOLVED_TEXT} at every length; its "
            "interval ends where that is still sure, and where it is still possible",
        ),
    )


def placed(answers: pd.DataFrame, points: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """The accuracy at the longest length by depth or gap, of `by_place`; None if all answers lie in one bin."""
    if points["from"].nunique() < 2:
        return None
    names = [name for name in summary["encoding"] if name in set(points["encoding"])]
    columns = [words("encoding", names)]
    for first, last in sorted(set(zip(points["from"], points["to"], strict=True))):
        name = f"{first} to {last + 1} %" if is_depth(answers) else f"{first} to {last}"
        columns.append(Column(name, _cells(points[points["from"] == first], names)))
    spans = points.groupby("encoding")["accuracy"].agg(["min", "max"]).dropna()
    if spans.empty:
        answer = "Unknown: no encoding has a number there."
    else:
        most = str((spans["max"] - spans["min"]).idxmax())
        low, high = spans.loc[most]
        answer = f"Most for {named(most)}, whose accuracy lies between {low:.3f} and {high:.3f}."
        if high - low < LITTLE:
            answer = f"No: the accuracies of each encoding differ by less than {LITTLE}."
    question, place, _ = PLACES[is_depth(answers)]
    length = int(answers["length"].max())
    legend = (
        f"accuracy in windows of {length} tokens by {place.removesuffix(', fewer than')}, with its 95 % "
        f"interval over {resampled(points)}",
    )
    return Analysis(f"Does it matter {question}?", answer, tuple(columns), legend)


def learned_at(learned: Sequence[tuple[int, int, float]]) -> float:
    """The first step from which on the share of right answers is at least 90 % to the end; infinity if there is none.

    `learned` has (step, tokens, share), ascending. A share that is reached once and lost again does not count: a model
    on the way to a solution crosses 90 % by chance, and one that forgets the task has not learned it.

    >>> learned_at([(10, 1000, 0.95), (20, 2000, 0.6), (30, 3000, 0.9), (40, 4000, 1.0)])
    30.0
    """
    at = math.inf
    for step, _, share in reversed(learned):
        if share < SOLVED_SHARE:
            break
        at = float(step)
    return at


def learned_after(rows: pd.DataFrame, runs: Mapping[str, Trained], summary: pd.DataFrame) -> Analysis | None:
    """After how many steps each seed of each encoding has learned the task (`learned_at`); None if no log knows.

    `rows` are those of eval.csv, and `runs` what is known of their trainings, by run id. Models that are evaluated
    under another encoding than the one they were trained with are left out.
    """
    trained = {
        (str(row.encoding), int(row.seed)): runs[row.run_id]
        for row in rows.drop_duplicates("run_id").itertuples()
        if row.run_id in runs and runs[row.run_id].learned and not runs[row.run_id].trained_as
    }
    names = [name for name in summary["encoding"] if any(name == encoding for encoding, _ in trained)]
    if not names:
        return None
    steps = {key: learned_at(run.learned) for key, run in trained.items()}
    seeds = sorted({seed for _, seed in trained})

    def of_name(numbers: Mapping[tuple[str, int], float], name: str) -> list[float]:
        return [value for (encoding, _), value in numbers.items() if encoding == name]

    middle = {name: median(of_name(steps, name)) for name in names}

    def cell(name: str, seed: int) -> str:
        if (name, seed) not in trained:
            return "-"
        best = max(share for _, _, share in trained[name, seed].learned)
        at = steps[name, seed]
        return f"{at:,.0f}" if at < math.inf else f"never (best {math.floor(100 * best)} %)"

    def said(at: float) -> str:
        return f"{at:,.0f}" if at < math.inf else "never"

    columns = [words("encoding", names)]
    columns += [Column(f"seed {seed}", tuple(cell(name, seed) for name in names)) for seed in seeds]
    if len(seeds) > 1:
        ends = [dict.fromkeys(said(end(of_name(steps, name))) for end in (min, max)) for name in names]
        columns.append(Column("median", tuple(said(middle[name]) for name in names)))
        columns.append(Column("range", tuple(map(" to ".join, ends))))
    seen = {key: run.learned[-1] for key, run in trained.items()}
    tokens = {key: at * seen[key][1] / seen[key][0] for key, at in steps.items()}
    columns.append(Column("tokens", tuple(said(median(of_name(tokens, name))) for name in names)))
    solved = sorted((name for name in names if middle[name] < math.inf), key=lambda name: middle[name])
    never = [name for name in names if middle[name] == math.inf]
    answer = f"No encoding learns to give {SOLVED_TEXT} of the answers."
    if solved:
        ends_of = {"Soonest": solved[0], "latest": solved[-1]} if len(solved) > 1 else {"Soonest": solved[0]}
        answer = "; ".join(
            f"{which}: {named(name)} after {said(middle[name])} steps" for which, name in ends_of.items()
        )
        answer += f"; never: {listed(never)}." if never else "."
    last = max(run.learned[-1][0] for run in trained.values())
    apart = max(b[0] - a[0] for run in trained.values() for a, b in pairwise([(0, 0, 0.0), *run.learned]))
    return Analysis(
        "After how many steps is the task learned?",
        answer,
        tuple(columns),
        (
            f"steps: the first point from which on, to the end of training ({last:,}), at least {SOLVED_TEXT} of the "
            "answers were right in windows of L tokens that were neither trained on nor scored, the same for all "
            f"encodings; asked every {apart} steps, so that a number is too large by less than that",
            "never: not to the end of training; best is the largest share that was right at any time",
            "median: over seeds, never being later than any step; tokens: median of those seen until then",
        ),
    )


def _cells(points: pd.DataFrame, names: list[str]) -> tuple[str, ...]:
    """The accuracies of these encodings as text, with the ends of their intervals."""
    known = points.set_index("encoding").reindex(names)
    cells = []
    for accuracy, low, high in known[["accuracy", "low", "high"]].itertuples(index=False):
        interval = f" [{low:.3f}, {high:.3f}]" if low == low else ""
        cells.append("-" if accuracy != accuracy else f"{accuracy:.3f}{interval}")
    return tuple(cells)


def chance_is(answers: pd.DataFrame) -> str:
    """What a guess gets right, in a sentence; the tasks of checkpoints do not know it."""
    chance = float(answers["chance"].iloc[0])
    return f"Chance is {chance:.3f}." if chance == chance else "What a guess gets right is not known."


def resampled(points: pd.DataFrame) -> str:
    """What the intervals of these points are over."""
    return "seeds and episodes" if points["seeds"].max() >= FEWEST_SEEDS else "episodes"


def is_depth(answers: pd.DataFrame) -> bool:
    """Whether the bins are depths in percent of the window, and not gaps in tokens."""
    return answers["by"].iloc[0] == DEPTH
