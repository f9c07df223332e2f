"""What the ranks of one training share: the windows of a batch, the sum of the gradients, and the checkpoints.

Only the first rank needs the folder of the runs: it reads and writes checkpoints for all, so that machines need no disk
in common.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from poscli.model.cache import PREFIX, Memory
from poscli.model.transformer import Model
from poscli.runs.checkpoint import Checkpoint
from poscli.system.ranks import exchanged, lost_ranks_named, ranks
from poscli.tasks import Batch
from poscli.tasks.task import IGNORED


@dataclass(frozen=True, eq=False)
class BatchPart:
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


def parts_of(batch: Batch, rank: int, ranks: int, accumulate: int) -> list[BatchPart]:
    """The parts of a rank, with the same number of windows each: rank 0 has the first ones, rank 1 the next, ..."""
    windows = len(batch.tokens) // (ranks * accumulate)
    assert windows * ranks * accumulate == len(batch.tokens)
    parts = []
    for number in range(rank * accumulate, (rank + 1) * accumulate):
        rows = slice(number * windows, (number + 1) * windows)
        part = Batch(batch.tokens[rows], None if batch.counted is None else batch.counted[rows])
        parts.append(BatchPart(part, _targets(part) / _targets(batch)))
    return parts


def _targets(batch: Batch) -> int:
    """The number of targets in a batch that count."""
    return batch.tokens[:, 1:].size if batch.counted is None else int(batch.counted.sum())


class Loss(nn.Module):
    """A model whose forward pass is the loss of training, as DistributedDataParallel needs it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor, memory: Memory | None) -> Tensor:
        return self.model.loss(inputs, targets, memory)


def replicated_loss(model: Model) -> DistributedDataParallel:
    """`model.loss`, whose backward pass leaves the sum of the gradients of all ranks; `no_sync()` puts that off.

    A sum and not a mean, because every part of the batch has its weight already. The model must hold the weights that
    training starts from: all ranks take those of the first one.
    """
    # Buffers are functions of the step and stay as they are; the name of the option has changed with torch 2.13.
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
    options: dict[str, Any] = {buffers: False, "find_unused_parameters": True}  # an encoding may have unused ones
    replicated = DistributedDataParallel(Loss(model), **options)
    replicated.register_comm_hook(None, lambda _, bucket: _summed(bucket.buffer()))
    return replicated


def _summed(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """The sum of a bucket of gradients over the ranks; torch itself would divide it by their number."""
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def from_first(last: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint that the first rank has read, on all ranks; None if it has none."""
    if ranks().count == 1:
        return last
    values = [last]
    with lost_ranks_named():
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values[0]


def gathered_memory(memory: Memory) -> dict[str, Tensor]:
    """The tensors of a memory with the windows of all ranks, in the order of the batch."""
    tensors = {name: exchanged(x.cpu().numpy()) for name, x in memory.tensors().items()}
    return {name: torch.cat([torch.from_numpy(part) for part in parts]) for name, parts in tensors.items()}


def own_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a memory in a checkpoint, with the windows of this rank only."""
    me = ranks()
    return {name: x.chunk(me.count)[me.rank] for name, x in tensors.items() if name.startswith(PREFIX)}
