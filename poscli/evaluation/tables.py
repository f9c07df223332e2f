"""From losses per token to the rows of eval.csv, units.csv, position.csv, recall.csv and answers.csv."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.config.run import SCHEMA
from poscli.evaluation.losses import position_curve, tail_slope
from poscli.evaluation.measure import EvaluationSetup, Measurements
from poscli.evaluation.plan import PAIRED
from poscli.evaluation.recall import octaves, recall_by_distance
from poscli.runs.schema import FULL
from poscli.system.provenance import measured_on
from poscli.tasks import EpisodeTask, Text
from poscli.tasks.episodes import DEPTH

DEPTH_BINS = 5

Row = dict[str, Any]
Bounds = list[tuple[int, int]]  # the smallest and the largest value of each bin, both inclusive


def eval_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[Row]:
    """Rows of eval.csv: one per length, protocol and variant. Those of a failed measurement have no numbers."""
    plan, config = setup.plan, setup.run.config
    for length, protocol, variant in _cases(setup):
        made = measured[plan.measurement(length, variant)]
        tokens = 0 if made.losses is None else made.losses.nll.size
        row = run_columns(setup) | {
            "schema": SCHEMA,
            "corpus": setup.run.corpus,
            "trained_on": config.corpus if setup.run.other_corpus else "",
            "trained_code": setup.run.env.get("code", ""),
            "measured_code": setup.code,
            "tokenizer": setup.run.tokenizer,
            "length": length,
            "ratio": length / config.length,
            "status": made.status,
            "reason": made.reason,
            "seconds": made.seconds,
            "tokens_per_s": tokens / made.seconds if made.seconds else math.nan,
            "peak_mb": made.peak_mb or math.nan,
            "parameters": setup.run.env["parameters"],
            "engine": made.engine,
            "engine_reason": made.engine_reason,
            "dtype": config.precision,
            **measured_on(setup.device),
            **made.where,
            "protocol": protocol,
            "variant": variant,
            "stride": plan.protocols[protocol].piece(setup.settings, plan.measurement(length, variant).window),
        }
        if made.losses is None:
            yield row | {"tokens": 0, "bytes": 0, "documents": 0}
            continue
        scores = setup.scores(protocol, length)
        row |= scores.numbers(made.losses)
        crop = measured[plan.measurement(length, PAIRED)].losses if plan.protocols[protocol].compared else None
        yield row if crop is None else row | scores.gain(made.losses, crop)


def unit_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[Row]:
    """Rows of units.csv: one per length, protocol, variant and unit that intervals resample."""
    for length, protocol, variant in _cases(setup):
        losses = measured[setup.plan.measurement(length, variant)].losses
        if losses is None:
            continue
        common = run_columns(setup) | {"length": length, "protocol": protocol, "variant": variant}
        for unit in setup.scores(protocol, length).by_unit(losses):
            yield common | unit


def position_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[Row]:
    """Rows of position.csv: one per length and bin of the position in the window."""
    for length in setup.settings.lengths:
        losses = measured[setup.plan.measurement(length, FULL)].losses
        if losses is None:
            continue
        common = run_columns(setup) | {"length": length, "tail_slope": tail_slope(losses)}
        yield from (common | row for row in position_curve(losses))


def recall_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[Row]:
    """Rows of recall.csv: at the longest length, under the last protocol that compares it with the cropped context.

    Of the protocols of language models that is `fixed`, unless `--protocol` adds another one.

    None for a task whose text is another one at every length, for images, which have no n-grams along a line, and where
    a measurement failed.
    """
    plan, longest = setup.plan, setup.settings.lengths[-1]
    compared = [name for name in plan.protocols if PAIRED in plan.variants(name)]
    text = setup.task.text(longest)
    if not compared or not setup.task.same_text or not isinstance(text, Text):
        return
    full, crop = (measured[plan.measurement(longest, variant)].losses for variant in (FULL, PAIRED))
    if full is None or crop is None:
        return
    scores = setup.scores(compared[-1], longest)
    rows = recall_by_distance(
        text,
        scores.spans,
        scores.scored,
        scores.of(full),
        scores.of(crop),
        ngram=setup.settings.ngram,
        train_length=setup.settings.train_length,
        longest=longest,
    )
    yield from (run_columns(setup) | row for row in rows)


def answer_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[Row]:
    """Rows of answers.csv: one per length, episode and bin of the place of what it asks for; none for other tasks."""
    task, plan = setup.task, setup.plan
    if not isinstance(task, EpisodeTask):
        return
    protocol, lengths = task.protocols[0], setup.settings.lengths
    bins = depth_bins() if task.by == DEPTH else gap_bins(setup.settings.train_length, lengths[-1])
    for length in lengths:
        losses = measured[plan.measurement(length, FULL)].losses
        if losses is None:
            continue
        scores = setup.scores(protocol, length)
        back, right = task.text(length).distances(scores.spans, scores.scored), scores.of(losses, "accuracy")
        common = run_columns(setup) | {"length": length, "chance": task.chance}
        for row in answers_by_place(back, right, units=scores.unit_names, length=length, by=task.by, bins=bins):
            yield common | row


def run_columns(setup: EvaluationSetup) -> Row:
    """The columns that identify the run."""
    config = setup.run.config
    return {
        "run_id": setup.run.id,
        "encoding": setup.run.label,
        "seed": config.seed,
        "fingerprint": setup.task.fingerprint,
        "train_length": config.length,
    }


def _cases(setup: EvaluationSetup) -> Iterator[tuple[int, str, str]]:
    """(length, protocol, variant) of every row."""
    for length in setup.settings.lengths:
        for protocol in setup.plan.protocols:
            for variant in setup.plan.variants(protocol):
                yield length, protocol, variant


# Right answers of a synthetic task: in which episode, and how far back or how deep in the window they were told


def depth_bins() -> Bounds:
    """Fifths of the window, in percent of its length from its start.

    >>> depth_bins()
    [(0, 19), (20, 39), (40, 59), (60, 79), (80, 99)]
    """
    width = 100 // DEPTH_BINS
    return [(first, first + width - 1) for first in range(0, 100, width)]


def gap_bins(train_length: int, longest: int) -> Bounds:
    """Tokens back: all below a quarter of the training length, then octaves up to the longest window.

    >>> gap_bins(64, 256)
    [(1, 15), (16, 31), (32, 63), (64, 127), (128, 255)]
    """
    later = octaves(train_length, longest)
    return [(1, later[0][0] - 1), *later] if later and later[0][0] > 1 else later


def bin_numbers(back: NDArray[np.int64], length: int, by: str, bins: Bounds) -> NDArray[np.int64]:
    """The number of the bin of each of the last targets of windows of `length` tokens, from their `back` `[B, scored]`.

    A token that stood n tokens before the last target has the depth 100 (length - n) / length.
    """
    targets = length + np.arange(1 - back.shape[1], 1)  # numbers of the stored tokens of a window, from 0
    values = 100 * (targets - back) // length if by == DEPTH else back
    return np.searchsorted([first for first, _ in bins], values, side="right") - 1


def answers_by_place(
    back: NDArray[np.int64], right: NDArray[np.float64], *, units: list[str], length: int, by: str, bins: Bounds
) -> Iterator[Row]:
    """One row per episode and bin that has a scored token: how many tokens, and how many of them are right.

    `back` and `right`, `[B, scored]`, are of the last targets of each window; a target counts if its `back` is not 0.
    """
    numbers = np.where(back > 0, bin_numbers(back, length, by, bins), -1)
    for number, (first, last) in enumerate(bins):
        counted = numbers == number
        tokens, answered = counted.sum(axis=1), np.where(counted, right, 0).sum(axis=1)
        for row in np.flatnonzero(tokens):
            bounds = {"unit": units[row], "by": by, "from": first, "to": last}
            yield bounds | {"tokens": int(tokens[row]), "right": round(answered[row])}
