"""The measured losses of every token, and the Parquet file that holds them.

Every protocol, gain and curve is computed from these losses without running a model again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from poscli.runs.schema import ADDED_COLUMNS
from poscli.tasks import Spans

NLL = "nll"  # name of the losses, in nats; a task may measure more of every token


@dataclass(frozen=True, eq=False)
class Losses:
    """Measurements of each token, `[windows, length]` by name, for windows sorted by document and end."""

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

    def at(self, spans: Spans, scored: int, name: str = NLL) -> NDArray[np.float64]:
        """A measurement of the last `scored` tokens of these windows, `[spans, scored]`, in the order of `spans`."""
        row = np.searchsorted(span_keys(self.spans), span_keys(spans))
        assert (self.spans[row] == spans).all()
        return self.values[name][row, self.length - scored :].astype(np.float64)


def span_keys(spans: Spans) -> NDArray[np.int64]:
    """A number per span that sorts as the spans do."""
    return spans[:, 0] << 40 | spans[:, 1]


@dataclass(frozen=True)
class Measured:
    """The outcome of one measurement: its losses, or the reason why there are none; and its cost."""

    losses: Losses | None
    status: str = "ok"
    reason: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0
    engine: str = ""
    engine_reason: str = ""  # why no faster engine ran
    where: Mapping[str, str] = field(default_factory=dict)  # the columns of `provenance.measured_on`

    def content(self, key: str) -> bytes:
        """A Parquet file of the losses, one row per token: document, end of the window, position in it, measurements.

        `key` identifies the settings of the measurement; it and the cost go into the file's metadata.
        """
        losses = self.losses
        assert losses is not None
        windows, length = losses.nll.shape
        columns = {
            "document": np.repeat(losses.spans[:, 0].astype(np.int32), length),
            "end": np.repeat(losses.spans[:, 1], length),
            "position": np.tile(np.arange(1, length + 1, dtype=np.int32), windows),
        } | {name: values.ravel() for name, values in losses.values.items()}
        kept = {"seconds": self.seconds, "peak_mb": self.peak_mb, "where": dict(self.where)}
        cost = json.dumps(kept | {"engine": self.engine, "engine_reason": self.engine_reason})
        table = pa.table(columns).replace_schema_metadata({"key": key, "cost": cost})
        file = io.BytesIO()
        pq.write_table(table, file, compression="zstd")
        return file.getvalue()

    @staticmethod
    def of_content(content: bytes, key: str, spans: Spans, length: int) -> Measured | None:
        """The measurement in a file of `content`; None if it was made under another key or for other windows."""
        table = pq.read_table(io.BytesIO(content))
        metadata = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
        if metadata.get("key") != key or table.num_rows != len(spans) * length:
            return None
        measured = [name for name in table.column_names if name not in ("document", "end", "position")]
        values = {name: table[name].to_numpy().reshape(len(spans), length) for name in measured}
        of_earlier_versions = {"where": dict.fromkeys(ADDED_COLUMNS, "")}
        return Measured(Losses(spans, values), **(of_earlier_versions | json.loads(metadata["cost"])))


@dataclass(frozen=True)
class Bin:
    """Mean loss at positions `start` to `stop` of the window, both included; 1 is the first token predicted."""

    start: int
    stop: int
    tokens: int
    nll: float


def position_curve(losses: Losses) -> list[Bin]:
    """Loss by position in the window, in bins of half an octave, over every window of the length."""
    length = losses.length
    edges = np.unique(np.floor(2.0 ** np.arange(0, np.log2(length), 0.5)).astype(int))
    by_position = losses.nll.mean(axis=0, dtype=np.float64)
    bounds = zip(edges, [*edges[1:], length + 1], strict=True)
    windows = len(losses.nll)
    return [Bin(int(a), int(b) - 1, int(b - a) * windows, float(by_position[a - 1 : b - 1].mean())) for a, b in bounds]


def tail_slope(losses: Losses) -> float:
    """Change of loss per doubling of the position over the last two octaves of the window (least squares)."""
    start = losses.length // 4
    octave = np.log2(np.arange(start + 1, losses.length + 1))
    return float(np.polyfit(octave, losses.nll[:, start:].mean(axis=0, dtype=np.float64), 1)[0])
