"""All numbers of the page as one structure of lists, texts and numbers, which the page holds as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from poscli.drawing.style import styles_for
from poscli.evaluation.protocol import PROTOCOLS
from poscli.report.comparison import Pairs, gains_of, losses_of
from poscli.report.figures import SKIPPED_POSITIONS
from poscli.report.origin import bits_per, facts, unit_of
from poscli.report.page.accuracies import accuracies
from poscli.report.page.described import TITLES, Described, describe, in_order, looks, spec_of
from poscli.report.page.measured import (
    PerSeed,
    attribution,
    by_distance,
    by_position,
    packed,
    points,
    short,
    shorts,
    task_values,
)
from poscli.report.per_byte import is_per_byte
from poscli.report.pooling import gain_protocol, headline, sound, the_train_length
from poscli.report.sections import Group, Section
from poscli.report.summary import ratio_name, standings
from poscli.report.trained import Trained, configurations, reproduce, timing_note
from poscli.report.verdicts import can_win, meanings
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS, UPPER

MILLION = 1_000_000


def section_data(section: Section, trained: Mapping[str, Trained]) -> dict[str, Any]:
    """What the page shows of one section."""
    group, summary = section.group, section.summary
    rows, names = group.rows, [str(name) for name in summary["encoding"]]
    lengths, length = [int(value) for value in sorted(set(rows["length"]))], the_train_length(rows)
    seeds = sorted(int(seed) for seed in set(rows["seed"]))
    per_seed, chosen = PerSeed(names, seeds), headline(rows)
    protocols = list(dict.fromkeys(map(str, rows["protocol"])))
    described = [describe(spec_of(name)) for name in names]
    found: dict[str, Any] = {
        "title": group.title,
        "corpus": ", ".join(sorted(set(rows["corpus"]))),
        "trainLength": length,
        "lengths": lengths,
        "ratios": [ratio_name(each / length) for each in lengths],
        "unit": unit_of(rows),
        "bits": bits_per(rows),
        "perplexities": not is_per_byte(rows),  # of several tokenizers, only losses per byte compare
        "protocols": [{"name": name, "explained": _explained(name)} for name in protocols],
        "main": protocols.index(chosen.perplexity),
        "gainFrom": (gain_from := _gain_protocols(rows, protocols)),
        "families": [{"key": key, "title": TITLES[key]} for key in in_order([each.family for each in described])],
        "encodings": _encodings(summary, described, _commands(rows, trained)),
        "points": [points(group, name, names, lengths) for name in protocols],
        "pairs": [
            _compared(group, name, names, lengths, gain=number in gain_from) for number, name in enumerate(protocols)
        ],
        "answered": accuracies(group, per_seed, lengths),
        "tasks": task_values(rows, per_seed, lengths),
        "costs": _costs(rows, per_seed, trained),
        "timing": timing_note(rows["run_id"].unique(), trained),  # why times do not compare; "" where they may
        "position": by_position(group, per_seed, int(length * SKIPPED_POSITIONS), _per_byte(rows)),
        "recall": by_distance(group, per_seed),
        "attribution": attribution(group, per_seed),
        "facts": facts_of(rows, trained),
        "notes": list(section.notes),
    }
    found |= _basis(rows, seeds, "episodes" if found["answered"] else "documents")
    found["answers"] = [section.answers[name].data() for name in protocols]
    return found


def _basis(rows: pd.DataFrame, seeds: Sequence[int], items: str) -> dict[str, Any]:
    """What intervals are made of: the seeds, what they are over beside seeds, and Student's quantiles."""
    return {
        "seeds": list(seeds),
        "items": items,
        "fewSeeds": bool(rows.groupby("encoding")["seed"].nunique().max() < FEWEST_SEEDS),
        "student": shorts(stdtrit(np.arange(1, max(2, len(seeds))), UPPER)),
    }


def _explained(protocol: str) -> str:
    """What a protocol is, without Markdown's marks."""
    return PROTOCOLS.get(protocol).explained.replace("**", "").replace("`", "") if protocol in PROTOCOLS.names() else ""


def _encodings(summary: pd.DataFrame, described: Sequence[Described], commands: Mapping[str, str]) -> list[dict]:
    """One entry per encoding, in the order of the summary: the best at the longest length first."""
    least, meaning = int(summary["parameters"].min()), meanings(bits_per(summary))
    families = {str(name): each.family for name, each in zip(summary["encoding"], described, strict=True)}
    look = looks(families, styles_for(*standings(summary)))
    found = []
    for row, each in zip(summary.to_dict("records"), described, strict=True):
        name = str(row["encoding"])
        found.append(
            {
                "name": name,
                "family": each.family,
                "acts": each.acts,
                "parts": [list(part) for part in each.parts],
                "parameters": int(row["parameters"]),
                "extra": int(row["parameters"]) - least,
                "seeds": int(row["seeds"]),
                "safe": short(row["safe"]),
                "effective": short(row["effective"]),
                "verdict": row["verdict"],
                "meaning": meaning.get(row["verdict"], "no number at the longest length"),
                "reason": row["reason"],
                "canWin": can_win(row["verdict"]),
                "color": look[name].color,
                "dash": look[name].dash,
                "strong": look[name].strong,
                "command": commands.get(name, ""),
            }
        )
    return found


def _commands(rows: pd.DataFrame, trained: Mapping[str, Trained]) -> dict[str, str]:
    """The command that makes the results of each encoding; none where its runs are not known."""
    runs = rows.groupby("encoding")["run_id"].unique()
    return {str(name): reproduce([trained[run] for run in ids if run in trained]) for name, ids in runs.items()}


def _gain_protocols(rows: pd.DataFrame, protocols: Sequence[str]) -> list[int | None]:
    """For each protocol, the number of the one whose gain is shown with it; None if there is none."""
    shown = [gain_protocol(rows, protocol) for protocol in protocols]
    return [protocols.index(name) if name else None for name in shown]


def _compared(
    group: Group, protocol: str, names: Sequence[str], lengths: Sequence[int], *, gain: bool
) -> dict[str, Any]:
    """All pairs of encodings under a protocol, by their losses, and by their gains if these are shown."""
    if group.units is None:
        return {"loss": None, "gain": None}
    found = {"loss": packed(Pairs.of(losses_of(group.rows, group.units, protocol), names, lengths)), "gain": None}
    if gain:
        found["gain"] = packed(Pairs.of(gains_of(group.rows, group.units, protocol), names, lengths))
    return found


def _costs(rows: pd.DataFrame, per_seed: PerSeed, trained: Mapping[str, Trained]) -> list[dict[str, Any]]:
    """What encodings cost, by seed, less being better: seconds of training, and of reading a million tokens."""
    own = rows[(rows["protocol"] == headline(rows).perplexity) & (rows["variant"] == FULL) & sound(rows)]
    last = own[own["length"] == rows["length"].max()]
    last = last.assign(reading=MILLION / last["tokens_per_s"].where(last["tokens_per_s"] > 0))
    runs = rows.drop_duplicates("run_id")
    runs = runs.assign(seconds=[trained[run].seconds if run in trained else math.nan for run in runs["run_id"]])
    ratio = ratio_name(rows["length"].max() / the_train_length(rows))
    costs = [
        {"key": "seconds", "title": "training time", "values": per_seed.of(runs, "seconds")},
        {"key": "reading", "title": f"reading 1M tokens at {ratio}", "values": per_seed.of(last, "reading")},
    ]
    return [cost for cost in costs if any(value is not None for line in cost["values"] for value in line)]


def facts_of(rows: pd.DataFrame, trained: Mapping[str, Trained]) -> list[list[str]]:
    """How these rows were made, as [fact, value]: first the results, then the models."""
    runs = [trained[run] for run in dict.fromkeys(rows["run_id"]) if run in trained]
    of_rows = facts(rows, {run: each.tokens for run, each in trained.items()})
    return [list(fact) for fact in (*of_rows, *configurations(runs))]


def _per_byte(rows: pd.DataFrame) -> float:
    scored = rows[rows["status"] == "ok"]
    return float(scored["tokens"].sum() / scored["bytes"].sum()) if scored["bytes"].sum() else 1.0
