"""The training log, which becomes train.csv."""

from __future__ import annotations

import math
import time
from typing import Any


class Log:
    """Collects the losses of steps; every row of train.csv averages the steps since the row before."""

    def __init__(self, tokens_per_step: int, bytes_per_token: float) -> None:
        self.tokens_per_step, self.bytes_per_token = tokens_per_step, bytes_per_token
        self.rows: list[dict[str, Any]] = []
        self.losses: list[float] = []  # nats per token of each step since the last row
        self.seconds = 0.0  # of training, up to the last row
        self.since = time.monotonic()  # the time of the last row

    def add_row(self, step: int, grad_norm: float, lr_scale: float, status: str = "ok") -> dict[str, Any]:
        """Add a row for the steps since the last row; `step` steps are done in all."""
        now, tokens = time.monotonic(), len(self.losses) * self.tokens_per_step
        spent = now - self.since
        self.seconds += spent
        nll = sum(self.losses) / max(1, len(self.losses))
        row = {
            "step": step,
            "tokens": step * self.tokens_per_step,
            "nll": nll,
            "bpb": nll / math.log(2) / self.bytes_per_token,
            "grad_norm": grad_norm,
            "lr_scale": lr_scale,
            "tokens_per_s": tokens / max(spent, 1e-9),
            "seconds": self.seconds,
            "status": status,
        }
        self.rows.append(row)
        self.losses, self.since = [], now
        return row

    def state(self) -> dict[str, Any]:
        """The log as plain values for a checkpoint."""
        spent = time.monotonic() - self.since
        return {"rows": self.rows, "seconds": self.seconds, "losses": self.losses, "spent": spent}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned. The time between the two does not count as training."""
        self.rows, self.seconds, self.losses = state["rows"], state["seconds"], state["losses"]
        self.since = time.monotonic() - state.get("spent", 0.0)  # checkpoints of earlier versions do not have it
