"""The right answers of a synthetic task for the page: by length, and by where in the window lay what was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from poscli.report.accuracy import by_length, by_place, is_depth, question, wrong_answers
from poscli.report.comparison import Pairs, losses_of
from poscli.report.page.measured import PerSeed, packed, short, shorts
from poscli.report.pooling import ACCURACY, headline, pool
from poscli.report.sections import Group
from poscli.report.verdicts import SOLVED_SHARE


def accuracies(group: Group, per_seed: PerSeed, lengths: Sequence[int]) -> dict[str, Any] | None:
    """What the page shows of right answers; None for tasks without them.

    `points` are [accuracy, low, high] by encoding and length, None without a number; `pairs` are the differences of
    accuracy between encodings, as `data.section_data` has them of losses, None without the table of answers.
    """
    if ACCURACY not in group.rows or group.rows[ACCURACY].isna().all():
        return None
    answers, names = group.details.get("answers", pd.DataFrame()), per_seed.names
    found: dict[str, Any] = {"solved": SOLVED_SHARE, "chance": None, "pairs": None, "place": None}
    protocol = headline(group.rows).perplexity
    pooled = pool(group.rows, protocol).assign(accuracy=lambda own: own[ACCURACY], low=math.nan, high=math.nan)
    if answers.empty:
        points = pooled
    else:
        points = pd.concat([by_length(answers), pooled[~pooled["encoding"].isin(answers["encoding"])]])
        pairs = Pairs.of(losses_of(group.rows, wrong_answers(answers, protocol), protocol), names, lengths)
        place = _by_place(answers, per_seed)
        found |= {"chance": short(answers["chance"].iloc[0]), "pairs": packed(pairs), "place": place}
    return found | {"points": _by_name(points, names, lengths)}


def _by_name(points: pd.DataFrame, names: Sequence[str], lengths: Sequence[int]) -> list[list[Any]]:
    known = points.dropna(subset=["accuracy"]).set_index(["encoding", "length"])[["accuracy", "low", "high"]]
    numbers = {key: shorts(row) for key, row in zip(known.index, known.to_numpy(), strict=True)}
    return [[numbers.get((name, length)) for length in lengths] for name in names]


def _by_place(answers: pd.DataFrame, per_seed: PerSeed) -> dict[str, Any] | None:
    """Accuracy in the longest window by depth or gap: bins [from, to] with values by seed; None for a single bin."""
    bins = by_place(answers)[["from", "to"]].drop_duplicates().sort_values("from")
    if len(bins) < 2:
        return None
    last = answers[answers["length"] == answers["length"].max()]
    totals = last.groupby(["encoding", "seed", "from", "to"], as_index=False)[["right", "tokens"]].sum()
    totals["accuracy"] = totals["right"] / np.maximum(totals["tokens"], 1)
    return {
        "title": f"Does it matter {question(answers)}?",
        "label": "depth, from the start of the window" if is_depth(answers) else "tokens back to it, fewer than",
        "depth": is_depth(answers),
        "length": int(answers["length"].max()),
        "bins": [
            {"from": int(first), "to": int(to), "values": per_seed.of(totals[totals["from"] == first], "accuracy")}
            for first, to in bins.itertuples(index=False)
        ],
    }
