"""What goes from rank to rank around a checkpoint, which the first rank writes and reads for all.

Only the first rank needs the folder of the runs, so that machines need no disk in common.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from poscli.model.cache import PREFIX, Memory
from poscli.runs.checkpoint import Checkpoint
from poscli.system.ranks import exchanged, gathered, lost_ranks_named, ranks


def from_first(last: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint that the first rank has read, on all ranks; None if it has found none."""
    if ranks().count == 1:
        return last
    content: dict[str, Any] = {}
    if last is not None:
        shapes = [{name: _described(x) for name, x in tensors.items()} for tensors in (last.model, last.optim)]
        content = {"shapes": shapes, "state": last.state}
    content = json.loads(exchanged(json.dumps(content).encode())[0])
    if not content:
        return None
    own = (last.model, last.optim) if last else ({}, {})
    model, optim = (
        {name: _broadcast(mine.get(name), *described) for name, described in shapes.items()}
        for mine, shapes in zip(own, content["shapes"], strict=True)
    )
    return Checkpoint(model, optim, content["state"])


def gathered_memory(memory: Memory) -> dict[str, Tensor]:
    """The tensors of a memory with the windows of all ranks, in the order of the batch."""
    if ranks().count == 1:
        return memory.tensors()
    tensors = {name: gathered(x.cpu().numpy()) for name, x in memory.tensors().items()}
    return {name: torch.cat([torch.from_numpy(part) for part in parts]) for name, parts in tensors.items()}


def own_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a memory in a checkpoint, with the windows of this rank only."""
    me = ranks()
    return {name: x.chunk(me.count)[me.rank] for name, x in tensors.items() if name.startswith(PREFIX)}


def _described(tensor: Tensor) -> tuple[list[int], str]:
    return list(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _broadcast(tensor: Tensor | None, shape: list[int], dtype: str) -> Tensor:
    """A tensor of the first rank, on all of them."""
    import torch.distributed as dist

    if tensor is None:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    content = tensor.contiguous().reshape(-1).view(torch.uint8)  # bytes: gloo does not know every dtype
    with lost_ranks_named():
        dist.broadcast(content, src=0)
    return content.view(tensor.dtype).reshape(shape)
