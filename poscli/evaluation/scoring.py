"""From losses per token to the rows of eval.csv, units.csv, position.csv, recall.csv and answers.csv."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from poscli.config.run import SCHEMA
from poscli.evaluation.answers import answer_rows, depth_bins, gap_bins
from poscli.evaluation.losses import Measured, position_curve, tail_slope
from poscli.evaluation.measure import EvaluationSetup, Measurements
from poscli.evaluation.plan import PAIRED
from poscli.evaluation.recall import recall_rows
from poscli.runs.schema import FULL
from poscli.system.provenance import measured_on
from poscli.tasks import EpisodeTask, Text
from poscli.tasks.episodes import DEPTH


def eval_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[dict[str, Any]]:
    """Rows of eval.csv: one per length, protocol and variant."""
    for length, protocol, variant in _cases(setup):
        yield _row(setup, measured, length, protocol, variant)


def failed_rows(setup: EvaluationSetup, status: str, reason: str) -> Iterator[dict[str, Any]]:
    """All rows of a run that has no model to measure, without numbers."""
    nothing = Measured(None, status, reason)
    return eval_rows(setup, dict.fromkeys(setup.plan.measurements(), nothing))


def unit_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[dict[str, Any]]:
    """Rows of units.csv: one per length, protocol, variant and unit that intervals resample."""
    for length, protocol, variant in _cases(setup):
        losses = measured[setup.plan.measurement(length, variant)].losses
        if losses is None:
            continue
        common = run_columns(setup) | {"length": length, "protocol": protocol, "variant": variant}
        for unit in setup.scores(protocol, length).by_unit(losses):
            yield common | unit


def position_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[dict[str, Any]]:
    """Rows of position.csv: one per length and bin of the position in the window."""
    for length in setup.settings.lengths:
        losses = measured[setup.plan.measurement(length, FULL)].losses
        if losses is None:
            continue
        common = run_columns(setup) | {"length": length, "tail_slope": tail_slope(losses)}
        for b in position_curve(losses):
            yield common | {"from": b.start, "to": b.stop, "tokens": b.tokens, "nll": b.nll}


def recall_table(setup: EvaluationSetup, measured: Measurements) -> Iterator[dict[str, Any]]:
    """Rows of recall.csv: at the longest length, under the first protocol that compares it with the cropped context.

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
    rows = recall_rows(
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


def answer_table(setup: EvaluationSetup, measured: Measurements) -> Iterator[dict[str, Any]]:
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
        for row in answer_rows(back, right, units=scores.unit_names, length=length, by=task.by, bins=bins):
            yield common | row


def _cases(setup: EvaluationSetup) -> Iterator[tuple[int, str, str]]:
    """(length, protocol, variant) of every row."""
    for length in setup.settings.lengths:
        for protocol in setup.plan.protocols:
            for variant in setup.plan.variants(protocol):
                yield length, protocol, variant


def _row(setup: EvaluationSetup, measured: Measurements, length: int, protocol: str, variant: str) -> dict[str, Any]:
    plan = setup.plan
    found = measured[plan.measurement(length, variant)]
    scored = plan.protocols[protocol].piece(setup.settings, length)
    row = _provenance(setup, found, length) | {"protocol": protocol, "variant": variant, "stride": scored}
    if found.losses is None:
        return row | {"tokens": 0, "bytes": 0, "documents": 0}
    scores = setup.scores(protocol, length)
    row |= scores.numbers(found.losses)
    crop = measured[plan.measurement(length, PAIRED)].losses if plan.protocols[protocol].compared else None
    return row if crop is None else row | scores.gain(found.losses, crop)


def run_columns(setup: EvaluationSetup) -> dict[str, Any]:
    """The columns that identify the run."""
    config = setup.run.config
    return {
        "run_id": setup.run.id,
        "encoding": setup.run.label,
        "seed": config.seed,
        "fingerprint": setup.task.fingerprint,
        "train_length": config.length,
    }


def _provenance(setup: EvaluationSetup, found: Measured, length: int) -> dict[str, Any]:
    """The columns that say how a row was made."""
    config = setup.run.config
    tokens = 0 if found.losses is None else found.losses.nll.size
    return run_columns(setup) | {
        "schema": SCHEMA,
        "corpus": config.corpus,
        "tokenizer": setup.run.tokenizer,
        "length": length,
        "ratio": length / config.length,
        "status": found.status,
        "reason": found.reason,
        "seconds": found.seconds,
        "tokens_per_s": tokens / found.seconds if found.seconds else math.nan,
        "peak_mb": found.peak_mb or math.nan,
        "parameters": setup.run.env["parameters"],
        "engine": found.engine,
        "engine_reason": found.engine_reason,
        "dtype": config.precision,
        **measured_on(setup.device),
        **found.where,
    }
