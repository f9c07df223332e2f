"""Distance to the best possible loss, on sources where that is known at every length."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from poscli.drawing.text import named, number, signed
from poscli.evaluation.plan import PAIRED
from poscli.report.analysis import Analysis
from poscli.report.pooling import LN2, headline, sound
from poscli.report.summary import ratio_name
from poscli.report.table import Column
from poscli.runs.schema import FULL

NAMED_FROM_BITS = 0.005  # less information beyond L than that is not worth a share


def known_limit(rows: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """For every encoding and length: bits above the optimum, and the share of the information beyond L that is used.

    None if the source has no known optimum.
    """
    protocol = headline(rows).gain
    table = _table(rows, protocol) if protocol else pd.DataFrame()
    if table.empty:
        return None
    names = [name for name in summary["encoding"] if name in table.index.get_level_values("encoding")]
    ratios = sorted(set(table.index.get_level_values("ratio")))
    columns = [Column("encoding", tuple(names), right=False)]
    for ratio in ratios:
        columns.append(Column(f"above the optimum {ratio_name(ratio)}", _cells(table["excess"], names, ratio, number)))
    for ratio in (ratio for ratio in ratios if ratio > 1):
        columns.append(Column(f"used {ratio_name(ratio)}", _cells(table["used"], names, ratio, _percent)))
    available = table.groupby("ratio")["available"].mean()
    told = ", ".join(f"{signed(bits)} at {ratio_name(ratio)}" for ratio, bits in available.items() if ratio > 1)
    return Analysis(
        "How far from the best possible loss?",
        f"A perfect model would win {told} bits per byte by reading beyond L. {_most(table, ratios[-1])}".strip(),
        tuple(columns),
        (
            "above the optimum: bits per byte above the smallest loss that any model can reach on these windows "
            f"({protocol})",
            "used: context gain as a share of what the optimum gains from the same longer windows; below 0 %, longer "
            "windows harm; - where they tell nothing new",
        ),
    )


def _table(rows: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """Mean over seeds, by encoding and ratio, in bits per byte: `excess`, `available`; and `used`, a share."""
    mine = rows[(rows["protocol"] == protocol) & sound(rows) & rows["optimum"].notna() & (rows["bytes"] > 0)]
    bits = mine["tokens"] / mine["bytes"] / LN2
    mine = mine.assign(
        excess=(mine["nll"] - mine["optimum"]) * bits, best=mine["optimum"] * bits, won=mine["gain"] * bits
    )
    key = ["encoding", "ratio"]
    full = mine[mine["variant"] == FULL].groupby(key)[["excess", "best", "won"]].mean()
    crop = mine[mine["variant"] == PAIRED].groupby(key)["best"].mean()
    available = (crop - full["best"]).reindex(full.index)
    used = (full["won"] / available).where(available > NAMED_FROM_BITS)
    return full.assign(available=available, used=used)


def _cells(values: pd.Series, names: list[str], ratio: float, write: Callable[[float], str]) -> tuple[str, ...]:
    found = (values.get((name, ratio)) for name in names)
    return tuple("-" if value is None or value != value else write(value) for value in found)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _most(table: pd.DataFrame, ratio: float) -> str:
    used = table["used"].xs(ratio, level="ratio").dropna()
    if used.empty:
        return ""
    return (
        f"At {ratio_name(ratio)}, {named(str(used.idxmax()))} wins the largest share of that, {_percent(used.max())}."
    )
