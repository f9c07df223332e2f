"""The summary of a section: one row per encoding with its numbers at every length, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from poscli.drawing.text import distinct
from poscli.report.gate import undertrained
from poscli.report.origin import UNKNOWN_MACHINE, machines, trained_on
from poscli.report.pooling import (
    ACCURACY,
    headline,
    is_answered,
    pool,
    ratio_name,
    task_measures,
    untrained,
    without_perplexities,
)
from poscli.report.reach import EFFECTIVE, effective_interval, effective_ratio, proven_lengths, safety
from poscli.report.verdicts import (
    NOT_TESTED,
    NOT_TRAINED,
    UNDERTRAINED,
    can_win,
    is_failure,
    task_verdict,
    verdict,
)

if TYPE_CHECKING:  # which imports as_json by way of its tables
    from poscli.report.groups import Group

HEAD = [
    "corpus", "fingerprint", "trained_on", "tokenizer", "train_length", "max_length", "encoding", "seeds", "parameters",
]  # fmt: skip
GAIN = ("gain_bpb", "gain_bpb_low", "gain_bpb_high")  # in bits per byte; `gain` of eval.csv is in nats per token
TAIL = ["growth", *GAIN, "safe", "harmful", "safety", *EFFECTIVE, "verdict", "reason", "machine"]


def summarize(group: Group) -> pd.DataFrame:
    """One row per encoding of a group over its seeds, the best at the longest length first.

    Encodings that are undertrained, not trained, and failed are last, in this order. The others are ranked by
    perplexity, or by accuracy where the task has right answers.

    Columns: corpus, fingerprint; trained_on, the corpus of training if it is another one; tokenizer, train_length,
    max_length, encoding, seeds, parameters; per length ratio `ppl_4x`, `bpb_4x` and the measures of a task, such as
    `accuracy_4x`; `growth`, perplexity at the longest length over that at 1x; `gain_bpb`, `gain_bpb_low`,
    `gain_bpb_high`, the context gain at the longest length in bits per byte; `safe` and `harmful`, up to and from which
    multiple of L a window is proven so (both empty with too few seeds, `harmful` also where none is), and `safety`, the
    same in words with what is undecided; `effective`, the effective length as a multiple of L, with the ends of its
    interval (empty for tasks without an accuracy); `verdict`; `reason` of a failure; `machine`, on which it was
    measured, or several of them.
    `pooling.headline` chooses the protocols.
    """
    rows, train_length, answers = group.rows, group.train_length, group.by_length
    quoted = headline(rows)
    all_scores, all_gains = (pool(rows, protocol, ends=group.ends) for protocol in (quoted.perplexity, quoted.gain))
    ratios = sorted(set(rows["length"] / train_length))
    measures = ["ppl", "bpb", *(["excess"] if rows["optimum"].notna().any() else []), *task_measures(rows)]
    weak = {name: (UNDERTRAINED, reason) for name, reason in undertrained(group.behind).items()}
    weak |= {name: (NOT_TRAINED, reason) for name, reason in untrained(rows).items()}
    lines = []
    for name, runs in rows.groupby("encoding", sort=True):
        scores = all_scores[all_scores["encoding"] == name].set_index("ratio")
        gains = all_gains[all_gains["encoding"] == name]
        gain = gains[gains["ratio"] == ratios[-1]]
        word, reason = _verdict(scores, gain, ratios[-1], weak.get(str(name)))
        line = {
            "corpus": ", ".join(sorted(set(rows["corpus"]))),
            "fingerprint": ", ".join(sorted(set(rows["fingerprint"]))),
            "trained_on": trained_on(rows),
            "train_length": train_length,
            "max_length": int(rows["length"].max()),
            "encoding": name,
            "tokenizer": ", ".join(distinct(runs["tokenizer"])),
            "seeds": runs["seed"].nunique(),
            "parameters": int(runs["parameters"].max()),
        }
        for measure in measures:
            line |= {f"{measure}_{ratio_name(ratio)}": scores[measure].get(ratio, math.nan) for ratio in ratios}
        line["growth"] = scores["ppl"].get(ratios[-1], math.nan) / scores["ppl"].get(1.0, math.nan)
        line |= {column: gain[column.replace("_bpb", "")].iloc[0] if len(gain) else math.nan for column in GAIN}
        safe, harmful = (math.nan, math.nan) if word in (NOT_TRAINED, UNDERTRAINED) else proven_lengths(gains)
        in_words = safety(safe, harmful, gains["ratio"][gains["gain"].notna()])
        line |= {"safe": safe, "harmful": harmful, "safety": in_words}
        ends = effective_interval(scores, answers[answers["encoding"] == name])
        line |= dict(zip(EFFECTIVE, (effective_ratio(scores), *ends), strict=True))
        line |= {"verdict": word, "reason": reason, "machine": ", ".join(machines(runs))}
        lines.append(line)
    table = pd.DataFrame(lines)
    worst = table["verdict"].map({UNDERTRAINED: 1, NOT_TRAINED: 2}).fillna(0) + 3 * table["verdict"].map(is_failure)
    score, sign = (ACCURACY, -1) if is_answered(table) else ("ppl", 1)
    by_end = {f"_{at}": sign * table[f"{score}_{ratio_name(ratios[at])}"] for at in (-1, 0)}
    order = table.assign(_worst=worst, **by_end).sort_values(["_worst", *by_end, "encoding"], na_position="last").index
    return table.loc[order].reset_index(drop=True)


def _verdict(scores: pd.DataFrame, gain: pd.DataFrame, last: float, weak: tuple[str, str] | None) -> tuple[str, str]:
    """(verdict at the longest length, reason); a failure under either protocol comes before any number.

    `scores` is indexed by the ratio, `gain` has the point at the longest length. `weak` is the verdict with its reason
    if the model did not learn enough; then no statement about longer context is made.
    """
    ends = [scores.loc[last]] if last in scores.index else []
    ends += [gain.iloc[0]] if len(gain) else []
    for end in ends:
        if end["status"] != "ok":
            return str(end["status"]), str(end["reason"])
    if weak:
        return weak
    answered = is_answered(scores)
    if len(gain) == 0 and not (answered and ends):
        return NOT_TESTED, "no protocol measured a gain" if ends else "evaluate it up to the same length"
    if last <= 1:
        return NOT_TESTED, "evaluated at its training length only"
    if answered:
        return task_verdict(effective_ratio(scores), last), ""
    end = gain.iloc[0]
    return verdict(*end[["gain", "gain_low", "gain_high"]], seeds=end["seeds"] - end["failed"]), ""


def records(summary: pd.DataFrame) -> list[dict[str, Any]]:
    """The summary as JSON records; NaN and infinity become None."""
    return as_json(summary)


def as_json(value: Any, places: int | None = None) -> Any:
    """A value as plain JSON: NaN and infinity become None, objects dictionaries, and tables lists of records.

    With `places`, numbers are rounded to that number of decimals.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, pd.DataFrame):
        return as_json(value.to_dict("records"), places)
    if isinstance(value, BaseModel):
        return as_json(value.model_dump(), places)
    if isinstance(value, Mapping):
        return {str(key): as_json(each, places) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each, places) for each in value]
    if is_dataclass(value):
        return {each.name: as_json(getattr(value, each.name), places) for each in fields(value)}
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if places is None else round(value, places) + 0.0
    return str(value) if isinstance(value, Path) else value


def standings(summary: pd.DataFrame) -> tuple[list[str], list[str]]:
    """(encodings with a number at the longest length, best first; the other encodings)."""
    scored = summary[f"ppl_{ratios_of(summary)[-1]}"].notna() & summary["verdict"].map(can_win)
    return list(summary.loc[scored, "encoding"]), list(summary.loc[~scored, "encoding"])


def join(summaries: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Stack the summaries of several sections, `without_perplexities`; columns are in order of the length."""
    summaries = [without_perplexities(summary) for summary in summaries]
    ratios = sorted({ratio for summary in summaries for ratio in ratios_of(summary)}, key=lambda name: float(name[:-1]))
    measures = dict.fromkeys(measure for summary in summaries for measure in measures_of(summary))
    table = pd.concat(summaries, ignore_index=True)
    columns = [f"{measure}_{ratio}" for measure in measures for ratio in ratios]
    return table[[*HEAD, *(column for column in columns if column in table), *TAIL]]


def machine_names(summary: pd.DataFrame) -> list[str]:
    """The machine of every row, or none if all were measured on the same one."""
    names = list(summary["machine"].replace("", UNKNOWN_MACHINE))
    return names if len(set(names)) > 1 or any(", " in name for name in names) else []


def ratios_of(summary: pd.DataFrame) -> list[str]:
    """The multiples of the training length that a summary has columns for, shortest first."""
    return [name.removeprefix("ppl_") for name in summary.columns if name.startswith("ppl_")]


def measures_of(summary: pd.DataFrame) -> list[str]:
    """The measures that a summary has for every length: `ppl`, `bpb` and those of a task."""
    first = f"_{ratios_of(summary)[0]}"
    return [name.removesuffix(first) for name in summary.columns if name.endswith(first)]
