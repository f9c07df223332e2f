"""The scored tokens of one protocol at one length, and statistics over them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.evaluation.losses import NLL, Losses
from poscli.evaluation.protocol import pieces
from poscli.runs.schema import perplexity
from poscli.statistics import FEWEST_DOCUMENTS
from poscli.statistics.intervals import ratio_interval
from poscli.tasks import Spans, Task

CHUNK_TOKENS = 2**20  # of windows that are held at once
LN2 = math.log(2)


class Scores:
    """The last `scored` tokens of these windows of a task's text for a length, read in pieces.

    `piece` maps the length of the windows that a model read to the tokens that are scored at the end of each.
    """

    def __init__(self, task: Task, length: int, spans: Spans, scored: int, piece: Callable[[int], int]) -> None:
        text = task.text(length)
        self.task, self.length, self.spans, self.scored, self.piece = task, length, spans, scored, piece
        self.counts = text.counts(spans, scored)
        targets = text.targets(spans, scored)
        self.bytes = np.where(self.counts, task.token_bytes(targets), 0)
        self.unigram = task.unigram(targets)  # nats of each token
        documents, unit = np.unique(spans[:, 0], return_inverse=True)
        self.documents = len(documents)
        by_document = self.documents >= FEWEST_DOCUMENTS  # else windows, which understates the spread
        self.units, self.resampled = (unit, "documents") if by_document else (np.arange(len(spans)), "spans")
        self.unit_names = [str(n) for n in documents] if by_document else [f"{n}:{end}" for n, end in spans]

    def numbers(self, losses: Losses) -> dict[str, Any]:
        """Losses with their interval, the best possible loss, and the task's own columns."""
        nll = self.of(losses)
        mean, tokens, size = self.mean(nll), int(self.counts.sum()), int(self.bytes.sum())
        low, high = self.interval(nll)
        unigram, chance = self.mean(self.unigram), math.log(self.task.vocab)
        own = {name: self.mean(self.of(losses, name)) for name in self.task.columns}
        return {
            "tokens": tokens,
            "bytes": size,
            "documents": self.documents,
            "nll": mean,
            "bpb": mean / LN2 * (tokens / size),
            "ppl": perplexity(mean),
            "unigram": unigram,
            "chance": chance,
            "optimum": self.optimum(losses.length),
            "guess_gain_low": self.interval((self.unigram if unigram < chance else chance) - nll)[0],
            "nll_low": low,
            "nll_high": high,
            "resampled": self.resampled,
        } | own

    def gain(self, losses: Losses, crop: Losses) -> dict[str, Any]:
        """The context gain: the loss under crop minus the loss with the whole window, on identical tokens."""
        gain = self.of(crop) - self.of(losses)
        low, high = self.interval(gain)
        return {"gain": self.mean(gain), "gain_low": low, "gain_high": high}

    def by_unit(self, losses: Losses) -> list[dict[str, Any]]:
        """The mean loss of each unit that intervals resample: of each document, or, where they are few, each window."""
        nll = self.of(losses)
        tokens = self._per_unit(self.counts)
        totals, sizes = self._per_unit(np.where(self.counts, nll, 0)), self._per_unit(self.bytes)
        return [
            {"unit": name, "tokens": int(count), "bytes": int(size), "nll": total / count}
            for name, count, size, total in zip(self.unit_names, tokens, sizes, totals, strict=True)
            if count
        ]

    def of(self, losses: Losses, name: str = NLL) -> NDArray[np.float64]:
        """A measurement of the scored tokens, `[windows, scored]`."""
        piece = self.piece(losses.length)
        return losses.at(pieces(self.spans, self.scored, piece), piece, name).reshape(len(self.spans), self.scored)

    def mean(self, values: NDArray[np.float64]) -> float:
        """The mean over the tokens that count."""
        return float(values[self.counts].mean())

    def interval(self, values: NDArray[np.float64]) -> tuple[float, float]:
        """A 95 % interval of the mean over the tokens that count."""
        return ratio_interval(self._per_unit(np.where(self.counts, values, 0)), self._per_unit(self.counts))

    def optimum(self, window: int) -> float:
        """The mean of the best possible losses of a model that reads windows of so many tokens; NaN if unknown."""
        text, found, step, piece = self.task.text(self.length), [], max(1, CHUNK_TOKENS // window), self.piece(window)
        spans = pieces(self.spans, self.scored, piece)
        for first in range(0, len(spans), step):
            best = self.task.optimum(text.windows(spans[first : first + step], window))
            if best is None:
                return math.nan
            found.append(best[:, window - piece :])
        return self.mean(np.concatenate(found).reshape(len(self.spans), self.scored))

    def _per_unit(self, values: NDArray[Any]) -> NDArray[np.float64]:
        return np.bincount(self.units, weights=values.sum(axis=1)).astype(np.float64)
