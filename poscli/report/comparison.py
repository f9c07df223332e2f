"""Differences between encodings with intervals over seeds and documents, in words: better, worse, within noise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from poscli import specs
from poscli.drawing.text import listed
from poscli.report.accuracy import units_of
from poscli.report.over_seeds import Units
from poscli.report.per_byte import spec_of
from poscli.report.pooling import LN2, headline, sound
from poscli.runs.schema import FULL
from poscli.statistics.intervals import holm, permutation_test, smallest_p, two_level_interval
from poscli.system.errors import UsageError, near

Array = NDArray[np.float64]
SIGNIFICANT = 0.05
BETTER, WORSE, WITHIN_NOISE, NOT_COMPARED = "better", "worse", "within noise", "not compared"
TOO_FEW = "too few documents"
COMPARED = [
    "encoding", "baseline", "length", "ratio", "seeds", "documents", "difference", "low", "high", "p", "p_holm", "word",
]  # fmt: skip


def compared_with(rows: pd.DataFrame, units: Units, baseline: str) -> pd.DataFrame:
    """Every other encoding compared with one, at every length, under the protocol that reports quote.

    Columns as in COMPARED. `difference` is the loss of the encoding minus that of the baseline in bits per byte, or its
    accuracy minus that of the baseline for units of answers, with the ends of its 95 % interval; p-values are of paired
    permutation tests, and `p_holm` corrects them for the number of comparisons.
    """
    protocol = headline(rows).perplexity
    own = rows[(rows["protocol"] == protocol) & (rows["variant"] == FULL)]
    lines = [
        {"encoding": name, "baseline": baseline, "length": length, "ratio": part["ratio"].iloc[0]}
        | difference(part[part["encoding"] == name], part[part["encoding"] == baseline], units)
        for length, part in own.groupby("length")
        for name in sorted(set(rows["encoding"]) - {baseline})
    ]
    return judged(pd.DataFrame(lines), of_answers=units.of_answers)


def on_corpus(rows: pd.DataFrame, wanted: str) -> pd.DataFrame:
    """The rows on the corpus whose name is or begins with this text; UsageError if there is no such one, or several.

    The text may also begin a fingerprint, because a corpus under several tokenizers has one name.
    """
    known = sorted(set(rows["corpus"]))
    found = [wanted] if wanted in known else [name for name in known if name.startswith(wanted)]
    if not found and len(prints := [mark for mark in sorted(set(rows["fingerprint"])) if mark.startswith(wanted)]) == 1:
        return rows[rows["fingerprint"] == prints[0]]
    if not found:
        raise UsageError(f"--corpus {wanted}: no run was evaluated on it: {near(wanted, known)}")
    if len(found) > 1:
        raise UsageError(f"--corpus {wanted} begins the names of {' and '.join(found)}; give more of one")
    return rows[rows["corpus"] == found[0]]


def as_written(spec: str, names: Collection[str]) -> str:
    """The one of these names that a spec means in another spelling, such as rope(base=10000); else the spec itself."""
    try:
        canonical = spec if spec in names else str(specs.parse(spec))
    except UsageError:
        return spec
    return canonical if canonical in names else spec


def compare_named(
    rows: pd.DataFrame,
    details: Mapping[str, pd.DataFrame],
    first: str,
    second: str,
    *,
    protocol: str = "",
    corpus: str = "",
) -> tuple[pd.DataFrame, bool]:
    """What `pick` finds under two names, compared as in `compare_runs`; and whether accuracies were compared.

    They are for tasks with right answers; of others, losses are compared. Without a protocol it is the one that
    reports quote. `corpus` is as in `on_corpus`.
    """
    rows = on_corpus(rows, corpus) if corpus else rows
    ours, theirs = comparable(pick(rows, first), pick(rows, second))
    protocol = protocol or headline(ours).perplexity
    units = units_of(ours, details, protocol)
    return compare_runs(ours, theirs, units, protocol), units.of_answers


def pick(rows: pd.DataFrame, wanted: str) -> pd.DataFrame:
    """The rows of the run whose id is or begins with this text, else of all runs of this encoding; else UsageError."""
    runs = sorted(set(rows["run_id"]))
    found = [wanted] if wanted in runs else [run for run in runs if run.startswith(wanted)]
    encodings = sorted(set(rows["encoding"]))
    wanted = as_written(wanted, encodings)
    if wanted in encodings:
        return rows[rows["encoding"] == wanted]
    if len(found) == 1:
        return rows[rows["run_id"] == found[0]]
    if found:
        raise UsageError(f"{wanted!r} begins {len(found)} ids: {', '.join(found[:3])}, ...; give more of it")
    raise UsageError(f"no evaluated run is called {wanted!r}, nor its encoding: {near(wanted, [*runs, *encodings])}")


def compare_runs(ours: pd.DataFrame, theirs: pd.DataFrame, units: Units, protocol: str) -> pd.DataFrame:
    """One selection of runs compared with another at every length that both have; columns as in COMPARED.

    UsageError if they were evaluated on different text, or not under the protocol, or share no length or no seed.
    """
    ours, theirs = comparable(ours, theirs)
    known = sorted(set(ours["protocol"]) & set(theirs["protocol"]))
    if protocol not in known:
        raise UsageError(f"--protocol {protocol}: these runs have {', '.join(known) or 'none in common'}")
    own, other = (table[(table["protocol"] == protocol) & (table["variant"] == FULL)] for table in (ours, theirs))
    for table in (own, other):
        refuse_several_per_seed(table)
    lengths = sorted(set(own["length"]) & set(other["length"]))
    if not lengths:
        raise UsageError("these runs share no length; evaluate them with equal --max-len and --lengths")
    lines = []
    for length in lengths:
        one, two = own[own["length"] == length], other[other["length"] == length]
        head = {"encoding": _called(one), "baseline": _called(two), "length": length, "ratio": one["ratio"].iloc[0]}
        lines.append(head | difference(one, two, units))
    if not any(line["seeds"] for line in lines):
        raise UsageError("these runs have no seed with a loss and no text in common; train both with the same --seed")
    return judged(pd.DataFrame(lines), of_answers=units.of_answers)


def refuse_several_per_seed(rows: pd.DataFrame) -> None:
    """UsageError if an encoding has several runs of one seed: they differ in more, and none of them is the one."""
    runs = rows.drop_duplicates("run_id")
    for seed, part in runs.groupby("seed"):
        if len(part) > 1:
            raise UsageError(
                f"{part['encoding'].iloc[0]} has {len(part)} runs of seed {seed}, which differ in more than the seed: "
                f"{listed(sorted(part['run_id']))}; name single runs by their ids"
            )


def _called(rows: pd.DataFrame) -> str:
    """How a selection of runs is called: by its encoding, or, if it is a single run, by its id."""
    runs = list(dict.fromkeys(rows["run_id"]))
    return str(rows["encoding"].iloc[0]) if len(runs) > 1 else str(runs[0])


def comparable(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows on the text, and of the training length, that both selections have; UsageError if that is not one.

    Two selections of one training length each may differ in it.
    """
    if both := sorted(set(ours["run_id"]) & set(theirs["run_id"])):
        raise UsageError(f"both names mean {', '.join(both)}, and no run is compared with itself; give other ones")
    common = set(ours["fingerprint"]) & set(theirs["fingerprint"])
    if not common:
        one, two = (" and ".join(_texts(table)) for table in (ours, theirs))
        raise UsageError(
            f"the runs were evaluated on {one}, and on {two}: losses on different text, or of different tokens of it, "
            "cannot be compared"
        )
    if len(common) > 1:
        shared = _texts(ours[ours["fingerprint"].isin(common)])
        raise UsageError(
            f"both were evaluated on {' and '.join(shared)}; choose one with --corpus, by its name or by what stands "
            "in brackets"
        )
    ours, theirs = (table[table["fingerprint"].isin(common)] for table in (ours, theirs))
    if max(ours["train_length"].nunique(), theirs["train_length"].nunique()) == 1:
        return ours, theirs
    lengths = sorted(set(ours["train_length"]) & set(theirs["train_length"]))
    if len(lengths) != 1:
        raise UsageError("these encodings were trained at several lengths; name single runs by their ids")
    one, two = (table[table["train_length"] == lengths[0]] for table in (ours, theirs))
    return one, two


def _texts(rows: pd.DataFrame) -> list[str]:
    """The corpora of these rows, each with the beginning of its fingerprint, and its tokenizer if there are several."""
    names = rows["tokenizer"].map(spec_of) if "tokenizer" in rows else pd.Series("", rows.index)
    several = names.nunique() > 1
    found = sorted(set(zip(rows["corpus"], names, rows["fingerprint"], strict=True)))
    return [f"{corpus}{f' in {name}' if several else ''} ({mark[:8]})" for corpus, name, mark in found]


def difference(ours: pd.DataFrame, theirs: pd.DataFrame, units: Units) -> dict[str, Any]:
    """The loss of one encoding minus that of another in bits per byte: interval and p-value, over paired runs.

    `ours` and `theirs` are rows of eval.csv of one protocol and length. Runs of equal seeds are pairs; a single run of
    each is a pair, whatever the seeds. Without pairs or common text, all numbers are NaN.
    """
    ours, theirs = _paired(ours[sound(ours)], theirs[sound(theirs)])
    nothing = {"seeds": 0, "documents": 0, "difference": np.nan, "low": np.nan, "high": np.nan, "p": np.nan}
    if ours.empty or set(ours["fingerprint"]) != set(theirs["fingerprint"]):  # then units are of different text
        return nothing
    at = (str(ours["protocol"].iloc[0]), int(ours["length"].iloc[0]))
    mine, other = (units.losses(list(table["run_id"]), *at) for table in (ours, theirs))
    common = np.intersect1d(mine.units, other.units) if mine and other else np.array([])
    if mine is None or other is None or not len(common):
        return nothing
    mine, other = mine.on(common), other.on(common)
    totals, counts = mine.minus(other) / LN2, mine.bytes
    interval, least = two_level_interval(totals, counts), np.array(units.least_reach(totals))
    low, high = units.bounded(np.array(interval.estimate), np.array(interval.low), np.array(interval.high), least)
    return {
        "seeds": len(totals),
        "documents": len(common),
        "difference": interval.estimate,
        "low": float(low),
        "high": float(high),
        "p": permutation_test(totals, counts),
    }


def judged(table: pd.DataFrame, *, of_answers: bool = False) -> pd.DataFrame:
    """The table with `p_holm`, corrected for the number of its comparisons, and the `word` for each difference.

    Differences of the shares of wrong answers become those of accuracies.
    """
    table = table.assign(p_holm=holm(table["p"].to_numpy()))
    least = [smallest_p(seeds, documents) for seeds, documents in table[["seeds", "documents"]].itertuples(index=False)]
    difference, p, p_holm = (table[name].to_numpy(float) for name in ("difference", "p", "p_holm"))
    table = table.assign(word=words(difference, p, p_holm, np.array(least)))
    if of_answers:
        table = table.assign(difference=-table["difference"], low=-table["high"], high=-table["low"])
    return table[COMPARED]


def words(difference: Array, p: Array, p_holm: Array, least: Array) -> NDArray[np.str_]:
    """What differences of losses are called, from their p-values before and after the correction.

    `least` are the smallest p-values that they could have had. If none could be significant, or if even the smallest is
    not after the correction, nothing was tested: that is `TOO_FEW`, and not `WITHIN_NOISE`.
    """
    untested = (least > SIGNIFICANT) | (p <= least * (1 + 1e-9))
    cases = [np.isnan(p_holm), p_holm <= SIGNIFICANT, untested]
    return np.select(cases, [NOT_COMPARED, np.where(difference < 0, BETTER, WORSE), TOO_FEW], WITHIN_NOISE)


def _paired(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs of both that have a partner, in the same order."""
    if len(ours) == len(theirs) == 1:
        return ours, theirs
    seeds = sorted(set(ours["seed"]) & set(theirs["seed"]))
    one, other = (table.drop_duplicates("seed").set_index("seed", drop=False).loc[seeds] for table in (ours, theirs))
    return one, other
