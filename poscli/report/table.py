"""The summary as columns of text and as sentences, for the terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from poscli.drawing.text import amount, listed, number, signed
from poscli.report.origin import bits_per
from poscli.report.pooling import ACCURACY, Headline, is_answered, is_summed_per_byte, ratio_name
from poscli.report.reach import effective_text
from poscli.report.summary import GAIN, machine_names, measures_of, ratios_of
from poscli.report.verdicts import (
    BREAKS,
    DEGRADES,
    HARM_BPB,
    HOLDS,
    MAY_USE_CONTEXT,
    NOT_TESTED,
    NOT_TRAINED,
    OPEN_HARM,
    SMALL_HARM,
    SOLVED_TEXT,
    UNCLEAR,
    UNDERTRAINED,
    USES_CONTEXT,
    can_win,
    effect,
    is_failure,
    meanings,
)
from poscli.statistics import FEWEST_SEEDS, Triple

NAMED = 3  # encodings of one verdict that have a line each
PHRASES = {
    NOT_TRAINED: "Not trained, since already at {length} they predict no better than a guess",
    UNDERTRAINED: "Undertrained, since already at {length} they are too far behind the best for a ranking",
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


@dataclass(frozen=True)
class Column:
    """One column of text; `best` is the row of its best number."""

    name: str
    cells: tuple[str, ...]
    right: bool = True
    best: int | None = None


def words(name: str, values: Iterable[object]) -> Column:
    """A column of words, which stand at the left."""
    return Column(name, tuple(map(str, values)), right=False)


def summary_columns(summary: pd.DataFrame, *, wide: bool = True) -> list[Column]:
    """The summary as text; tables that are not `wide` give the interval of a gain as ± its larger half."""
    first, *later = ratios_of(summary)
    longer = _is_longer(summary)
    last = ratio_name(summary["max_length"].iloc[0] / summary["train_length"].iloc[0])

    def best(values: pd.Series, *, at_last: bool) -> int | None:
        """The row of the smallest of two or more values.

        Encodings that did not learn enough cannot be the best, nor those that failed at the last length, there.
        """
        verdicts = summary["verdict"]
        known = values[verdicts.map(can_win) if at_last else ~verdicts.isin([UNDERTRAINED, NOT_TRAINED])].dropna()
        return int(known.idxmin()) if len(known) > 1 else None

    def numbers(name: str, column: str) -> Column:
        values, share = summary[column], column.startswith(ACCURACY)
        cells = ("-" if v != v else f"{v:.3f}" if share else number(v) for v in values)
        return Column(name, tuple(cells), best=best(-values if share else values, at_last=column.endswith(f"_{last}")))

    def by_length(title: str, measure: str) -> list[Column]:
        """A column per length; later heads omit the measure to keep the table narrow."""
        return [numbers(f"{title} {first}", f"{measure}_{first}"), *(numbers(r, f"{measure}_{r}") for r in later)]

    columns = [words("encoding", summary["encoding"])]
    if (summary["seeds"] > 1).any():
        columns.append(Column("seeds", tuple(map(str, summary["seeds"]))))
    columns.append(Column("params", tuple(map(amount, summary["parameters"]))))
    if is_answered(summary):  # of the loss, only the answers had a part
        columns += by_length(ACCURACY, ACCURACY)
        columns.append(Column("effective", effective_text(summary)))
    else:
        bits, per_byte = short_bits(summary), is_summed_per_byte(summary)
        columns += by_length(bits if per_byte else "ppl", "ppl")
        if not per_byte:
            if longer:
                columns.append(Column("growth", tuple(number(v) + "x" if v == v else "-" for v in summary["growth"])))
            columns.append(numbers(f"{bits} {last}", f"bpb_{last}"))
        for measure in _task_measures(summary):
            columns.append(Column(f"{measure} {last}", tuple(map(number, summary[f"{measure}_{last}"]))))
        gains = tuple(gain_text(*gain, wide=wide) for gain in gain_intervals(summary))
        head = f"gain {last} [95 %]" if wide else f"gain {last}"
        if longer:
            columns.append(Column(head, gains, best=best(-summary["gain_bpb"], at_last=True)))
        for name in ("safe", "harmful"):
            if summary[name].notna().any():
                columns.append(Column(name, tuple("-" if v != v else ratio_name(v) for v in summary[name])))
    if machines := machine_names(summary):
        columns.append(words("machine", machines))
    return [*columns, words("verdict", summary["verdict"])]


def _is_longer(summary: pd.DataFrame) -> bool:
    """Whether any window was longer than in training."""
    return bool(summary["max_length"].iloc[0] > summary["train_length"].iloc[0])


def legend(summary: pd.DataFrame, protocols: Headline, *, without: Sequence[str] = ()) -> list[str]:
    """One line per column and verdict of the table that needs an explanation; `without` lists columns left out."""
    length = summary["train_length"].iloc[0]
    last = ratio_name(summary["max_length"].iloc[0] / length)
    short, bits = short_bits(summary), bits_per(summary)
    windows, longer = f"windows of 1, 2, ... times L = {length}", _is_longer(summary)
    lines: dict[str, str] = {}
    if is_answered(summary):
        lines["accuracy"] = (
            "accuracy 1x, 2x, ...: share of the tokens of the answers that the model ranks first, in "
            f"windows of 1, 2, ... times L = {length}"
        )
        lines["effective"] = (
            f"effective: the largest multiple of L up to which the accuracy is at least {SOLVED_TEXT} at every length, "
            "0x if at none; in brackets its 95 % interval: up to where that is sure, and up to where it is possible"
        )
    else:
        if is_summed_per_byte(summary):
            lines["ppl"] = f"{short} 1x, 2x, ...: {bits}, reading {windows} tokens ({protocols.perplexity})"
        else:
            lines["ppl"] = f"ppl 1x, 2x, ...: perplexity per token, reading {windows} ({protocols.perplexity})"
            if longer:
                lines["growth"] = f"growth: perplexity at {last} over that at 1x"
            lines[short] = f"{short} {last}: {bits} at {last}"
        for measure in _task_measures(summary):
            what = f"{bits} above the best possible loss" if measure == "excess" else f"{measure} of the task"
            lines[measure] = f"{measure} {last}: {what} at {last} ({protocols.perplexity})"
        if protocols.gain and longer:
            lines["gain"] = (
                f"gain {last}: {bits} won by reading {last} instead of 1x, on the same tokens ({protocols.gain}), "
                "with its 95 % interval"
            )
        if summary["safe"].notna().any():
            lines["safe"] = (
                f"safe: proven safe up to this multiple of L: the interval over at least {FEWEST_SEEDS} seeds excludes "
                f"a harm of {HARM_BPB} {bits}, compared with the context cut to L; longer windows are undecided, up to "
                "those that are proven harmful"
            )
        if summary["harmful"].notna().any():
            lines["harmful"] = (
                "harmful: proven harmful from this multiple of L on: the whole interval lies at a harm of "
                f"{HARM_BPB} {bits} or more"
            )
    if machine_names(summary):
        lines["machine"] = "machine: where it was measured; times of different machines cannot be compared"
    seen = set(summary["verdict"])
    verdicts = [f"{word}: {meaning}" for word, meaning in meanings(bits).items() if word in seen]
    return [line for column, line in lines.items() if column not in without] + verdicts


def verdict_sentences(summary: pd.DataFrame) -> str:
    """The encodings of each verdict, a sentence for each; for a task with right answers, how far it is solved.

    Encodings that the longer context surely harms, though by less than a verdict counts, have a sentence of their own.
    """
    length, bits, sentences = int(summary["train_length"].iloc[0]), bits_per(summary), []
    if answered := is_answered(summary):
        sentences.append(solved_up_to(summary))
        summary = summary[summary["verdict"].map(is_failure) | (summary["verdict"] == NOT_TRAINED)]
    names: dict[str, list[str]] = {}
    for name, word, high in zip(summary["encoding"], summary["verdict"], summary["gain_bpb_high"], strict=True):
        names.setdefault(effect(word, float(high)), []).append(name)
    for word in [*(word for word in PHRASES if word in names), *(word for word in names if word not in PHRASES)]:
        phrase = PHRASES.get(word, f"Failed ({word})").format(length=length, bits=bits)
        sentences.append(f"{phrase}: {listed(names[word], 8)}.")
    if not answered:
        sentences += _what_is_proven(summary)
    return " ".join(sentences)


def _what_is_proven(summary: pd.DataFrame) -> list[str]:
    """What is proven of longer windows, the safest first: a sentence for all encodings with the same proof."""
    known = summary[summary["safety"] != ""]
    known = known.sort_values(["safe", "harmful"], ascending=False, na_position="first", kind="stable")
    groups = known.groupby("safety", sort=False)["encoding"]
    return [f"{said[0].upper()}{said[1:]}: {listed(list(names), 8)}." for said, names in groups]


def solved_up_to(summary: pd.DataFrame) -> str:
    """Which encodings solve a task with right answers, and up to which length."""
    known = summary.sort_values("effective", ascending=False, kind="stable")
    solved = known[known["effective"] > 0]
    if solved.empty:
        return f"No encoding answers {SOLVED_TEXT} right, not even at its training length."
    reaches = []
    for ratio, part in solved.groupby("effective", sort=False):
        reach = f"up to {ratio_name(float(ratio))}" if ratio > 1 else "at 1x only"
        reaches.append(f"{listed(list(part['encoding']), 6)} {reach}")
    unsolved = listed(list(known.loc[known["effective"] == 0, "encoding"]), 6)
    end = f"; {unsolved} at no length" if unsolved else ""
    return f"At least {SOLVED_TEXT} of the answers are right with {', '.join(reaches)}{end}."


def failures(summary: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Encodings that failed or were not tested: (encoding, verdict, reason), folded as in `folded`."""
    failed = summary[(summary["reason"] != "") & summary["reason"].notna()]
    return folded(list(failed[["encoding", "verdict", "reason"]].itertuples(index=False, name=None)))


def folded(lines: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Lines of (encoding, verdict, reason); if many encodings are not trained, one line at the top names them all.

    That line has the reason of the first of them; summary.csv has those of all.
    """
    guessing = [line for line in lines if line[1] == NOT_TRAINED]
    if len(guessing) <= NAMED:
        return list(lines)
    names, (first, _, reason) = list(dict.fromkeys(name for name, _, _ in guessing)), guessing[0]
    many = listed(names, NAMED), NOT_TRAINED, f"{len(names)} encodings; {first}: {reason}"
    return [many, *(line for line in lines if line[1] != NOT_TRAINED)]


def gain_text(gain: float, low: float, high: float, *, wide: bool = True) -> str:
    """Write a gain with its interval.

    >>> gain_text(0.0221, 0.0172, 0.0268), gain_text(0.0221, 0.0172, 0.0268, wide=False)
    ('+0.022 [+0.017, +0.027]', '+0.022 ±0.005')
    """
    if gain != gain:
        return "-"
    if low != low or high != high:
        return signed(gain)
    if wide:
        return f"{signed(gain)} [{signed(low)}, {signed(high)}]"
    return f"{signed(gain)} ±{max(gain - low, high - gain):.{3 if abs(gain) < 1 else 2}f}"


def gain_intervals(summary: pd.DataFrame) -> list[Triple]:
    """(gain, low, high) of every encoding, in bits per byte or cell, rounded as on the page: digits are the same."""
    return list(summary[list(GAIN)].round(5).itertuples(index=False, name=None))


def short_bits(table: pd.DataFrame) -> str:
    """The unit of losses in the head of a column: `bpb` for bits per byte, `bpc` for bits per cell."""
    return f"bp{bits_per(table).removeprefix('bits per ')[0]}"


def _task_measures(summary: pd.DataFrame) -> list[str]:
    return [measure for measure in measures_of(summary) if measure not in ("ppl", "bpb")]
