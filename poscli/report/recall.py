"""Whether text is recalled from far back: the gain of the whole window on tokens that could be copied."""

from __future__ import annotations

import pandas as pd

from poscli.drawing.text import amount, listed, named, signed
from poscli.evaluation.recall import HIT
from poscli.report.data import Analysis
from poscli.report.table import Column, gain_text, words
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import LN2
from poscli.statistics.intervals import interval_of_seeds

FEWEST_TOKENS = 50  # in a bin of recall; with fewer, its mean is not shown
NAMED_FROM_BITS = 0.1  # bits per token that count as recall in the answer, if their interval excludes zero


def hits(recall: pd.DataFrame) -> pd.DataFrame:
    """The rows of recall.csv about tokens that could be copied, where there are enough, with the gain in `bits`."""
    copied = recall[(recall["kind"] == HIT) & (recall["tokens"] >= FEWEST_TOKENS) & recall["gain"].notna()]
    return copied.assign(bits=copied["gain"] / LN2)


def recall_points(recall: pd.DataFrame) -> pd.DataFrame:
    """Means of `hits` over seeds by encoding and bin: tokens, and the gain in bits per token with its interval."""
    points = []
    for (name, first, last), part in hits(recall).groupby(["encoding", "from", "to"]):
        ends = (part[column].to_numpy(float) / LN2 for column in ("gain", "gain_low", "gain_high"))
        points.append((name, first, last, part["tokens"].max(), *interval_of_seeds(*ends)))
    return pd.DataFrame(points, columns=["encoding", "from", "to", "tokens", "gain", "low", "high"])


def recalled(recall: pd.DataFrame, points: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """The gain on tokens that could be copied, by the distance of the earlier occurrence; None without such tokens.

    `points` are the `recall_points` of the table.
    """
    if points.empty:
        return None
    first = recall.iloc[0]
    length, ngram = int(first["train_length"]), int(first["ngram"])
    names = [name for name in summary["encoding"] if name in set(points["encoding"])]
    at = points.set_index(["encoding", "from"])[["gain", "low", "high"]]
    columns = [words("encoding", names)]
    for low, high in sorted(set(zip(points["from"], points["to"], strict=True))):
        tokens = points.loc[points["from"] == low, "tokens"].max()
        gains = at.reindex([(name, low) for name in names]).itertuples(index=False)
        columns.append(Column(f"{low} to {high} ({amount(tokens)})", tuple(gain_text(*gain) for gain in gains)))
    return Analysis(
        "Is distant text recalled?",
        recalled_from(points, length),
        tuple(columns),
        (
            f"bits per token by which the whole window beats the context cut to L, on tokens whose {ngram} preceding "
            f"tokens occurred so many tokens back, followed by the same token; L = {length}",
            f"in square brackets: the 95 % interval over documents and, from {FEWEST_SEEDS} seeds on, seeds",
            f"in round brackets: tokens scored; bins of fewer than {FEWEST_TOKENS} are not shown",
        ),
    )


def recalled_from(points: pd.DataFrame, length: int) -> str:
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
    names = [
        f"{named(str(name))} (up to {farthest[name]} tokens back, at best {signed(gain)} bits)"
        for name, gain in best.items()
    ]
    return f"Beyond {length} tokens, text is recalled by {listed(names, 6)}."
