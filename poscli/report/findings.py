"""What the points of a figure and the rows of a summary say, in sentences."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from poscli.drawing.text import listed, named, number
from poscli.report.origin import bits_per
from poscli.report.summary import is_answered, ratio_name
from poscli.report.verdicts import (
    BREAKS,
    DEGRADES,
    HARM_BPB,
    HOLDS,
    MAY_USE_CONTEXT,
    NOT_TESTED,
    NOT_TRAINED,
    SOLVED_TEXT,
    UNCLEAR,
    USES_CONTEXT,
    is_failure,
    surely_harms,
    verdict,
)

SMALL_HARM, OPEN_HARM = "small harm", "harm of open size"  # of verdicts that do not say so: holds, and unclear
EFFECTS = {
    USES_CONTEXT: "helps",
    MAY_USE_CONTEXT: "may help",
    HOLDS: "makes no difference of consequence to",
    SMALL_HARM: "slightly harms",
    DEGRADES: "harms",
    BREAKS: "breaks",
}
PHRASES = {
    NOT_TRAINED: "Not trained, since already at {length} they predict no better than a guess",
    USES_CONTEXT: "Better than with the context cut to {length}, so the longer context is used",
    MAY_USE_CONTEXT: "Better than with the context cut to {length}, as far as so few seeds can tell",
    HOLDS: f"Longer context than {{length}} costs less than {HARM_BPB} {{bits}}, if anything",
    SMALL_HARM: f"Longer context than {{length}} harms a little, by less than {HARM_BPB} {{bits}}",
    OPEN_HARM: f"Longer context than {{length}} harms; whether by {HARM_BPB} {{bits}} or more is open",
    DEGRADES: "Worse than with the context cut to {length}",
    BREAKS: "Broken there",
    UNCLEAR: "Too few seeds, documents or tokens to tell",
    NOT_TESTED: "No verdict",
}


def perplexity_finding(
    points: pd.DataFrame, unit: str, guessing: Collection[str] = (), score: str = "perplexity"
) -> str:
    """The lowest and the highest score at the longest length, the encodings `guessing`, and those without a number.

    It reads the picture, which says nothing about noise; which encoding is best is said by the section's answer.
    """
    last = points["length"].max()
    end = _judged(points[points["length"] == last].dropna(subset=["ppl"]), guessing).sort_values("ppl")
    if end.empty:
        return _left_out(points, guessing)
    best, worst = end.iloc[0], end.iloc[-1]
    text = f"Reading {last} {unit}s at once, {named(best['encoding'])}"
    if len(end) == 1:
        text += f" has {score} {number(best['ppl'])}."
    else:
        text += f" has the lowest {score} ({number(best['ppl'])}) and {named(worst['encoding'])} the highest"
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
        _told_as(verdict(*gain, seeds=seeds - failed), gain[2]).replace(OPEN_HARM, DEGRADES)
        for *gain, seeds, failed in end[["gain", "gain_low", "gain_high", "seeds", "failed"]].itertuples(index=False)
    ]
    groups = {key: list(end["encoding"][[word == key for word in verdicts]]) for key in EFFECTS}
    told = "; ".join(f"{EFFECTS[key]} {listed(who, 4)}" for key, who in groups.items() if who)
    unclear = list(end["encoding"][[word == UNCLEAR for word in verdicts]]) if told else []
    told += f"; for {listed(unclear, 4)} that is unclear" if unclear else ""
    effect = f"longer context {told}" if told else "the effect of longer context is unclear"
    return f"At {ratio_name(points['ratio'].max())}, {effect}. {_left_out(points, guessing)}".strip()


def position_finding(bins: pd.DataFrame, guessing: Collection[str] = (), bits: str = "bits per byte") -> str:
    """The best and the worst loss in the last bin of the window."""
    end = bins[bins["length"] == bins["length"].max()].dropna(subset=["bits"])
    end = _judged(end, guessing).sort_values("bits")
    if end.empty:
        return _untrained(bins, guessing)
    best, worst = end.iloc[0], end.iloc[-1]
    text = f"At the end of the window {named(best['encoding'])} needs {best['bits']:.2f} {bits}"
    text = f"{text}, {named(worst['encoding'])} {worst['bits']:.2f}." if len(end) > 1 else f"{text}."
    return f"{text} {_untrained(bins, guessing)}".strip()


def verdicts_told(summary: pd.DataFrame) -> str:
    """The encodings of each verdict, a sentence for each; for a task with right answers, how far it is solved.

    Encodings that the longer context surely harms, though by less than a verdict counts, have a sentence of their own.
    """
    length = int(summary["train_length"].iloc[0])
    if is_answered(summary):
        lost = summary[summary["verdict"].map(is_failure) | (summary["verdict"] == NOT_TRAINED)]
        return " ".join([solved_up_to(summary), *_verdicts(lost, length)])
    return " ".join(_verdicts(summary, length))


def _verdicts(summary: pd.DataFrame, length: int) -> list[str]:
    """A sentence about the encodings of each verdict."""
    words = pd.Series(
        [
            _told_as(word, high)
            for word, high in zip(summary["verdict"], summary["gain_bpb_high"].astype(float), strict=True)
        ],
        summary.index,
        "str",
    )
    seen = list(dict.fromkeys(words))
    parts = []
    for word in [*(word for word in PHRASES if word in seen), *(word for word in seen if word not in PHRASES)]:
        phrase = PHRASES.get(word, f"Failed ({word})").format(length=length, bits=bits_per(summary))
        parts.append(f"{phrase}: {listed(list(summary.loc[words == word, 'encoding']), 8)}.")
    return parts


def _told_as(word: str, gain_high: float) -> str:
    """The key of PHRASES and EFFECTS for a verdict: a harm that is sure is told as one, however small it may be."""
    if surely_harms(gain_high) and word in (HOLDS, UNCLEAR):
        return SMALL_HARM if word == HOLDS else OPEN_HARM
    return word


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
