"""Whether the tables of one evaluation agree: eval.csv holds sums over what units.csv and answers.csv say one by one.

A checksum shows that a file is what was written last. It cannot show that a table was edited and sealed anew, or put
together from two evaluations; these sums do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from poscli.runs.schema import CROP, FULL, perplexity

EPSILON = float(np.finfo(np.float64).eps)
ACCURACY = "accuracy"  # the column of tasks that have right answers
CASE = ["length", "protocol", "variant"]  # what tells the rows of eval.csv apart


def contradiction(rows: pd.DataFrame, positions: pd.DataFrame, details: Mapping[str, pd.DataFrame]) -> tuple[str, str]:
    """The first file that contradicts eval.csv, which may be itself, and how; two empty texts if all agree.

    `rows` are those of eval.csv, `positions` those of position.csv, `details` those of units.csv and answers.csv by
    name. A table of units without rows is not looked at, because versions without that table wrote none.
    """
    others = {"position.csv": positions} | {f"{name}.csv": table for name, table in details.items()}
    strange = [name for name, table in others.items() if not set(table["run_id"]) <= set(rows["run_id"])]
    found = (
        *((name, "it is of another run than eval.csv") for name in strange),
        *(("eval.csv", fault) for fault in _within(rows)),
        *(("position.csv", fault) for fault in _of_positions(rows, positions)),
        *(("units.csv", fault) for fault in _of_units(rows, details["units"])),
        *(("answers.csv", fault) for fault in _of_answers(rows, details["answers"])),
    )
    return found[0] if found else ("", "")


def _within(rows: pd.DataFrame) -> Iterator[str]:
    """What a row of eval.csv says twice, and differently."""
    if rows.duplicated(CASE).any():
        yield "it has a row twice"
    scored = rows[rows["status"] == "ok"]
    crops = scored[scored["variant"] == CROP].set_index(["length", "protocol"])["nll"].to_dict()
    for row in scored.to_dict("records"):
        nll, tokens = row["nll"], row["tokens"]
        expected = {
            "ratio": row["length"] / row["train_length"],
            "bpb": nll / math.log(2) * tokens / max(1, row["bytes"]),
            "ppl": perplexity(nll),
        }
        if (crop := crops.get((row["length"], row["protocol"]))) is not None:
            expected["gain"] = crop - nll
        for name, value in expected.items():
            scale = max(abs(nll), 1.0) * max(abs(value), 1.0)
            if not _equal(row[name], value, tokens, scale):
                yield f"{_case(row)} has {name} {row[name]:g}, where its other columns make {value:g}"


def _of_positions(rows: pd.DataFrame, positions: pd.DataFrame) -> Iterator[str]:
    """Lengths whose bins of positions do not fill the windows, each with the same number of them."""
    measured = set(rows.loc[(rows["status"] == "ok") & (rows["variant"] == FULL), "length"])
    if set(positions["length"]) != measured:
        yield "it has other lengths than eval.csv"
    for length, part in positions.groupby("length"):
        starts, ends = part["from"].to_numpy(), part["to"].to_numpy()
        per_position = set(part["tokens"] / (ends - starts + 1))
        filled = starts[0] == 1 and ends[-1] == length and (starts[1:] == ends[:-1] + 1).all()
        if not filled or len(per_position) > 1 or part["tail_slope"].nunique() > 1:
            yield f"the bins of length {length} do not fill its windows"


def _of_units(rows: pd.DataFrame, units: pd.DataFrame) -> Iterator[str]:
    """Rows of eval.csv that are not the mean over their units."""
    if units.empty:
        return
    sums = units.assign(total=units["nll"] * units["tokens"]).groupby(CASE)[["tokens", "bytes", "total"]].sum()
    scored = rows[rows["status"] == "ok"].set_index(CASE)
    if set(sums.index) != set(scored.index):
        yield "it has other lengths, protocols or variants than eval.csv"
        return
    for case, row in scored.iterrows():
        own = sums.loc[case]
        for name in ("tokens", "bytes"):
            if own[name] != row[name]:
                yield f"its {name} of {_case(row, case)} add up to {own[name]:.0f}, and eval.csv has {row[name]}"
        mean = own["total"] / own["tokens"]
        if not _equal(mean, row["nll"], row["tokens"], abs(row["nll"])):
            yield f"its mean nll of {_case(row, case)} is {mean:g}, and eval.csv has {row['nll']:g}"


def _of_answers(rows: pd.DataFrame, answers: pd.DataFrame) -> Iterator[str]:
    """Lengths whose answers are not as many, or not as often right, as eval.csv says."""
    if ACCURACY not in rows:
        return
    measured = rows[(rows["status"] == "ok") & (rows["variant"] == FULL) & rows[ACCURACY].notna()]
    for length, part in answers.groupby("length"):
        tokens, right = int(part["tokens"].sum()), int(part["right"].sum())
        told = measured[measured["length"] == length]
        if not ((told["tokens"] == tokens) & ((told[ACCURACY] * tokens - right).abs() < 0.5)).any():
            yield f"{right} of its {tokens} answers at length {length} are right, and eval.csv has another share"


def _equal(one: float, other: float, terms: int, scale: float) -> bool:
    """Whether two numbers differ by rounding only: the tables hold all digits, and each term is rounded once."""
    if math.isnan(other):
        return math.isnan(one)
    return one == other or abs(one - other) <= 4 * EPSILON * max(1, terms) * max(scale, EPSILON)


def _case(row: Mapping[str, object], case: tuple[object, ...] | None = None) -> str:
    length, protocol, variant = case or tuple(row[name] for name in CASE)
    return f"length {length}, {protocol}, {variant}"
