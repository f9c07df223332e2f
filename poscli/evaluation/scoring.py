"""From losses per token to the rows of eval.csv and position.csv: every protocol, baseline and interval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import poscli
from poscli.config.run import SCHEMA
from poscli.evaluation.intervals import ratio_interval
from poscli.evaluation.losses import Losses, Measured, position_curve, tail_slope
from poscli.evaluation.measure import EvaluationSetup, Measurements
from poscli.evaluation.plan import PAIRED
from poscli.runs.schema import FULL, perplexity
from poscli.system.device import device_name
from poscli.system.provenance import commit
from poscli.tasks import Spans

FEWEST_DOCUMENTS = 5  # with fewer, the bootstrap resamples windows instead, which understates the spread


def eval_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[dict[str, Any]]:
    """One row per length, protocol and variant."""
    for length in setup.settings.lengths:
        for protocol in setup.plan.protocols:
            for variant in setup.plan.variants(protocol):
                yield _row(setup, measured, length, protocol, variant)


def failed_rows(setup: EvaluationSetup, status: str, reason: str) -> Iterator[dict[str, Any]]:
    """All rows of a run that has no model to measure, without numbers."""
    nothing = Measured(None, status, reason)
    return eval_rows(setup, dict.fromkeys(setup.plan.measurements(), nothing))


def position_rows(setup: EvaluationSetup, measured: Measurements) -> Iterator[dict[str, Any]]:
    """One row per length and bin of the position in the window."""
    for length in setup.settings.lengths:
        losses = measured[setup.plan.measurement(length, FULL)].losses
        if losses is None:
            continue
        common = _run_columns(setup) | {"length": length, "tail_slope": tail_slope(losses)}
        for b in position_curve(losses):
            yield common | {"from": b.start, "to": b.stop, "tokens": b.tokens, "nll": b.nll}


def _row(setup: EvaluationSetup, measured: Measurements, length: int, protocol: str, variant: str) -> dict[str, Any]:
    plan = setup.plan
    measurement, scored = plan.measurement(length, variant), plan.protocols[protocol].scored(setup.settings, length)
    found = measured[measurement]
    row = _provenance(setup, found, length) | {"protocol": protocol, "variant": variant, "stride": scored}
    if found.losses is None:
        return row | {"tokens": 0, "bytes": 0, "documents": 0}
    scores = _Scores(setup, length, plan.spans(protocol, length), scored)
    row |= scores.numbers(found.losses)
    crop = measured[plan.measurement(length, PAIRED)].losses if plan.protocols[protocol].compared else None
    return row if crop is None else row | scores.gain(found.losses, crop)


class _Scores:
    """The scored tokens of one protocol at one length, and statistics over them."""

    def __init__(self, setup: EvaluationSetup, length: int, spans: Spans, scored: int) -> None:
        text = setup.task.text(length)
        self.task, self.spans, self.scored = setup.task, spans, scored
        self.counts = text.counts(spans, scored)
        targets = text.targets(spans, scored)
        self.bytes = int(setup.task.token_bytes(targets)[self.counts].sum())
        self.unigram = setup.task.unigram(targets)  # nats of each token
        documents, unit = np.unique(spans[:, 0], return_inverse=True)
        self.documents = len(documents)
        by_document = self.documents >= FEWEST_DOCUMENTS
        self.units, self.resampled = (unit, "documents") if by_document else (np.arange(len(spans)), "spans")

    def numbers(self, losses: Losses) -> dict[str, Any]:
        """Losses with their interval, and the task's own columns."""
        nll = losses.at(self.spans, self.scored)
        mean, tokens = float(nll[self.counts].mean()), int(self.counts.sum())
        low, high = self.interval(nll)
        unigram, chance = float(self.unigram[self.counts].mean()), math.log(self.task.vocab)
        own = {name: float(losses.at(self.spans, self.scored, name)[self.counts].mean()) for name in self.task.columns}
        return {
            "tokens": tokens,
            "bytes": self.bytes,
            "documents": self.documents,
            "nll": mean,
            "bpb": mean / math.log(2) * (tokens / self.bytes),
            "ppl": perplexity(mean),
            "unigram": unigram,
            "chance": chance,
            "guess_gain_low": self.interval((self.unigram if unigram < chance else chance) - nll)[0],
            "nll_low": low,
            "nll_high": high,
            "resampled": self.resampled,
        } | own

    def gain(self, losses: Losses, crop: Losses) -> dict[str, Any]:
        """The context gain: the loss under crop minus the loss with the whole window, on identical tokens."""
        gain = crop.at(self.spans, self.scored) - losses.at(self.spans, self.scored)
        low, high = self.interval(gain)
        return {"gain": float(gain[self.counts].mean()), "gain_low": low, "gain_high": high}

    def interval(self, values: NDArray[np.float64]) -> tuple[float, float]:
        """A 95 % interval of the mean over the tokens that count."""
        totals = np.bincount(self.units, weights=np.where(self.counts, values, 0).sum(axis=1))
        return ratio_interval(totals, np.bincount(self.units, weights=self.counts.sum(axis=1)))


def _run_columns(setup: EvaluationSetup) -> dict[str, Any]:
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
    return _run_columns(setup) | {
        "schema": SCHEMA,
        "corpus": config.corpus,
        "length": length,
        "ratio": length / config.length,
        "status": found.status,
        "reason": found.reason,
        "seconds": found.seconds,
        "tokens_per_s": tokens / found.seconds if found.seconds else math.nan,
        "peak_mb": found.peak_mb or math.nan,
        "parameters": setup.run.env["parameters"],
        "engine": found.engine,
        "device": device_name(setup.device),
        "dtype": config.precision,
        "poscli": poscli.__version__,
        "commit": commit(),
    }
