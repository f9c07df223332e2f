"""Why encodings break on long windows, and what they use of these, from the tables of `poscli extrapolate --why`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from poscli.drawing.text import listed, signed
from poscli.report.data import Analysis
from poscli.report.pooling import Point, ratio_name
from poscli.report.reach import last_shown
from poscli.report.table import Column, gain_text, words
from poscli.report.verdicts import HARM_BPB
from poscli.runs.schema import FULL
from poscli.statistics import UNKNOWN, Triple
from poscli.statistics.comparison import LN2
from poscli.statistics.intervals import interval_of_seeds
from poscli.why.attribution import CAUSES, FIRST, SMALLEST_HARM, is_harmed, open_changes, remedies, what_breaks
from poscli.why.attribution import FULL as WHOLE
from poscli.why.context_use import FALL, GROWTH, KEY, OTHER, TOLERANCE

# What the changes of an attribution are.
MEANT = (
    "position (offset): those L tokens at the positions that they have in the long window",
    "distance (gap): those L tokens with only the second half at those positions: the first half is far away, "
    "and neighbours are not",
    "number of keys (crowd): all tokens, with no distance seen as more than in training",
    f"loss of the first tokens (sinkless): those L tokens, the first {FIRST} hidden from the second half",
    "open: undecided, since the change was not made, does more than twice the harm, or contains another one (gap: "
    "offset; crowd: sinkless) that explains the harm already",
    "void: nothing can change, or the change has no meaning, by the encoding's definition; where nothing can "
    "change, the loss is computed all the same and checked",
)


def broken_by(table: pd.DataFrame, gains: Mapping[str, Sequence[Point]], summary: pd.DataFrame) -> Analysis | None:
    """What the long window does, and one change of it at a time; None if nothing was attributed.

    `gains` are the points of the evaluation by variant, which also measured what a baseline mends.
    """
    if table.empty:
        return None
    means = {str(name): _over_seeds(part) for name, part in table.groupby("encoding")}
    changes = {name: means[name] for name in summary["encoding"] if name in means}
    full = {name: rows[WHOLE] for name, rows in changes.items()}
    ratio = ratio_name(float((table["length"] / table["train_length"]).max()))

    def cell(rows: dict[str, dict], change: str) -> str:
        if change not in rows:
            return "-"
        row = rows[change]
        if row["status"] != "ok":
            return row["status"]
        harm = signed(row["harm"] / LN2)
        if change == WHOLE or math.isnan(row["share"]):
            return harm
        share, low, high = (100 * row[name] for name in ("share", "share_low", "share_high"))
        interval = f" [{low:.0f}, {high:.0f}]" if low == low else ""
        is_open = ", open" if change in open_changes(list(rows.values())) else ""
        return f"{harm} ({share:.0f} %{interval}{is_open})"

    titles = {WHOLE: f"harm at {ratio}"} | {change: f"{CAUSES[change]} ({change})" for change in changes_shown(table)}
    columns = [words("encoding", changes)]
    columns += [Column(title, tuple(cell(rows, key) for rows in changes.values())) for key, title in titles.items()]
    harmed = [name for name in changes if is_harmed(full[name])]
    spared = [name for name in changes if full[name]["harm"] < SMALLEST_HARM]
    unsure = [name for name in changes if name not in harmed and full[name]["harm"] >= SMALLEST_HARM]
    told = {"harms": harmed, "does not harm": spared, "is not shown to harm": unsure}
    effects = [f"{effect} {listed(names, 10)}" for effect, names in told.items() if names]
    # What breaks them, the same for each group of encodings, and what usually mends that.
    groups: dict[str, list[str]] = {}
    for name in harmed:
        groups.setdefault(what_breaks(list(changes[name].values())), []).append(name)
    points = [
        f"{listed(names, 10)} {what_breaks(list(changes[names[0]].values()), many=len(names) > 1)}"
        for names in groups.values()
    ]
    mended = dict.fromkeys(line for name in harmed for line in remedies(list(changes[name].values())))
    points += [f"what usually helps {line}" for line in mended]
    points += _mended(gains, list(changes))
    for name, rows in changes.items():
        points += [f"{name} has a fault: {row['reason']}" for row in rows.values() if row["status"] == "fault"]
    return Analysis(
        "Why do they break?",
        f"A window of {ratio} L {', and '.join(effects) or 'was not measured'}.",
        tuple(columns),
        (
            f"harm at {ratio}: bits per token above the loss with the last L tokens at their trained positions; in "
            "brackets the share of it that each change alone explains, with its 95 % interval over documents and seeds",
            *MEANT,
        ),
        tuple(points),
    )


def changes_shown(table: pd.DataFrame) -> list[str]:
    """The changes that can matter for an encoding of the table, in the order of CAUSES; others are void for all."""
    return [change for change in CAUSES if (table.loc[table["change"] == change, "status"] != "void").any()]


def _over_seeds(part: pd.DataFrame) -> dict[str, dict]:
    """The rows of one encoding by change, averaged over its seeds; texts are those of the worst seed."""
    worst = part.sort_values("status", key=lambda status: status != "fault", kind="stable").drop_duplicates("change")
    means = part.groupby("change")[["nll", "harm"]].mean()
    whole = part[part["change"] == WHOLE].set_index("run_id")["harm"]
    broken = whole.mean() if whole.mean() >= SMALLEST_HARM else math.nan
    rows = {}
    for row in worst.to_dict("records"):
        nll, harm = (float(value) for value in means.loc[row["change"]])
        share = harm / broken
        seeds = part[part["change"] == row["change"]]
        harms, shares = (seeds[[n, f"{n}_low", f"{n}_high"]].to_numpy(float).T for n in ("harm", "share"))
        # The share of the mean harm is the mean of the seeds' shares, each weighted by the seed's whole harm.
        weights = seeds["run_id"].map(whole).to_numpy(float) / broken
        middle = share + harms[0] / broken - share * weights  # of which the spread is that of a ratio of means
        of_seeds = (middle, *(middle + weights * (end - shares[0]) for end in shares[1:]))
        rows[row["change"]] = row | {"nll": nll, "harm": harm, "share": share}
        for name, numbers in (("harm", interval_of_seeds(*harms)), ("share", interval_of_seeds(*of_seeds))):
            rows[row["change"]] |= {f"{name}_low": numbers[1], f"{name}_high": numbers[2]}
    return rows


def _mended(gains: Mapping[str, Sequence[Point]], names: Sequence[str]) -> list[str]:
    """Which of the encodings that long windows harm are no longer harmed under each baseline, as measured."""
    ends = {
        variant: {point.encoding: point.gain[0] for point in points if not math.isnan(point.gain[0])}
        for variant, points in gains.items()
    }
    harmed = [name for name in names if ends[FULL].get(name, 0.0) <= -HARM_BPB]
    lines = []
    for variant, end in ends.items():
        measured = [name for name in harmed if name in end and variant not in (FULL, "crop")]
        mended = [name for name in measured if end[name] > -HARM_BPB]
        left = [name for name in measured if end[name] <= -HARM_BPB]
        effects = [f"mends {listed(mended, 10)}"] * bool(mended) + [f"does not mend {listed(left, 10)}"] * bool(left)
        if effects:
            lines.append(f"the baseline {variant}, measured at the longest length, {', and '.join(effects)}")
    return lines


def used_window(details: Mapping[str, pd.DataFrame], summary: pd.DataFrame) -> Analysis | None:
    """How much of a window a model uses: saturation, gradients, replaced text and spread of attention."""
    saturation, receptive, dilution = (details[f"why/{name}"] for name in ("saturation", "receptive", "dilution"))
    length, longest = int(saturation["train_length"].iloc[0]), int(saturation["window"].max())
    names = [name for name in summary["encoding"] if name in set(saturation["encoding"])]
    saturates = {name: saturates_at(saturation[saturation["encoding"] == name]) for name in names}

    def gradient(name: str) -> str:
        chosen = receptive[(receptive["encoding"] == name) & (receptive["method"] == "gradient")]
        share = chosen["beyond"].mean()
        return "-" if math.isnan(share) else f"{100 * share:.0f} %"

    def replaced(name: str) -> str:
        chosen = receptive[(receptive["encoding"] == name) & (receptive["method"] == "replace")]
        chosen = chosen[chosen["from"] == length]
        return signed(chosen["value"].mean() / LN2) if len(chosen) else "-"

    def attention(column: str, window: int) -> tuple[str, ...]:
        at = dilution[dilution["window"] == window]
        means = (at.loc[at["encoding"] == name, column].mean() for name in names)
        return tuple("-" if mean != mean else f"{mean:.2f}" for mean in means)

    columns = [
        words("encoding", names),
        Column("saturates at", tuple(_window(*saturates[name]) for name in names)),
        Column(f"gradient beyond L = {length}", tuple(map(gradient, names))),
        Column("text beyond L replaced", tuple(map(replaced, names))),
        Column("entropy at L", attention("entropy", length)),
        Column(f"entropy at {longest}", attention("entropy", longest)),
        Column(f"mass beyond L at {longest}", attention("far_mass", longest)),
    ]
    meant = {
        "saturates at": "the shortest window, in tokens, whose loss is within 0.01 bits per token of the best; in "
        "brackets its 95 % interval: the shortest window that may be, and the one from which it is sure",
        "gradient beyond L": "share of the gradient of a prediction that lies on inputs L or more tokens back",
        "text beyond L replaced": "bits per token lost if the text L or more tokens back is that of another document",
        "entropy": "that of the attention weights over the logarithm of the keys seen, mean over heads; 1 is even",
        "mass beyond L": "share of the attention weights on keys L or more tokens back, mean over layers and heads",
    }
    columns = [column for column in columns if set(column.cells) != {"-"}]  # what was not looked at in a checkpoint
    shown = [title for title in meant if any(column.name.startswith(title) for column in columns)]
    least = {name: ends[0] if ends[1] != ends[1] else ends[1] for name, ends in saturates.items()}
    if beyond := [name for name in names if least[name] > length]:
        answer = (
            f"More than L = {length} tokens are needed by {listed(beyond, 10)} to come within 0.01 bits of their best."
        )
    else:
        answer = (
            f"No encoding surely needs more than L = {length} tokens to come within 0.01 bits per token of its best."
        )
    return Analysis(
        "How much of a long window is used?",
        answer,
        tuple(columns),
        tuple(f"{title}: {meant[title]}" for title in shown),
    )


def saturates_at(rows: pd.DataFrame) -> Triple:
    """The shortest window whose loss, over the seeds of an encoding, is within TOLERANCE of the best; its interval.

    `rows` are those of saturation.csv. The interval begins at the shortest window that is not surely farther from the
    best. It ends at the shortest that is surely as near, as are all from there to the best, asked from the best down
    (tests in fixed order, as in reach.py). NaN where no loss is known, or no interval over documents.
    """
    known = rows[np.isfinite(rows["nll"])].groupby("window")
    nll = known["nll"].mean()
    if nll.empty:
        return UNKNOWN
    best = float(nll.idxmin())
    estimate = float(nll.index[nll <= nll.min() + TOLERANCE].min())
    ends = {}
    for window, part in known:
        excess = (part[column].to_numpy(float) for column in ("excess", "excess_low", "excess_high"))
        ends[float(window)] = interval_of_seeds(*excess)[1:]
    if any(math.isnan(low) for low, _ in ends.values()):
        return estimate, math.nan, math.nan
    low = min(window for window, (low, _) in ends.items() if low <= TOLERANCE or window == estimate)
    shorter = sorted((window for window in ends if window < best), reverse=True)
    return estimate, low, last_shown(best, ((window, ends[window][1] <= TOLERANCE) for window in shorter))


def _window(window: float, low: float, high: float) -> str:
    """A window in tokens, with its interval."""
    return "-" if window != window else f"{window:.0f}" + (f" [{low:.0f}, {high:.0f}]" if low == low else "")


def on_key_tokens(table: pd.DataFrame, summary: pd.DataFrame) -> Analysis | None:
    """What the longest window wins on tokens for which another model, the judge, needs long context, and on others.

    None if no run was judged.
    """
    if table.empty:
        return None
    means = table.groupby(["encoding", "kind"])[["tokens", "nll", "nll_crop", "gain", "gain_low", "gain_high"]].mean()
    names = [name for name in summary["encoding"] if (name, KEY) in means.index]
    key, other = (means.reindex([(name, kind) for name in names]).droplevel("kind") for kind in (KEY, OTHER))
    gains = (key[["gain", "gain_low", "gain_high"]] / LN2).itertuples(index=False)

    def bits(values: pd.Series) -> tuple[str, ...]:
        return tuple(f"{nats / LN2:.2f}" if nats == nats else "-" for nats in values)

    columns = (
        words("encoding", names),
        Column("key tokens", tuple(f"{count:.0f}" for count in key["tokens"])),
        Column("bits, cut to L", bits(key["nll_crop"])),
        Column("bits, longest window", bits(key["nll"])),
        Column("gain [95 %]", tuple(gain_text(*gain) for gain in gains)),
        Column("gain on others", tuple(signed(value / LN2) for value in other["gain"])),
    )
    measured = key.dropna(subset=["gain"])
    if measured.empty:
        answer = "The judge found too few key tokens to say."
    else:
        sure = measured[measured["gain_low"] > 0].sort_values("gain", ascending=False)
        left = [str(name) for name in measured.index if name not in sure.index]
        parts = [f"longer context helps on them with {listed(list(sure.index), 8)}"] * bool(len(sure))
        parts += [f"nothing is shown to be won by {listed(left, 8)}"] * bool(left)
        text = "; ".join(parts)
        answer = f"{text[0].upper()}{text[1:]}."
    return Analysis(
        "Does it predict the tokens that need long context?",
        answer,
        columns,
        (
            f"key tokens: those on which the judge, trained on windows of at least {GROWTH} L, wins more than {FALL:g} "
            f"nats by reading {GROWTH} L instead of L; mean over seeds",
            "bits: loss per key token, mean over seeds",
            "gain: bits per token won by the longest window; the interval is over documents, mean over seeds",
        ),
    )
