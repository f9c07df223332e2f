"""Recall by distance: is text that was read more than L tokens ago copied where it occurs again?"""

from __future__ import annotations

import math

import pandas as pd

from poscli.drawing.text import amount, listed, named, signed
from poscli.evaluation.recall import HIT
from poscli.report.analysis import Analysis
from poscli.report.pooling import LN2
from poscli.report.table import Column

FEWEST_TOKENS = 50  # in a bin; with fewer, its mean is not shown
NAMED_FROM_BITS = 0.1  # bits per token that count as recall in the answer, if their interval excludes zero


def recalled(recall: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """The gain on tokens that could be copied, by the distance of the earlier occurrence; None without such tokens."""
    found = hits(recall)
    points = points_of(found)
    if points.empty:
        return None
    length = int(found["train_length"].iloc[0])
    names = [name for name in summary["encoding"] if name in set(points["encoding"])]
    bins = sorted(set(zip(points["from"], points["to"], strict=True)))
    at = points.set_index(["encoding", "from"])["gain"]
    columns = [Column("encoding", tuple(names), right=False)]
    for first, last in bins:
        tokens = points.loc[points["from"] == first, "tokens"].max()
        cells = tuple(signed(at.get((name, first), math.nan)) for name in names)
        columns.append(Column(f"{first} to {last} ({amount(tokens)})", cells))
    ngram = int(found["ngram"].iloc[0])
    return Analysis(
        "Is distant text recalled?",
        answer(points, length),
        tuple(columns),
        (
            f"bits per token by which the whole window beats the context cut to L, on tokens whose {ngram} preceding "
            f"tokens occurred so many tokens back, followed by the same token; L = {length}",
            f"in brackets: tokens scored; bins of fewer than {FEWEST_TOKENS} are not shown",
        ),
    )


def hits(recall: pd.DataFrame) -> pd.DataFrame:
    """The rows of recall.csv about tokens that could be copied, where there are any."""
    return recall[(recall["kind"] == HIT) & (recall["tokens"] > 0) & recall["gain"].notna()]


def points_of(hits: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds by encoding and bin, in bits per token; bins of too few tokens are left out."""
    key = ["encoding", "from", "to"]
    found = (
        hits[hits["tokens"] >= FEWEST_TOKENS]
        .groupby(key)
        .agg(tokens=("tokens", "max"), gain=("gain", "mean"), low=("gain_low", "mean"))
    )
    return found.assign(gain=found["gain"] / LN2, low=found["low"] / LN2).reset_index()


def answer(points: pd.DataFrame, length: int) -> str:
    """Which encodings recall text from beyond L, and from how far."""
    beyond = points[points["from"] >= length]
    if beyond.empty:
        return "No text occurs again at such distances."
    sure = beyond[(beyond["gain"] >= NAMED_FROM_BITS) & (beyond["low"] > 0)]
    best = sure.groupby("encoding")["gain"].max().sort_values(ascending=False)
    if best.empty:
        least = f"{NAMED_FROM_BITS} bits or more"
        return f"No: nothing read {length} tokens ago or more is predicted {least} better than with the context cut."
    farthest = sure.groupby("encoding")["to"].max()
    told = [
        f"{named(str(name))} (up to {farthest[name]} tokens back, {signed(gain)} bits)" for name, gain in best.items()
    ]
    return f"Beyond {length} tokens, text is recalled by {listed(told, 6)}."
