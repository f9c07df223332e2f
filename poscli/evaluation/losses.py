"""The losses of every token: the Parquet file that holds them, their curve by position, and statistics over them.

Every protocol, gain and curve is computed from these losses without running a model again.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.evaluation.protocol import pieces
from poscli.runs.schema import perplexity
from poscli.statistics import FEWEST_DOCUMENTS
from poscli.statistics.intervals import ratio_interval
from poscli.tasks import Spans, Task

NLL = "nll"  # name of the losses, in nats; a task may measure more of every token


@dataclass(frozen=True, eq=False)
class Losses:
    """Measurements of each token, `[windows, length]` by name, for windows sorted by document and end.

    Of some windows only the last tokens are measured; the numbers of the others are NaN.
    """

    spans: Spans
    values: dict[str, NDArray[np.float32]]

    @property
    def nll(self) -> NDArray[np.float32]:
        """The negative log-likelihood of each token, in nats."""
        return self.values[NLL]

    @property
    def length(self) -> int:
        """Tokens in a window."""
        return self.nll.shape[1]

    @property
    def of_whole_windows(self) -> NDArray[np.float32]:
        """The losses of the windows of which every token is measured, `[windows, length]`."""
        return self.nll[~np.isnan(self.nll[:, 0])]

    def at(self, spans: Spans, scored: int, name: str = NLL) -> NDArray[np.float64]:
        """A measurement of the last `scored` tokens of these windows, `[spans, scored]`, in the order of `spans`."""
        row = np.searchsorted(span_keys(self.spans), span_keys(spans))
        assert (self.spans[row] == spans).all()
        return self.values[name][row, self.length - scored :].astype(np.float64)


def span_keys(spans: Spans) -> NDArray[np.int64]:
    """A number per span that sorts as the spans do."""
    return spans[:, 0] << 40 | spans[:, 1]


@dataclass(frozen=True)
class MeasuredLosses:
    """The outcome of one measurement: its losses, or the reason why there are none; and its cost."""

    losses: Losses | None
    status: str = "ok"
    reason: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0
    engine: str = ""
    engine_reason: str = ""  # why no faster engine ran
    where: Mapping[str, str] = field(default_factory=dict)  # the columns of `provenance.measured_on`
    key: str = ""  # of the file that it was read from

    @property
    def spans(self) -> Spans:
        """The windows whose losses are there."""
        return np.empty((0, 2), np.int64) if self.losses is None else self.losses.spans

    def beside(self, earlier: MeasuredLosses | None) -> MeasuredLosses:
        """The losses of this measurement and of an earlier one of other windows, if there is one."""
        if self.losses is None or earlier is None or earlier.losses is None:
            return self
        spans = np.concatenate([earlier.spans, self.spans])
        order = np.argsort(span_keys(spans))
        both = {
            name: np.concatenate([earlier.losses.values[name], values])[order]
            for name, values in self.losses.values.items()
        }
        seconds, peak = earlier.seconds + self.seconds, max(earlier.peak_mb, self.peak_mb)
        return replace(self, losses=Losses(spans[order], both), seconds=seconds, peak_mb=peak)

    def content(self, key: str) -> bytes:
        """A Parquet file of the losses, one row per measured token.

        The columns are the document, the end of the window, the position in it, and the measurements. `key`, a JSON
        list, identifies the settings of the measurement; it and the cost go into the file's metadata.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        losses = self.losses
        assert losses is not None
        row, place = np.nonzero(~np.isnan(losses.nll))
        columns = {
            "document": losses.spans[row, 0].astype(np.int32),
            "end": losses.spans[row, 1],
            "position": (place + 1).astype(np.int32),
        } | {name: values[row, place] for name, values in losses.values.items()}
        kept = {"seconds": self.seconds, "peak_mb": self.peak_mb, "where": dict(self.where)}
        cost = json.dumps(kept | {"engine": self.engine, "engine_reason": self.engine_reason})
        table = pa.table(columns).replace_schema_metadata({"key": key, "cost": cost})
        file = io.BytesIO()
        pq.write_table(table, file, compression="zstd")
        return file.getvalue()

    @staticmethod
    def of_content(
        content: bytes, key: str, spans: Spans, tokens: NDArray[np.int64], length: int, *, alone: bool
    ) -> MeasuredLosses | None:
        """The losses of the last `tokens` of these windows that are in a file of `content`.

        Windows of which it has more or fewer are left out. None if it has no window, or was made under another key.

        `alone`: windows go through the model one at a time. Then the number of tokens to score, which is in the key,
        may be another one. Otherwise the losses of windows depend in the last bits on the others that are read.
        """
        import pyarrow.parquet as pq

        table = pq.read_table(io.BytesIO(content))
        metadata = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
        kept_key = metadata.get("key", "")
        same = _whatever_tokens(kept_key) == _whatever_tokens(key) if alone and kept_key else kept_key == key
        if not same or not table.num_rows:
            return None
        rows = {name: table[name].to_numpy() for name in table.column_names}
        spans_of_rows = np.stack([rows.pop("document"), rows.pop("end")], axis=1).astype(np.int64)
        begins = np.diff(span_keys(spans_of_rows), prepend=-1) != 0  # the rows of a window stand together
        kept, window, place = spans_of_rows[begins], begins.cumsum() - 1, rows.pop("position") - 1
        if place.max() != length - 1:  # the last token of every window is measured
            return None
        column = {name: np.full((len(kept), length), np.nan, np.float32) for name in rows}
        for name, values in rows.items():
            column[name][window, place] = values
        row = np.searchsorted(span_keys(kept), span_keys(spans)).clip(max=len(kept) - 1)
        as_many = (~np.isnan(column[NLL])).sum(axis=1)[row] == tokens
        found = np.flatnonzero((kept[row] == spans).all(axis=1) & as_many)
        if not len(found) or not (alone or len(found) == len(kept) == len(spans)):
            return None
        values = {name: each[row[found]] for name, each in column.items()}
        cost = json.loads(metadata["cost"])
        cost["seconds"] *= len(found) / len(kept)
        return MeasuredLosses(Losses(spans[found], values), **cost, key=kept_key)


def _whatever_tokens(key: str) -> list[Any]:
    """What identifies the settings of a measurement, without the number of tokens to score."""
    parts: list[Any] = json.loads(key)
    return [{**part, "tokens": None} if isinstance(part, dict) else part for part in parts]


def position_curve(losses: Losses) -> list[dict[str, Any]]:
    """Loss by position in the window, in bins of half an octave, over the windows that are measured whole.

    Each has the columns `from` and `to`, the positions of its first and its last token, `tokens` and their mean `nll`;
    position 1 is the first token predicted.
    """
    length, nll = losses.length, losses.of_whole_windows
    edges = np.unique(np.floor(2.0 ** np.arange(0, np.log2(length), 0.5)).astype(int))
    by_position = nll.mean(axis=0, dtype=np.float64)
    bounds = zip(edges, [*edges[1:], length + 1], strict=True)
    return [
        {
            "from": int(a),
            "to": int(b) - 1,
            "tokens": int(b - a) * len(nll),
            "nll": float(by_position[a - 1 : b - 1].mean()),
        }
        for a, b in bounds
    ]


def tail_slope(losses: Losses) -> float:
    """Change of loss per doubling of the position over the last two octaves of the window (least squares)."""
    start = losses.length // 4
    octave = np.log2(np.arange(start + 1, losses.length + 1))
    return float(np.polyfit(octave, losses.of_whole_windows[:, start:].mean(axis=0, dtype=np.float64), 1)[0])


CHUNK_TOKENS = 2**20  # of windows that are held at once
LN2 = math.log(2)


class Scores:
    """The last `scored` tokens of these windows of a task's text for a length, read in pieces.

    `piece` maps the length of the windows that a model read to the tokens that are scored at the end of each. Intervals
    come from the differences between documents or, where they are few, between parts of `unit` scored tokens, which
    understates the spread.
    """

    def __init__(
        self, task: Task, length: int, spans: Spans, scored: int, piece: Callable[[int], int], unit: int
    ) -> None:
        text = task.text(length)
        self.task, self.length, self.spans, self.scored, self.piece = task, length, spans, scored, piece
        self.counts = text.counts(spans, scored)
        targets = text.targets(spans, scored)
        self.bytes = np.where(self.counts, task.token_bytes(targets), 0)
        self.unigram = task.unigram(targets)  # nats of each token
        documents, place = np.unique(spans[:, 0], return_inverse=True)
        self.documents = len(documents)
        if self.documents >= FEWEST_DOCUMENTS:
            self.resampled, self.parts, self.units = "documents", 1, place
            self.unit_names = [str(n) for n in documents]
        else:
            parts = pieces(spans, scored, unit)
            self.resampled, self.parts, self.units = "spans", scored // unit, np.arange(len(parts))
            self.unit_names = [f"{n}:{end}" for n, end in parts]

    def numbers(self, losses: Losses) -> dict[str, Any]:
        """Losses with their interval, the best possible losses, and the task's own columns."""
        nll = self.of(losses)
        mean, tokens, size = self.mean(nll), int(self.counts.sum()), int(self.bytes.sum())
        low, high = self.interval(nll)
        unigram, chance = self.mean(self.unigram), math.log(self.task.vocab)
        means = {name: self.mean(self.of(losses, name)) for name in self.task.columns}
        return {
            "tokens": tokens,
            "bytes": size,
            "documents": self.documents,
            "nll": mean,
            "bpb": mean / LN2 * (tokens / size),
            "ppl": perplexity(mean),
            "unigram": unigram,
            "chance": chance,
            "optimum": self.best(losses.length, self.task.optimum),
            "blind": self.best(losses.length, self.task.blind),
            "guess_gain_low": self.interval((self.unigram if unigram < chance else chance) - nll)[0],
            "nll_low": low,
            "nll_high": high,
            "resampled": self.resampled,
        } | means

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

    def best(self, window: int, limit: Callable[[NDArray[np.int64], int], NDArray[np.float64] | None]) -> float:
        """The mean of a limit of the losses of models that read windows of `window` tokens; NaN if it is not known.

        `limit` is `Task.optimum` or `Task.blind`.
        """
        text, found, step, piece = self.task.text(self.length), [], max(1, CHUNK_TOKENS // window), self.piece(window)
        spans = pieces(self.spans, self.scored, piece)
        for first in range(0, len(spans), step):
            best = limit(text.windows(spans[first : first + step], window), piece)
            if best is None:
                return math.nan
            found.append(best)
        return self.mean(np.concatenate(found).reshape(len(self.spans), self.scored))

    def _per_unit(self, values: NDArray[Any]) -> NDArray[np.float64]:
        parts = values.reshape(len(values) * self.parts, -1)
        return np.bincount(self.units, weights=parts.sum(axis=1)).astype(np.float64)
