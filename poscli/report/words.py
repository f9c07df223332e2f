"""Numbers, lists and origins in plain words, the same in every figure and table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd


def names(items: Sequence[str], most: int = 5) -> str:
    """A list as one writes it, cut where it gets long.

    >>> names(["a", "b", "c"])
    'a, b and c'
    >>> names(list("abcdefgh"), most=3)
    'a, b, c and 5 more'
    """
    if len(items) > most:
        return f"{', '.join(items[:most])} and {len(items) - most} more"
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def number(value: float, digits: int = 3) -> str:
    """A positive number with about three significant digits, or a dash where there is none.

    >>> [number(x) for x in (3.9512, 43.19, 1234.5, 2.5e7, float("inf"), float("nan"))]
    ['3.95', '43.2', '1234', '2.5e+07', 'inf', '-']
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value) or value >= 1e5:
        return f"{value:.2g}"
    places = max(0, digits - 1 - math.floor(math.log10(value))) if value > 0 else digits - 1
    return f"{value:.{min(places, digits - 1)}f}"


def signed(value: float) -> str:
    """A difference with its sign; three decimals while they say something.

    >>> [signed(x) for x in (0.0231, -2.531, 0.0, float("nan"))]
    ['+0.023', '-2.53', '0.000', '-']
    """
    if math.isnan(value):
        return "-"
    if abs(value) < 5e-4:
        return "0.000"
    return f"{value:+.3f}" if abs(value) < 1 else f"{value:+.2f}"


def amount(value: float) -> str:
    """A count in thousands, millions or billions.

    >>> [amount(x) for x in (512, 131072, 2_100_000)]
    ['512', '131k', '2.1M']
    """
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.3g}{unit}"
    return f"{value:.0f}"


def unit_of(rows: pd.DataFrame) -> str:
    """What one token is: `byte` where each token stands for one byte, else `token`."""
    scored = rows[rows["status"] == "ok"]
    return "byte" if len(scored) and (scored["tokens"] == scored["bytes"]).all() else "token"


def made_with(rows: pd.DataFrame, protocol: str, trained: Mapping[str, int] | None = None) -> str:
    """How the numbers of one protocol were made, for a footnote."""
    chosen = rows[rows["protocol"] == protocol]
    scored = chosen[chosen["status"] == "ok"]
    budget = span({trained[run] for run in set(rows["run_id"]) if run in trained}) if trained else ""
    strides = span(set(chosen["stride"]) - {0})
    parts = [
        f"Corpus {corpora(rows)}",
        f"trained at L = {span(set(rows['train_length']))}" + (f" on {budget} tokens" if budget else ""),
        f"protocol {protocol}" + (f", stride {strides}" if strides else ""),
        f"{span(set(scored['tokens']))} tokens of {span(set(scored['documents']))} documents scored",
        seeds(rows),
        ", ".join(kinds(scored["device"]) + kinds(scored["dtype"])),
    ]
    return "; ".join(filter(None, parts)) + "."


def corpora(rows: pd.DataFrame) -> str:
    """The corpora of these rows, each with the beginning of its fingerprint."""
    pairs = sorted(set(zip(rows["corpus"], rows["fingerprint"], strict=True)))
    return names([f"{corpus} ({mark[:8]})" for corpus, mark in pairs], 3)


def kinds(values: pd.Series) -> list[str]:
    """The distinct words of a column, without the empty ones of rows that hold no number."""
    return sorted(set(values.dropna()) - {""})


def seeds(rows: pd.DataFrame) -> str:
    """How many seeds each encoding has: `1 seed`, `3 seeds`, `1 to 3 seeds`."""
    counts = set(rows.groupby("encoding")["seed"].nunique())
    return f"{span(counts)} seed{'' if counts == {1} else 's'}"


def span(values: Iterable[float]) -> str:
    """One value, or the smallest and the largest."""
    known = sorted(values)
    if not known:
        return ""
    return amount(known[0]) if known[0] == known[-1] else f"{amount(known[0])} to {amount(known[-1])}"
