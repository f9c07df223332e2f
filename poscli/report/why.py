"""Why encodings break on long windows, in words and shares, from the tables of `poscli extrapolate --why`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from poscli.drawing.text import listed, signed
from poscli.evaluation.why.attribution import CAUSES, FULL, SMALLEST_HARM, remedies, what_breaks
from poscli.report.analysis import Analysis
from poscli.report.pooling import LN2
from poscli.report.summary import ratio_name
from poscli.report.table import Column


def broken_by(table: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """What the long window does, and one change of it at a time; None if nothing was attributed."""
    if table.empty:
        return None
    rows = {name: _mean(part) for name, part in table.groupby("encoding")}
    names = [name for name in summary["encoding"] if name in rows]
    ratio = ratio_name(float((table["length"] / table["train_length"]).max()))
    columns = [
        Column("encoding", tuple(names), right=False),
        Column(f"harm at {ratio}", tuple(_cell(rows[name], FULL) for name in names)),
        *(
            Column(f"{what} ({change})", tuple(_cell(rows[name], change) for name in names))
            for change, what in CAUSES.items()
        ),
    ]
    return Analysis(
        "Why do they break?",
        _answer({name: rows[name] for name in names}, ratio),
        tuple(columns),
        (
            f"harm at {ratio}: bits per token above the loss with the last L tokens at their trained positions",
            "position (offset): those L tokens at the positions that they have in the long window",
            "distance (stretch): those L tokens with their distances multiplied, which also moves neighbours apart",
            "number of keys (crowd): all tokens, with no distance seen as more than in training",
            "void: nothing can change, or the change has no meaning, by the encoding's definition; where nothing can "
            "change, the loss is computed all the same and checked",
        ),
    )


def _mean(part: pd.DataFrame) -> list[dict]:
    """The rows of one encoding, averaged over its seeds: nll, harm and share; texts are those of the worst seed."""
    rows = []
    first = part.sort_values("status", key=lambda status: status != "fault", kind="stable").drop_duplicates("change")
    means = part.groupby("change")[["nll", "harm"]].mean()
    broken = means["harm"].get(FULL, math.nan)
    for row in first.to_dict("records"):
        harm = float(means.loc[row["change"], "harm"])
        share = harm / broken if broken >= SMALLEST_HARM else math.nan
        rows.append(row | {"nll": float(means.loc[row["change"], "nll"]), "harm": harm, "share": share})
    return rows


def _cell(rows: list[dict], change: str) -> str:
    row = next((row for row in rows if row["change"] == change), None)
    if row is None:
        return "-"
    if row["status"] != "ok":
        return row["status"]
    share = f" ({100 * row['share']:.0f} %)" if change != FULL and row["share"] == row["share"] else ""
    return f"{signed(row['harm'] / LN2)}{share}"


def _answer(rows: dict[str, list[dict]], ratio: str) -> str:
    """Encodings grouped by what breaks them, and what usually mends each cause."""
    groups: dict[str, list[str]] = {}
    for name, mine in rows.items():
        groups.setdefault(what_breaks(mine), []).append(name)
    told = "; ".join(f"{text}: {listed(names, 8)}" for text, names in groups.items())
    faults = [f"{name}: {row['reason']}" for name, mine in rows.items() for row in mine if row["status"] == "fault"]
    told += f". Faults of encodings: {'; '.join(faults)}" if faults else ""
    mended = dict.fromkeys(line for mine in rows.values() for line in remedies(mine))
    return f"At {ratio}, {told}.{' What usually mends that: ' + '; '.join(mended) + '.' if mended else ''}"


def used_window(details: Mapping[str, pd.DataFrame], summary: pd.DataFrame) -> Analysis | None:
    """How much of a window a model uses: saturation, gradients, replaced text and spread of attention."""
    saturation, receptive, dilution = (details[f"why/{name}"] for name in ("saturation", "receptive", "dilution"))
    length = int(saturation["train_length"].iloc[0])
    names = [name for name in summary["encoding"] if name in set(saturation["encoding"])]
    longest = int(saturation["window"].max())
    best = {str(name): part for name, part in saturation.groupby("encoding")}
    columns = [
        Column("encoding", tuple(names), right=False),
        Column("saturates at", tuple(_saturates(best[name]) for name in names)),
        Column(f"gradient beyond L = {length}", tuple(_beyond(receptive, name) for name in names)),
        Column("text beyond L replaced", tuple(_replaced(receptive, name, length) for name in names)),
        Column("entropy at L", tuple(_mean_of(dilution, name, "entropy", length) for name in names)),
        Column(f"entropy at {longest}", tuple(_mean_of(dilution, name, "entropy", longest) for name in names)),
        Column(f"mass beyond L at {longest}", tuple(_mean_of(dilution, name, "far_mass", longest) for name in names)),
    ]
    return Analysis(
        "How much of a long window is used?",
        _most_used(best, names, length),
        tuple(columns),
        (
            "saturates at: the shortest window, in tokens, whose loss is within 0.01 bits per token of the best",
            "gradient beyond L: share of the gradient of a prediction that lies on inputs L or more tokens back",
            "text beyond L replaced: bits per token lost if the text L or more tokens back is that of another document",
            "entropy: that of the attention weights over the logarithm of the keys seen, mean over heads; 1 is even",
            "mass beyond L: share of the attention weights on keys L or more tokens back, mean over layers and heads",
        ),
    )


def _saturates(part: pd.DataFrame) -> str:
    """The smallest window within 0.01 bits of the best, of the mean over seeds."""
    nll = part.groupby("window")["nll"].mean()
    near = nll[nll <= nll.min() + 0.01 * LN2]
    return str(int(near.index.min())) if len(near) else "-"


def _beyond(table: pd.DataFrame, name: str) -> str:
    mine = table[(table["encoding"] == name) & (table["method"] == "gradient")]
    share = mine["beyond"].mean()
    return "-" if math.isnan(share) else f"{100 * share:.0f} %"


def _replaced(table: pd.DataFrame, name: str, length: int) -> str:
    mine = table[(table["encoding"] == name) & (table["method"] == "replace") & (table["from"] == length)]
    return signed(mine["value"].mean() / LN2) if len(mine) else "-"


def _mean_of(table: pd.DataFrame, name: str, column: str, window: int) -> str:
    mine = table[(table["encoding"] == name) & (table["window"] == window)]
    return f"{mine[column].mean():.2f}" if len(mine) else "-"


def _most_used(parts: Mapping[str, pd.DataFrame], names: list[str], length: int) -> str:
    beyond = [name for name in names if (text := _saturates(parts[name])).isdigit() and int(text) > length]
    if not beyond:
        return f"No encoding needs more than L = {length} tokens to come within 0.01 bits per token of its best."
    return f"More than L = {length} tokens are needed by {', '.join(beyond)} to come within 0.01 bits of their best."
