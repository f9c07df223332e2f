"""The summary as columns of text, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from poscli.drawing.text import amount, listed, number, signed
from poscli.report.origin import bits_per
from poscli.report.per_byte import is_summed_per_byte
from poscli.report.pooling import ACCURACY, Headline
from poscli.report.summary import GAIN, is_answered, machine_names, measures_of, ratio_name, ratios_of
from poscli.report.verdicts import HARM_BPB, NOT_TRAINED, SOLVED_TEXT, can_win, meanings
from poscli.statistics import FEWEST_SEEDS

NAMED = 3  # encodings of one verdict that have a line each


@dataclass(frozen=True)
class Column:
    """One column of text; `best` is the row of its best number."""

    name: str
    cells: tuple[str, ...]
    right: bool = True
    best: int | None = None


def summary_columns(summary: pd.DataFrame, *, wide: bool = True) -> list[Column]:
    """The summary as text; tables that are not `wide` give the interval of a gain as ± its larger half."""
    columns = [_words("encoding", summary["encoding"])]
    if (summary["seeds"] > 1).any():
        columns.append(Column("seeds", tuple(map(str, summary["seeds"]))))
    columns.append(Column("params", tuple(map(amount, summary["parameters"]))))
    columns += _answered_columns(summary) if is_answered(summary) else _loss_columns(summary, wide=wide)
    if machines := machine_names(summary):
        columns.append(_words("machine", machines))
    return [*columns, _words("verdict", summary["verdict"])]


def _loss_columns(summary: pd.DataFrame, *, wide: bool) -> list[Column]:
    """What a task that is judged by its loss shows of every encoding."""
    last, per_byte = _last(summary), is_summed_per_byte(summary)
    bits = short_bits(summary)
    columns = _by_length(bits if per_byte else "ppl", "ppl", summary)
    if not per_byte:
        columns.append(Column("growth", tuple(number(v) + "x" if v == v else "-" for v in summary["growth"])))
        columns.append(_numbers(f"{bits} {last}", summary, f"bpb_{last}"))
    for measure in _task_measures(summary):
        columns.append(Column(f"{measure} {last}", tuple(map(number, summary[f"{measure}_{last}"]))))
    columns.append(_gains(f"gain {last}", summary, wide))
    if summary["safe"].notna().any():
        columns.append(Column("safe", tuple("-" if v != v else ratio_name(v) for v in summary["safe"])))
    return columns


def _answered_columns(summary: pd.DataFrame) -> list[Column]:
    """What a task with right answers shows of every encoding; of the loss, only the answers had a part."""
    effective = Column("effective", tuple(ratio_name(v) if v > 0 else "-" for v in summary["effective"]))
    return [*_by_length(ACCURACY, ACCURACY, summary), effective]


def _by_length(title: str, measure: str, summary: pd.DataFrame) -> list[Column]:
    """A column per length; later heads omit the measure to keep the table narrow."""
    first, *later = ratios_of(summary)
    heads = zip([f"{title} {first}", *later], [first, *later], strict=True)
    return [_numbers(head, summary, f"{measure}_{ratio}") for head, ratio in heads]


def legend(summary: pd.DataFrame, protocols: Headline, *, without: Sequence[str] = ()) -> list[str]:
    """One line per column and verdict of the table that needs an explanation; `without` lists columns left out."""
    lines = _answered_legend(summary) if is_answered(summary) else _loss_legend(summary, protocols)
    if machine_names(summary):
        lines["machine"] = "machine: where it was measured; times of different machines cannot be compared"
    seen = set(summary["verdict"])
    verdicts = [f"{word}: {meaning}" for word, meaning in meanings(bits_per(summary)).items() if word in seen]
    return [line for column, line in lines.items() if column not in without] + verdicts


def _answered_legend(summary: pd.DataFrame) -> dict[str, str]:
    length = summary["train_length"].iloc[0]
    return {
        "accuracy": "accuracy 1x, 2x, ...: share of the tokens of the answers that the model ranks first, in windows "
        f"of 1, 2, ... times L = {length}",
        "effective": "effective: the largest multiple of L up to which the accuracy is at least "
        f"{SOLVED_TEXT} at every length",
    }


def _loss_legend(summary: pd.DataFrame, protocols: Headline) -> dict[str, str]:
    length, last = summary["train_length"].iloc[0], _last(summary)
    short, bits = short_bits(summary), bits_per(summary)
    lines = {
        "ppl": f"ppl 1x, 2x, ...: perplexity per token, reading windows of 1, 2, ... times L = {length} "
        f"({protocols.perplexity})",
        "growth": f"growth: perplexity at {last} over that at 1x",
        short: f"{short} {last}: {bits} at {last}",
    }
    if is_summed_per_byte(summary):
        told = f"{short} 1x, 2x, ...: {bits}, reading windows of 1, 2, ... times L = {length} tokens"
        lines = {"ppl": f"{told} ({protocols.perplexity})"}
    for measure in _task_measures(summary):
        lines[measure] = f"{measure} {last}: {measure} of the task at {last} ({protocols.perplexity})"
    if "excess" in lines:
        lines["excess"] = f"excess {last}: {bits} above the best possible loss at {last} ({protocols.perplexity})"
    if protocols.gain:
        lines["gain"] = (
            f"gain {last}: {bits} won by reading {last} instead of 1x, on the same tokens ({protocols.gain}), "
            "with its 95 % interval"
        )
    if summary["safe"].notna().any():
        lines["safe"] = (
            f"safe: the largest multiple of L up to which the interval over at least {FEWEST_SEEDS} seeds excludes a "
            f"harm of {HARM_BPB} {bits}, compared with the context cut to L"
        )
    return lines


def short_bits(table: pd.DataFrame) -> str:
    """The unit of losses in the head of a column: `bpb` for bits per byte, `bpc` for bits per cell."""
    return f"bp{bits_per(table).removeprefix('bits per ')[0]}"


def failures(summary: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Encodings that failed or were not tested: (encoding, verdict, reason), folded as in `folded`."""
    failed = summary[(summary["reason"] != "") & summary["reason"].notna()]
    return folded(list(failed[["encoding", "verdict", "reason"]].itertuples(index=False, name=None)))


def folded(lines: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Lines of (encoding, verdict, reason), of which many that are not trained share the first, with one reason.

    summary.csv has the reasons of all.
    """
    guessing = [line for line in lines if line[1] == NOT_TRAINED]
    if len(guessing) <= NAMED:
        return list(lines)
    names, (first, _, reason) = [name for name, _, _ in guessing], guessing[0]
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


def gains_of(summary: pd.DataFrame) -> list[tuple[float, float, float]]:
    """(gain, low, high) of every encoding, in bits per byte or cell."""
    return list(summary[list(GAIN)].itertuples(index=False, name=None))


def _gains(name: str, summary: pd.DataFrame, wide: bool) -> Column:
    cells = tuple(gain_text(*gain, wide=wide) for gain in gains_of(summary))
    return Column(name + (" [95 %]" if wide else ""), cells, best=_best(-summary["gain_bpb"], summary, at_last=True))


def _numbers(name: str, summary: pd.DataFrame, column: str) -> Column:
    share = column.startswith(ACCURACY)
    at_last = column.endswith(f"_{_last(summary)}")
    best = _best(-summary[column] if share else summary[column], summary, at_last=at_last)
    cells = ("-" if v != v else f"{v:.3f}" if share else number(v) for v in summary[column])
    return Column(name, tuple(cells), best=best)


def _words(name: str, values: Sequence[str] | pd.Series) -> Column:
    return Column(name, tuple(map(str, values)), right=False)


def _best(values: pd.Series, summary: pd.DataFrame, *, at_last: bool) -> int | None:
    """The row of the smallest value; None if there are fewer than two values.

    Encodings that are not trained cannot be the best, nor those of which a seed failed at the last length, there.
    """
    verdicts = summary["verdict"]
    known = values[verdicts.map(can_win) if at_last else verdicts != NOT_TRAINED].dropna()
    return int(known.idxmin()) if len(known) > 1 else None


def _last(summary: pd.DataFrame) -> str:
    return ratio_name(summary["max_length"].iloc[0] / summary["train_length"].iloc[0])


def _task_measures(summary: pd.DataFrame) -> list[str]:
    return [measure for measure in measures_of(summary) if measure not in ("ppl", "bpb")]
