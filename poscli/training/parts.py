"""The parts of a step's batch: which windows a rank processes, how many at once, and what each part weighs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poscli.tasks import Batch
from poscli.tasks.task import IGNORED


@dataclass(frozen=True, eq=False)
class Part:
    """Some windows of a batch, and the share of the batch's targets that they have: the weight of their mean loss."""

    batch: Batch
    share: float

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets on a device.

        Where no target counts, the mean loss would not be a number. Then all targets are given, and the part weighs 0,
        so that every rank has a gradient to contribute.
        """
        inputs, targets = self.batch.tensors(device)
        return inputs, targets if self.share else targets.masked_fill(targets == IGNORED, 0)


def parts_of(batch: Batch, rank: int, ranks: int, accumulate: int) -> list[Part]:
    """The parts of a rank, with the same number of windows each: rank 0 has the first ones, rank 1 the next, ..."""
    windows = len(batch.tokens) // (ranks * accumulate)
    assert windows * ranks * accumulate == len(batch.tokens)
    counted = batch.tokens[:, 1:].size if batch.counted is None else int(batch.counted.sum())
    first = rank * accumulate * windows
    return [
        _part(batch, slice(at, at + windows), counted) for at in range(first, first + accumulate * windows, windows)
    ]


def _part(batch: Batch, rows: slice, counted: int) -> Part:
    some = None if batch.counted is None else batch.counted[rows]
    own = batch.tokens[rows, 1:].size if some is None else int(some.sum())
    return Part(Batch(batch.tokens[rows], some), own / counted)
