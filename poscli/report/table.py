"""The cells of the summary, the same in the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from poscli.report.summary import GAIN, MEANING, ratio_name, ratios_of
from poscli.report.words import amount, number, signed


@dataclass(frozen=True)
class Column:
    """A column of text; `best` is the row of its best number."""

    name: str
    cells: tuple[str, ...]
    right: bool = True
    best: int | None = None


def summary_columns(summary: pd.DataFrame, *, wide: bool = True) -> list[Column]:
    """The summary as text; in narrow tables the gain's interval is written as its larger half, ±."""
    ratios, last = ratios_of(summary), _last(summary)
    columns = [_words("encoding", summary["encoding"])]
    if (summary["seeds"] > 1).any():
        columns.append(Column("seeds", tuple(map(str, summary["seeds"]))))
    columns.append(Column("params", tuple(map(amount, summary["parameters"]))))
    heads = [f"ppl {ratios[0]}", *ratios[1:]]  # the others go without saying, and the table stays narrow
    columns += [_numbers(head, summary[f"ppl_{ratio}"]) for head, ratio in zip(heads, ratios, strict=True)]
    columns.append(Column("growth", tuple(number(v) + "x" if v == v else "-" for v in summary["growth"])))
    columns.append(_numbers(f"bpb {last}", summary[f"bpb_{last}"]))
    columns.append(_gains(f"gain {last}", summary, wide))
    return [*columns, _words("verdict", summary["verdict"])]


def legend(summary: pd.DataFrame, *, without: Sequence[str] = ()) -> list[str]:
    """One line per thing in the table that needs a word."""
    length, last = summary["train_length"].iloc[0], _last(summary)
    lines = {
        "ppl": f"ppl 1x, 2x, ...: perplexity per token, reading windows of 1, 2, ... times L = {length} (sliding)",
        "growth": f"growth: perplexity at {last} over that at 1x",
        "bpb": f"bpb {last}: bits per byte at {last}",
        "gain": f"gain {last}: bits per byte won by reading {last} instead of 1x, on the same tokens (fixed), "
        "with its 95 % interval",
    }
    seen = set(summary["verdict"])
    meanings = [f"{verdict}: {meaning}" for verdict, meaning in MEANING.items() if verdict in seen]
    return [line for column, line in lines.items() if column not in without] + meanings


def failures(summary: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Encodings without a verdict on their numbers: (encoding, what happened, why)."""
    failed = summary[(summary["reason"] != "") & summary["reason"].notna()]
    return list(failed[["encoding", "verdict", "reason"]].itertuples(index=False, name=None))


def gain_text(gain: float, low: float, high: float, *, wide: bool = True) -> str:
    """A gain with its interval.

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
    """Every encoding's gain with its interval."""
    return list(summary[list(GAIN)].itertuples(index=False, name=None))


def _gains(name: str, summary: pd.DataFrame, wide: bool) -> Column:
    cells = tuple(gain_text(*gain, wide=wide) for gain in gains_of(summary))
    return Column(name + (" [95 %]" if wide else ""), cells, best=_best(-summary["gain_bpb"]))


def _numbers(name: str, values: pd.Series) -> Column:
    return Column(name, tuple(map(number, values)), best=_best(values))


def _words(name: str, values: Sequence[str] | pd.Series) -> Column:
    return Column(name, tuple(map(str, values)), right=False)


def _best(values: pd.Series) -> int | None:
    """The row of the smallest value, where there is a choice."""
    known = values.dropna()
    return int(known.idxmin()) if len(known) > 1 else None


def _last(summary: pd.DataFrame) -> str:
    return ratio_name(summary["max_length"].iloc[0] / summary["train_length"].iloc[0])
