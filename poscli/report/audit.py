"""Does the ranking of encodings depend on the protocol, and by how much does each protocol flatter?

The early-token effect of an encoding is how much its loss falls from the shortest to the longest length under a
protocol, minus its context gain, which is what the longer context is worth on the same tokens. What is left is due to
the tokens at the start of each window: with longer windows, fewer tokens have little context.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from poscli.drawing.text import listed, named, signed
from poscli.evaluation.protocol import PROTOCOLS
from poscli.report.analysis import Analysis
from poscli.report.origin import bits_per
from poscli.report.pooling import headline, pool
from poscli.report.summary import ratio_name
from poscli.report.table import Column
from poscli.report.verdicts import HARM_BPB, can_win

SHOWN = 4  # pairs of encodings that are named


def audit(rows: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """The rankings under all protocols at the longest length; None if there is nothing to compare."""
    fair = set(summary.loc[summary["verdict"].map(can_win), "encoding"])
    losses = {name: _losses(rows, name, fair) for name in dict.fromkeys(rows["protocol"])}
    losses = {name: table for name, table in losses.items() if len(table)}
    main, of_gain = headline(rows)
    if len(losses) < 2 or main not in losses or len(losses[main]) < 2:
        return None
    gains = _gains(rows, of_gain)
    names = list(losses)
    columns = (
        Column("protocol", tuple(names), right=False),
        Column("best to worst", tuple(listed(_ranking(losses[name]), 12) for name in names), right=False),
        Column(f"agrees with {main}", tuple(_agreement(losses[main], losses[n]) for n in names)),
        Column("early-token effect", tuple(_early(losses[name], gains) for name in names)),
        Column("published as", tuple(_convention(name) for name in names), right=False),
    )
    ratio = ratio_name(rows["ratio"].max())
    return Analysis(
        f"Does the ranking at {ratio} depend on the protocol?",
        _answer(losses, main),
        columns,
        (
            "best to worst: encodings by their loss, without those that failed or are not trained",
            f"agrees with {main}: Kendall's tau of the two rankings; 1 is the same order, -1 the reverse",
            f"early-token effect: {bits_per(rows)} by which the loss falls from 1x to {ratio} beyond the context gain, "
            "mean and range over encodings: by so much this protocol flatters long windows",
        ),
    )


def _losses(rows: pd.DataFrame, protocol: str, fair: set[str]) -> pd.DataFrame:
    """Bits per byte by encoding at 1x and at the longest length, best first; encodings without both are left out."""
    points = pool(rows, protocol)
    points = points[points["encoding"].isin(fair) & (points["status"] == "ok")]
    table = points.pivot_table(index="encoding", columns="length", values="bpb")
    ends = table[[table.columns.min(), table.columns.max()]].dropna() if table.shape[1] > 1 else table.iloc[:0]
    return ends.set_axis(["first", "last"], axis=1).sort_values("last") if len(ends) else ends


def _gains(rows: pd.DataFrame, protocol: str) -> pd.Series:
    points = pool(rows, protocol)
    return points[points["length"] == points["length"].max()].set_index("encoding")["gain"]


def _ranking(losses: pd.DataFrame) -> list[str]:
    return [str(name) for name in losses.index]


def _agreement(one: pd.DataFrame, other: pd.DataFrame) -> str:
    both = one.index.intersection(other.index)
    tau = kendalltau(one.loc[both, "last"], other.loc[both, "last"]).statistic if len(both) > 1 else np.nan
    return "-" if np.isnan(tau) else f"{tau:.2f}"


def _early(losses: pd.DataFrame, gains: pd.Series) -> str:
    effect = (losses["first"] - losses["last"] - gains.reindex(losses.index)).dropna()
    if effect.empty:
        return "-"
    mean = signed(float(effect.mean()))
    return mean if len(effect) == 1 else f"{mean} ({signed(float(effect.min()))} to {signed(float(effect.max()))})"


def _convention(protocol: str) -> str:
    found = PROTOCOLS.get(protocol).convention if protocol in PROTOCOLS.names() else ""
    return found or "-"


def _answer(losses: dict[str, pd.DataFrame], main: str) -> str:
    """Which pairs of encodings change places under which protocol."""
    told = []
    for name, table in losses.items():
        both = losses[main].index.intersection(table.index)
        one, other = losses[main].loc[both, "last"], table.loc[both, "last"]
        swapped = [
            f"{named(a)} with {named(b)}"
            for a, b in itertools.combinations(both, 2)
            if _is_swapped(one[a] - one[b], other[a] - other[b])
        ]
        if name != main and swapped:
            told.append(f"under {name}, other than under {main}, these change places: {listed(swapped, SHOWN)}")
    if not told:
        return (
            f"No: under {listed(list(losses))}, no two encodings that differ by {HARM_BPB} bits or more change places."
        )
    return f"Yes: {'; '.join(told)}."


def _is_swapped(one: float, other: float) -> bool:
    """Whether two differences have opposite signs, and both are of consequence."""
    return one * other < 0 and min(abs(one), abs(other)) >= HARM_BPB
