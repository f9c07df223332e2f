"""A trained run to inspect: its model, and windows of its own held-out text.

Shapes: B windows, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from poscli.model.load import load_trained
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.runs.select import select
from poscli.system.console import note
from poscli.system.errors import DataError, UsageError
from poscli.tasks import Task, open_task
from poscli.why.dilution import Call, calls_of_attention

WINDOWS = 4  # read of the held-out text
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Trained:
    """A complete run with its model, and the task that has its text."""

    run: Run
    model: Model
    task: Task
    _read: dict[int, list[Call]] = field(default_factory=dict)

    def windows(self, tokens: int) -> Tensor:
        """Windows `[B, T]` of held-out text: T is `tokens`, or half of it and so on, as the documents allow."""
        while not len(spans := self.task.text(tokens).tiles(tokens)) and tokens > 1:
            tokens //= 2
        chosen = spans[np.linspace(0, len(spans) - 1, min(WINDOWS, len(spans))).round().astype(int)]
        return torch.from_numpy(self.task.text(tokens).windows(chosen, tokens)[:, :-1])

    @torch.no_grad()
    def calls(self, tokens: int) -> list[Call]:
        """What the attention of every layer is called with on these windows; Unsupported if the model cannot."""
        if tokens not in self._read:
            self._read[tokens] = calls_of_attention(self.model, self.windows(tokens))
        return self._read[tokens]


def load(runs: Path, id_: str) -> Trained:
    """The newest complete run whose id begins with `id_`, on the CPU.

    UsageError if there is none, DataError if its text has changed since.
    """
    found = select(runs, [id_], [])
    complete = [run for run in found if run.status()["state"] == "complete"]
    if not complete:
        run = found[-1]
        state = run.status()["state"]
        why = "it has no trained weights to show" if state in ("diverged", "oom", "failed") else "finish it first"
        raise UsageError(f"--run {id_}: {run.id} is {state}, so {why}; `poscli ls runs` shows the complete ones")
    run = complete[-1]
    if len(complete) > 1:
        note(f"--run {id_} begins the ids of {len(complete)} complete runs; {run.id} is the newest")
    task = open_task(run.config.task, run.config.corpus, run.config.tokenizer)
    if task.fingerprint != run.fingerprint:
        raise DataError(
            f"{run.id} was trained on {run.config.corpus} with fingerprint {run.fingerprint}, which now has "
            f"{task.fingerprint}: its files or the Python version changed; restore them, or train again"
        )
    return Trained(run, load_trained(run, CPU), task)
