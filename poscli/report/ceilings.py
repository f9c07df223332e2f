"""What a longer context is worth to a model that was trained with it, and what of that the encodings of a section use.

R1 at a length l is the loss of the best model that was trained on windows of l tokens, on the very tokens that the
section's models are scored on. The headroom at l is R1 at L, with the context cut to L, minus R1 at l. An encoding
*uses* the share of the headroom that its context gain is. The *price of training short* is the loss of an encoding that
was trained at L and reads l tokens, minus that of the same encoding trained at l.

The models of R1 are runs of the same results, trained at 4 L or 16 L, say (suites/believe.toml): of the same shape, on
as many tokens, and scored on the same text with the same longest length. R0 is the loss of an n-gram with a cache of
the window (poscli/data/ngram.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from poscli.config.run import ModelConfig
from poscli.drawing.text import listed, named
from poscli.evaluation.plan import PAIRED
from poscli.report.collect import Trained
from poscli.report.comparison import losses_of
from poscli.report.data import Analysis, Ceiling
from poscli.report.groups import Group
from poscli.report.pooling import headline, is_answered, ratio_name
from poscli.report.table import Column, gain_text, words
from poscli.report.verdicts import can_win
from poscli.runs.schema import FULL
from poscli.statistics import UNKNOWN, Triple
from poscli.statistics.comparison import EncodingLosses, Key, LossTable
from poscli.statistics.intervals import Case, ratio_of_means
from poscli.system.files import read_object

LEAST_HEADROOM = 0.02  # bits per byte; a share of less would be noise over noise


def is_ceiling(longer: Group, group: Group, runs: Mapping[str, Trained]) -> bool:
    """Whether the models of `longer` show what a longer context is worth to those of `group`.

    They do if they were trained at a longer length, on the same text, in the same shape and on as many tokens: else a
    larger model or more training would pass for the worth of the context. Models that `runs` does not know are taken
    to be of the same shape.
    """
    if longer.text != group.text or longer.train_length <= group.train_length:
        return False
    these, others = (_trainings(each, runs) for each in (longer, group))
    return these <= others


def _trainings(group: Group, runs: Mapping[str, Trained]) -> set[tuple[ModelConfig, int]]:
    known = (runs[name].config for name in group.rows["run_id"].unique() if name in runs)
    return {(config.model, config.tokens) for config in known}


def ceilings_of(group: Group, longer: Sequence[Group], summary: pd.DataFrame) -> tuple[Ceiling, ...]:
    """The ceiling at every length at which other groups of the same text were trained; empty without such groups.

    `summary` is that of the group, whose order the encodings keep. Tasks with right answers have no ceilings: a context
    that is cut lacks the answer itself, so what a longer one is worth follows from the task, and accuracies say more.
    """
    if is_answered(summary):
        return ()
    protocol, names = headline(group.rows).gain, [str(name) for name in summary["encoding"]]
    reachable = set(group.rows.loc[group.rows["protocol"] == protocol, "length"])
    longer = [each for each in longer if each.train_length in reachable]
    groups = [each for each in (group, *longer) if "units" in each.details]
    if not longer or len(groups) <= len(longer):
        return ()
    named_rows = [each.rows.assign(encoding=each.rows["encoding"] + _trained_at(each)) for each in longer]
    units = LossTable(pd.concat([each.details["units"] for each in groups], ignore_index=True))
    losses = losses_of(pd.concat([group.rows, *named_rows], ignore_index=True), units, protocol)
    fair = [str(name) for name in summary.loc[summary["verdict"].map(can_win), "encoding"]]
    ceilings = []
    for other in sorted(longer, key=lambda each: each.train_length):
        at, suffix = other.train_length, _trained_at(other)
        trained_long = [str(name) for name in other.rows["encoding"].unique()]
        candidates = [name for name in fair if name in trained_long] or fair
        short = _best(losses, [(name, PAIRED) for name in candidates], at)
        long = _best(losses, [(name + suffix, FULL) for name in trained_long], at)
        if short is None or long is None:
            continue
        headroom = losses.pair(short, long, at)
        (known,) = losses.compare([(short, long, at)])
        won = [((name, PAIRED), (name, FULL), at) for name in names]
        paid = [((name, FULL), (name + suffix, FULL), at) for name in names]
        worth = known.low > LEAST_HEADROOM
        seeds = losses.runs(short, at).keys() & losses.runs(long, at).keys()
        ceilings.append(
            Ceiling(
                length=at,
                ratio=at / group.train_length,
                short=short[0],
                long=long[0].removesuffix(suffix),
                headroom=known.numbers,
                gains=tuple(each.numbers for each in losses.compare(won)),
                used=tuple(
                    _share(losses.pair(*each, seeds=seeds), headroom) if worth and name in fair else UNKNOWN
                    for name, each in zip(names, won, strict=True)
                ),
                prices=tuple(each.numbers for each in losses.compare(paid)),
            )
        )
    return tuple(ceilings)


def ngram_gains(folder: Path) -> dict[tuple[str, int], str]:
    """What R0 wins by 16 L, as a sentence, by the fingerprint of the text and L: of files of `poscli corpus --out`.

    CorruptError for a file that is not JSON.
    """
    known = {}
    for path in sorted(folder.glob("*-L*.json")):
        measured = read_object(path, "delete it, or repeat the poscli corpus that wrote it")
        last, length = measured["windows"][-1], measured["length"]
        won = gain_text(*(math.nan if each is None else each for each in (last["won"], last["low"], last["high"])))
        ratio = ratio_name(last["window"] / length)
        known[measured["corpus"]["fingerprint"], length] = f"An n-gram with a cache wins {won} by {ratio}."
    return known


def use_of_ceilings(ceilings: Sequence[Ceiling], summary: pd.DataFrame, bits: str, ngram: str) -> Analysis | None:
    """The analysis of the ceilings, in bits per byte; None if there are none. `ngram` is a sentence about R0 or ""."""
    if not ceilings:
        return None
    names = [str(name) for name in summary["encoding"]]
    columns = [words("encoding", names)]
    for each in ceilings:
        at = ratio_name(each.ratio)
        columns += [
            Column(f"gain {at}", tuple(gain_text(*triple) for triple in each.gains)),
            Column(f"used {at}", tuple(map(_percent, each.used))),
        ]
        if any(triple[0] == triple[0] for triple in each.prices):
            columns.append(Column(f"price {at}", tuple(gain_text(*triple) for triple in each.prices)))
    won = "; ".join(
        f"{gain_text(*each.headroom)} by training at {ratio_name(each.ratio)} (best there: {named(each.long)}; best at "
        f"L: {named(each.short)})"
        for each in ceilings
    )
    last = ceilings[-1]
    users = [(name, used) for name, used in zip(names, last.used, strict=True) if used[1] > 0]
    users.sort(key=lambda each: -each[1][0])
    answer = f"A longer context is worth, in {bits}: {won}."
    if users:
        most = listed([f"{named(name)} {_percent(used)}" for name, used in users], 6)
        answer += f" Trained at L and reading {ratio_name(last.ratio)}, these use a part of that: {most}."
    elif any(used[0] == used[0] for used in last.used):
        answer += f" Trained at L, no encoding surely uses any of it at {ratio_name(last.ratio)}."
    answer += f" {ngram}" if ngram else ""
    return Analysis(
        "How much of what a longer context is worth is used?",
        answer,
        tuple(columns),
        (
            f"gain: {bits} by which the whole window beats the context cut to L, on the same tokens",
            "used: the gain as a share of what the best model wins by being trained at that length, on seeds of both "
            f"trainings, with its 95 % interval; - where that is not surely more than {LEAST_HEADROOM} {bits}, and for "
            "encodings without a rank",
            "price: loss of the encoding trained at L minus its loss trained at that length, both reading that length",
        ),
    )


def _trained_at(group: Group) -> str:
    """The end of the names of encodings that were trained at the length of a group."""
    return f" trained at {group.train_length}"


def _best(losses: EncodingLosses, keys: Sequence[Key], length: int) -> Key | None:
    """The one with the smallest mean loss at a length; None if none has a loss there."""
    cases = {key: losses.of(key, length) for key in keys}
    means = {key: case[0].mean(axis=0).sum() / case[1].sum() for key, case in cases.items() if case is not None}
    return min(means, key=lambda key: means[key]) if means else None


def _share(gain: Case | None, headroom: Case | None) -> Triple:
    """The share of the headroom that a gain is; unknown where they are not of the same seeds and documents."""
    if gain is None or headroom is None or gain[0].shape != headroom[0].shape:
        return UNKNOWN
    return ratio_of_means(gain[0], headroom[0], gain[1])


def _percent(share: Triple) -> str:
    """A share in percent, with its interval.

    >>> _percent((0.4512, 0.381, 0.522)), _percent((0.011, -0.002, 0.02)), _percent(UNKNOWN)
    ('45 % [38, 52]', '1 % [0, 2]', '-')
    """
    if share[0] != share[0]:
        return "-"
    estimate, low, high = (f"{100 * each:z.0f}" for each in share)
    return f"{estimate} %" + (f" [{low}, {high}]" if share[1] == share[1] else "")
