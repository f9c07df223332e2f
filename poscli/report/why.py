"""Why encodings break on long windows, in words and shares, from the tables of `poscli extrapolate --why`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from poscli.drawing.text import listed, signed
from poscli.report.analysis import Analysis
from poscli.report.pooling import LN2, headline, pool
from poscli.report.summary import ratio_name
from poscli.report.table import Column
from poscli.report.verdicts import HARM_BPB
from poscli.why.attribution import CAUSES, FULL, SMALLEST_HARM, is_open, remedies, what_breaks

Changes = Mapping[str, list[dict]]  # the rows of the attribution of an encoding, over its seeds, by its name


def broken_by(table: pd.DataFrame, rows: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """What the long window does, and one change of it at a time; None if nothing was attributed.

    `rows` are those of the evaluation, which also measured what a window mends.
    """
    if table.empty:
        return None
    found = {name: _mean(part) for name, part in table.groupby("encoding")}
    changes = {name: found[name] for name in summary["encoding"] if name in found}
    ratio = ratio_name(float((table["length"] / table["train_length"]).max()))
    columns = [
        Column("encoding", tuple(changes), right=False),
        Column(f"harm at {ratio}", tuple(_cell(mine, FULL) for mine in changes.values())),
        *(
            Column(f"{what} ({change})", tuple(_cell(mine, change) for mine in changes.values()))
            for change, what in CAUSES.items()
        ),
    ]
    return Analysis(
        "Why do they break?",
        _answer(changes, ratio),
        tuple(columns),
        (
            f"harm at {ratio}: bits per token above the loss with the last L tokens at their trained positions",
            "position (offset): those L tokens at the positions that they have in the long window",
            "distance (stretch): those L tokens with their distances multiplied, which also moves neighbours apart",
            "open: that does more than twice the harm of the long window, and so tells nothing about long distances; "
            "where position is void, the part of distance is what crowd leaves",
            "number of keys (crowd): all tokens, with no distance seen as more than in training",
            "void: nothing can change, or the change has no meaning, by the encoding's definition; where nothing can "
            "change, the loss is computed all the same and checked",
        ),
        points=(*_mechanisms(changes), *_mended(rows, changes), *_faults(changes)),
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
    harm = signed(row["harm"] / LN2)
    if change == FULL or math.isnan(row["share"]):
        return harm
    return f"{harm} (open)" if is_open(row) else f"{harm} ({100 * row['share']:.0f} %)"


def _answer(changes: Changes, ratio: str) -> str:
    """Which encodings the long window harms."""
    harmed = [name for name, mine in changes.items() if _full(mine)["harm"] >= SMALLEST_HARM]
    spared = [name for name, mine in changes.items() if _full(mine)["harm"] < SMALLEST_HARM]
    told = [f"harms {listed(harmed, 10)}"] * bool(harmed) + [f"does not harm {listed(spared, 10)}"] * bool(spared)
    return f"A window of {ratio} L {', and '.join(told) or 'was not measured'}."


def _full(mine: list[dict]) -> dict:
    return next(row for row in mine if row["change"] == FULL)


def _mechanisms(changes: Changes) -> list[str]:
    """What breaks the encodings, the same for each group of them, and what usually mends that."""
    harmed = {name: mine for name, mine in changes.items() if _full(mine)["harm"] >= SMALLEST_HARM}
    groups: dict[str, list[str]] = {}
    for name, mine in harmed.items():
        groups.setdefault(what_breaks(mine), []).append(name)
    lines = [f"{listed(names, 10)} {what_breaks(harmed[names[0]], many=len(names) > 1)}" for names in groups.values()]
    mended = dict.fromkeys(line for mine in harmed.values() for line in remedies(mine))
    return lines + [f"what usually mends that, {line}" for line in mended]


def _mended(rows: pd.DataFrame, changes: Changes) -> list[str]:
    """Which of the encodings that long windows harm are no longer harmed under each baseline, as measured."""
    points = {variant: _last_gains(rows, variant) for variant in dict.fromkeys(rows["variant"])}
    whole = points.pop(FULL)
    harmed = [name for name in changes if whole.get(name, 0.0) <= -HARM_BPB]
    lines = []
    for variant, gains in points.items():
        measured = [name for name in harmed if name in gains and variant != "crop"]
        mended = [name for name in measured if gains[name] > -HARM_BPB]
        left = [name for name in measured if gains[name] <= -HARM_BPB]
        told = [f"mends {listed(mended, 10)}"] * bool(mended) + [f"does not mend {listed(left, 10)}"] * bool(left)
        if told:
            lines.append(f"the baseline {variant}, measured at the longest length, {', and '.join(told)}")
    return lines


def _last_gains(rows: pd.DataFrame, variant: str) -> dict[str, float]:
    """The context gain of every encoding at its longest length, by name, in bits per byte."""
    points = pool(rows, headline(rows).gain or "", variant).dropna(subset="gain")
    return dict(zip(points["encoding"], points["gain"], strict=True))


def _faults(changes: Changes) -> list[str]:
    faults = [(name, row) for name, mine in changes.items() for row in mine if row["status"] == "fault"]
    return [f"{name} has a fault: {row['reason']}" for name, row in faults]


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
    return f"More than L = {length} tokens are needed by {listed(beyond, 10)} to come within 0.01 bits of their best."
