"""What the points of a figure and the rows of a summary say, in sentences."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from poscli.drawing.text import listed, named, number
from poscli.report.per_byte import is_summed_per_byte
from poscli.report.summary import ROUNDING, is_answered, ratio_name
from poscli.report.verdicts import (
    BREAKS,
    DEGRADES,
    HOLDS,
    MAY_USE_CONTEXT,
    NOT_TESTED,
    NOT_TRAINED,
    SOLVED_TEXT,
    UNCLEAR,
    UNSOLVED,
    USES_CONTEXT,
    can_win,
    is_failure,
    verdict,
)

EFFECTS = {
    USES_CONTEXT: "helps",
    MAY_USE_CONTEXT: "may help",
    HOLDS: "makes no difference to",
    DEGRADES: "harms",
    BREAKS: "breaks",
}
PHRASES = {
    NOT_TRAINED: "Not trained, since already at {length} they predict no better than a guess",
    USES_CONTEXT: "Better than with the context cut to {length}, so the longer context is used",
    MAY_USE_CONTEXT: "Better than with the context cut to {length}, as far as so few seeds can tell",
    HOLDS: "No worse than with the context cut to {length}",
    DEGRADES: "Worse than with the context cut to {length}",
    BREAKS: "Broken there",
    UNCLEAR: "Too few seeds, documents or tokens to tell",
    NOT_TESTED: "No verdict",
}


def perplexity_finding(
    points: pd.DataFrame, unit: str, guessing: Collection[str] = (), score: str = "perplexity"
) -> str:
    """The best and the worst encoding at the longest length, those `guessing`, and those without a number there."""
    last = points["length"].max()
    end = _judged(points[points["length"] == last].dropna(subset=["ppl"]), guessing).sort_values("ppl")
    if end.empty:
        return _left_out(points, guessing)
    best, worst = end.iloc[0], end.iloc[-1]
    text = f"Reading {last} {unit}s at once, {named(best['encoding'])}"
    if len(end) == 1:
        text += f" has {score} {number(best['ppl'])}."
    else:
        text += f" is best ({score} {number(best['ppl'])}) and {named(worst['encoding'])} worst"
        text += f" ({number(worst['ppl'])})."
    return f"{text} {_left_out(points, guessing)}".strip()


def gain_finding(points: pd.DataFrame, guessing: Collection[str] = ()) -> str:
    """The encodings that the longest context helps, harms or breaks, judged by the interval of the gain."""
    last = points["length"].max()
    end = _judged(points[points["length"] == last].dropna(subset=["gain"]), guessing)
    end = end.sort_values("gain", ascending=False)
    if points["ratio"].max() <= 1:
        return "Only the training length was evaluated."
    verdicts = [
        verdict(*gain, seeds=seeds - failed)
        for *gain, seeds, failed in end[["gain", "gain_low", "gain_high", "seeds", "failed"]].itertuples(index=False)
    ]
    groups = {key: list(end["encoding"][[word == key for word in verdicts]]) for key in EFFECTS}
    told = "; ".join(f"{EFFECTS[key]} {listed(who, 4)}" for key, who in groups.items() if who)
    unclear = list(end["encoding"][[word == UNCLEAR for word in verdicts]]) if told else []
    told += f"; for {listed(unclear, 4)} that is unclear" if unclear else ""
    effect = f"longer context {told}" if told else "the effect of longer context is unclear"
    return f"At {ratio_name(points['ratio'].max())}, {effect}. {_left_out(points, guessing)}".strip()


def position_finding(bins: pd.DataFrame, guessing: Collection[str] = ()) -> str:
    """The best and the worst loss in the last bin of the window."""
    end = bins[bins["length"] == bins["length"].max()].dropna(subset=["bits"])
    end = _judged(end, guessing).sort_values("bits")
    if end.empty:
        return _untrained(bins, guessing)
    best, worst = end.iloc[0], end.iloc[-1]
    text = f"At the end of the window {named(best['encoding'])} needs {best['bits']:.2f} bits per byte"
    text = f"{text}, {named(worst['encoding'])} {worst['bits']:.2f}." if len(end) > 1 else f"{text}."
    return f"{text} {_untrained(bins, guessing)}".strip()


def answer(summary: pd.DataFrame) -> str:
    """The summary in a paragraph: the best encoding at the longest length, then the encodings of each verdict."""
    first = summary.iloc[0]
    length, last = int(first["train_length"]), int(first["max_length"])
    ratio = ratio_name(last / length)
    if is_answered(summary):
        return _answered(summary, f"Trained on windows of {length} tokens and asked in windows of {last}", ratio)
    scored = summary[summary["verdict"].map(can_win)].dropna(subset=[f"ppl_{ratio}"])
    parts = []
    if len(scored):
        best = scored.iloc[0]
        per_byte = is_summed_per_byte(summary)
        grown = last > length and best["growth"] > 0 and not per_byte
        own = f", {number(best['growth'])}x its own at {length}" if grown else ""
        score = "bits per byte" if per_byte else "perplexity"
        parts.append(
            f"Trained on windows of {length} tokens and reading {last} ({ratio}), {named(best['encoding'])} predicts "
            f"best ({score} {number(best[f'ppl_{ratio}'])}{own})."
        )
    return " ".join([*parts, *_verdicts(summary, length)])


def _verdicts(summary: pd.DataFrame, length: int) -> list[str]:
    """A sentence about the encodings of each verdict."""
    parts = []
    seen = list(dict.fromkeys(summary["verdict"]))
    for word in [*(word for word in PHRASES if word in seen), *(word for word in seen if word not in PHRASES)]:
        phrase = PHRASES.get(word, f"Failed ({word})").format(length=length)
        parts.append(f"{phrase}: {listed(list(summary.loc[summary['verdict'] == word, 'encoding']), 8)}.")
    return parts


def _answered(summary: pd.DataFrame, asked: str, ratio: str) -> str:
    """The summary of a task with right answers: the best encoding, and up to which length each solves the task."""
    scored = summary[summary["verdict"].map(can_win)].dropna(subset=[f"accuracy_{ratio}"])
    scored = scored[scored["verdict"] != UNSOLVED]
    parts = []
    if len(scored):
        most = scored[f"accuracy_{ratio}"].max()
        best = list(scored.loc[scored[f"accuracy_{ratio}"] >= most - ROUNDING, "encoding"])
        have = "has" if len(best) == 1 else "have"
        parts.append(f"{asked} ({ratio}), {listed(best, 6)} {have} the most answers right ({most:.3f}).")
    lost = summary[summary["verdict"].map(is_failure) | (summary["verdict"] == NOT_TRAINED)]
    return " ".join([*parts, solved_up_to(summary), *_verdicts(lost, int(summary["train_length"].iloc[0]))])


def solved_up_to(summary: pd.DataFrame) -> str:
    """Which encodings solve a task with right answers, and up to which length."""
    known = summary.sort_values("effective", ascending=False, kind="stable")
    solved = known[known["effective"] > 0]
    if solved.empty:
        return f"No encoding answers {SOLVED_TEXT} right, not even at its training length."
    told = []
    for ratio, part in solved.groupby("effective", sort=False):
        reach = f"up to {ratio_name(float(ratio))}" if ratio > 1 else "at 1x only"
        told.append(f"{listed(list(part['encoding']), 6)} {reach}")
    unsolved = listed(list(known.loc[known["effective"] == 0, "encoding"]), 6)
    end = f"; {unsolved} at no length" if unsolved else ""
    return f"At least {SOLVED_TEXT} of the answers are right with {', '.join(told)}{end}."


def _judged(points: pd.DataFrame, guessing: Collection[str]) -> pd.DataFrame:
    """The points of encodings that may be compared."""
    return points[~points["encoding"].isin(list(guessing))]


def _untrained(points: pd.DataFrame, guessing: Collection[str]) -> str:
    who = [name for name in dict.fromkeys(points["encoding"]) if name in guessing]
    return f"Not trained: {listed(who, 4)}." if who else ""


def _left_out(points: pd.DataFrame, guessing: Collection[str]) -> str:
    """The encodings that only guess, and those that have no number at the longest length."""
    end = points[points["length"] == points["length"].max()]
    who = list(end.loc[end["nll"].isna(), "encoding"])
    return " ".join(filter(None, [_untrained(points, guessing), f"No result there: {listed(who, 4)}." if who else ""]))
