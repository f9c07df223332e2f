"""Measuring one trained run at growing lengths: the loss of every token, from which `scoring.py` reads the protocols.

Losses land in `nll/` as each length is done, with the settings they were made under: an evaluation that was
interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from poscli.console import note
from poscli.data import Corpus
from poscli.encodings import Unsupported
from poscli.environment import device_name, is_out_of_memory, peak_memory_mb
from poscli.files import write_atomic
from poscli.model import Model
from poscli.progress import Meter, meter
from poscli.protocols import Losses, Plan, Settings, Spans
from poscli.results import SCHEMA
from poscli.runs import Run
from poscli.signals import Interrupted, Stop, stoppable

BATCH_TOKENS = 8192  # tokens in one forward pass; more brings nothing on CPU and costs memory


@dataclass(frozen=True)
class Measured:
    """One (length, variant): its losses, or why there are none, and what they cost."""

    losses: Losses | None
    status: str = "ok"
    reason: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0
    engine: str = ""


@dataclass(frozen=True)
class Job:
    """Windows of one length to be run through the model itself (`full`) or under an attention window (`window`)."""

    length: int
    variant: str
    spans: Spans

    @property
    def cost(self) -> float:
        """Work, in tokens of a model whose attention weighs as much as the rest at 2048 tokens."""
        span = self.length if self.variant == "full" else 0
        return len(self.spans) * self.length * (1 + span / 2048)


@dataclass(frozen=True)
class Subject:
    """What is evaluated, on what, how far."""

    run: Run
    corpus: Corpus
    settings: Settings
    device: torch.device

    @cached_property
    def plan(self) -> Plan:
        """The windows of every protocol and length."""
        return Plan(np.diff(self.corpus.valid.starts) - 1, self.settings)


class Evaluation:
    """The measuring of one trained model."""

    def __init__(self, subject: Subject, model: Model) -> None:
        self.subject, self.settings, self.plan = subject, subject.settings, subject.plan
        self.models = {"full": model, "window": model.window(subject.settings.train_length)}

    def measure(self) -> dict[tuple[int, str], Measured]:
        """Every (length, variant). Raises Interrupted, with what is done saved, on a signal."""
        jobs = list(self._jobs())
        with stoppable() as stop, self._meter(jobs) as progress:
            return {(job.length, job.variant): self._measure(job, progress, stop) for job in jobs}

    def _jobs(self) -> Iterator[Job]:
        """Shortest first. An attention window as wide as the input is the model itself."""
        for length in self.settings.lengths:
            for variant in ("full", "window") if length > self.settings.train_length else ("full",):
                yield Job(length, variant, self.plan.windows(length, variant))

    def _meter(self, jobs: list[Job]) -> Meter:
        return meter(f"extrapolate {self.subject.run.config.encoding}", sum(job.cost for job in jobs))

    def _measure(self, job: Job, progress: Meter, stop: Stop) -> Measured:
        name = f"{job.length}.parquet" if job.variant == "full" else f"{job.length}-{job.variant}.parquet"
        path = self.subject.run.folder / "nll" / name
        key = json.dumps([SCHEMA, self.subject.run.id, asdict(self.settings), device_name(self.subject.device)])
        if (known := read_losses(path, key, job)) is not None:
            progress.advance(job.cost)
            return known
        measured = self._run(job, progress, stop)
        if measured.losses is not None:
            write_atomic(path, lambda temporary: write_losses(temporary, measured, key))
        return measured

    def _run(self, job: Job, progress: Meter, stop: Stop) -> Measured:
        model = self.models[job.variant]
        nll = np.empty((len(job.spans), job.length), dtype=np.float32)
        seconds, step = 0.0, max(1, BATCH_TOKENS // job.length)
        for first in range(0, len(nll), step):
            spans, start = job.spans[first : first + step], time.perf_counter()
            try:
                nll[first : first + step] = self._forward(model, job.length, spans)
            except Unsupported as error:
                return Measured(None, "unsupported", str(error), engine=model.engine)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                reason = f"{job.length} tokens do not fit the memory of {device_name(self.subject.device)}"
                return Measured(None, "oom", reason, engine=model.engine)
            seconds += time.perf_counter() - start
            progress.advance(job.cost * len(spans) / len(nll), f"{job.length} tokens")
            if stop:
                done = f"stopped at {job.length} tokens; the same command goes on from there"
                raise Interrupted(done, stop.signum)
        measured = Measured(
            Losses(job.spans, nll), "ok", "", seconds, peak_memory_mb(self.subject.device), model.engine
        )
        if not np.isfinite(nll).all():
            return replace(measured, losses=None, status="nonfinite", reason=f"a loss at {job.length} is not finite")
        return measured

    @torch.inference_mode()
    def _forward(self, model: Model, length: int, spans: Spans) -> NDArray[np.float32]:
        """Losses `[spans, length]`."""
        valid = self.subject.corpus.valid
        first = valid.starts[spans[:, 0]] + spans[:, 1] - length
        tokens = valid.tokens[first[:, None] + np.arange(length + 1)]
        batch = torch.from_numpy(tokens.astype(np.int64)).to(self.subject.device)
        logits = model(batch[:, :-1]).float()
        losses = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        return losses.view(len(spans), length).cpu().numpy()


def write_losses(path: Path, measured: Measured, key: str) -> None:
    """One row per token: document, end of the window, position in it, nats. What they cost goes into the metadata."""
    losses = measured.losses
    assert losses is not None
    windows, length = losses.nll.shape
    table = pa.table(
        {
            "document": np.repeat(losses.spans[:, 0].astype(np.int32), length),
            "end": np.repeat(losses.spans[:, 1], length),
            "position": np.tile(np.arange(1, length + 1, dtype=np.int32), windows),
            "nll": losses.nll.ravel(),
        }
    )
    cost = json.dumps({"seconds": measured.seconds, "peak_mb": measured.peak_mb, "engine": measured.engine})
    metadata = {"key": key, "cost": cost, "sum": _sum(cost, losses.nll)}
    pq.write_table(table.replace_schema_metadata(metadata), path, compression="zstd")


def read_losses(path: Path, key: str, job: Job) -> Measured | None:
    """What `write_losses` wrote under the same key, or None: there is nothing, or it is of other settings."""
    try:
        table = pq.read_table(path, columns=["nll"])
        metadata = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        note(f"{path} cannot be read ({type(error).__name__}): measuring it again")
        return None
    if metadata.get("key") != key or table.num_rows != len(job.spans) * job.length:
        return None
    nll = table["nll"].to_numpy()
    if metadata.get("sum") != _sum(metadata.get("cost", ""), nll):
        note(f"{path} is not what was written: measuring it again")
        return None
    return Measured(Losses(job.spans, nll.reshape(len(job.spans), job.length)), **json.loads(metadata["cost"]))


def _sum(cost: str, nll: NDArray[np.float32]) -> str:
    """Parquet has no checksum of its own: a flipped bit loads silently."""
    return hashlib.sha256(cost.encode() + nll.tobytes()).hexdigest()
