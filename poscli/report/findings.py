"""What the points of a figure say, in a sentence or two."""

from __future__ import annotations

import pandas as pd

from poscli.report.summary import BREAKS, FADES, HOLDS, UNCLEAR, UNTESTED, USES, is_failure, ratio_name, verdict
from poscli.report.words import names, number

EFFECTS = {USES: "helps", HOLDS: "makes no difference to", FADES: "harms", BREAKS: "breaks"}
PHRASES = {
    USES: "Better than with the context cut to {length}, so the longer context is used",
    HOLDS: "No worse than with the context cut to {length}",
    FADES: "Worse than with the context cut to {length}",
    BREAKS: "Broken there",
    UNCLEAR: "Too few documents to tell",
    UNTESTED: "No verdict",
}


def perplexity_finding(points: pd.DataFrame, unit: str) -> str:
    """Best and worst at the longest length, and who gives no number there."""
    last = points["length"].max()
    end = points[points["length"] == last].dropna(subset=["ppl"]).sort_values("ppl")
    if end.empty:
        return _lost(points)
    best, worst = end.iloc[0], end.iloc[-1]
    text = f"Reading {last} {unit}s at once, {best['encoding']}"
    if len(end) == 1:
        text += f" has perplexity {number(best['ppl'])}."
    else:
        text += f" is best (perplexity {number(best['ppl'])}) and {worst['encoding']} worst ({number(worst['ppl'])})."
    return f"{text} {_lost(points)}".strip()


def gain_finding(points: pd.DataFrame) -> str:
    """Whom the longer context helps or harms at the longest length, by the intervals of the gain."""
    last = points["length"].max()
    end = points[points["length"] == last].dropna(subset=["gain"]).sort_values("gain", ascending=False)
    if points["ratio"].max() <= 1:
        return "Only the training length was evaluated."
    words = [verdict(*gain) for gain in end[["gain", "gain_low", "gain_high"]].itertuples(index=False)]
    groups = {key: [name for name, word in zip(end["encoding"], words, strict=True) if word == key] for key in EFFECTS}
    told = "; ".join(f"{EFFECTS[key]} {names(who, 4)}" for key, who in groups.items() if who)
    return f"At {ratio_name(points['ratio'].max())} it {told or 'cannot be told'}. {_lost(points)}".strip()


def position_finding(bins: pd.DataFrame) -> str:
    """Best and worst loss in the last bin of the window."""
    end = bins[bins["length"] == bins["length"].max()].sort_values("bits")
    best, worst = end.iloc[0], end.iloc[-1]
    text = f"At the end of the window {best['encoding']} pays {best['bits']:.2f} bits per byte"
    return f"{text}, {worst['encoding']} {worst['bits']:.2f}." if len(end) > 1 else f"{text}."


def _lost(points: pd.DataFrame) -> str:
    """Who gives no number at the longest length."""
    end = points[points["length"] == points["length"].max()]
    who = list(end.loc[end["nll"].isna(), "encoding"])
    return f"No result there: {names(who, 4)}." if who else ""


def answer(summary: pd.DataFrame) -> str:
    """The summary in a paragraph: who predicts best at the longest length, and who holds there."""
    first = summary.iloc[0]
    length, last = int(first["train_length"]), int(first["max_length"])
    ratio = ratio_name(last / length)
    scored = summary[~summary["verdict"].map(is_failure)].dropna(subset=[f"ppl_{ratio}"])
    parts = []
    if len(scored):
        best = scored.iloc[0]
        own = f", {number(best['growth'])}x its own at {length}" if last > length and best["growth"] > 0 else ""
        parts.append(
            f"Trained on windows of {length} tokens and reading {last} ({ratio}), {best['encoding']} predicts best "
            f"(perplexity {number(best[f'ppl_{ratio}'])}{own})."
        )
    seen = list(dict.fromkeys(summary["verdict"]))
    for word in [*(word for word in PHRASES if word in seen), *(word for word in seen if word not in PHRASES)]:
        phrase = PHRASES.get(word, f"Failed ({word})").format(length=length)
        parts.append(f"{phrase}: {names(list(summary.loc[summary['verdict'] == word, 'encoding']), 8)}.")
    return " ".join(parts)
