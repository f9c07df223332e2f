"""How the ranks share a model: each has all of it (DDP), or a part of every matrix (FSDP2).

Gradients are summed over the ranks, not averaged: every part of the batch has its weight already, so that the sum is
the gradient of the whole batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from poscli.model.cache import Memory
from poscli.model.transformer import Model
from poscli.system.ranks import ranks


class Alone:
    """One rank: the gradient is what its own backward passes leave."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def loss(self, inputs: Tensor, targets: Tensor, memory: Memory | None) -> Tensor:
        """The mean loss of a part of the batch."""
        return self.model.loss(inputs, targets, memory)

    def part(self, *, last: bool) -> AbstractContextManager[None]:
        """The block of a part's forward and backward pass. After the last one, the gradient is that of all ranks."""
        return nullcontext()


class Replicated(Alone):
    """Several ranks with the whole model each: torch's DistributedDataParallel."""

    def __init__(self, model: Model) -> None:
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(model)
        # Buffers are functions of the step and stay as they are; the name of the option has changed with torch 2.13.
        names = inspect.signature(DistributedDataParallel.__init__).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        options: dict[str, Any] = {buffers: False, "find_unused_parameters": True}  # an encoding may have unused ones
        self.wrapped = DistributedDataParallel(_Loss(model), **options)
        self.wrapped.register_comm_hook(None, lambda _, bucket: _summed(bucket.buffer()))

    def loss(self, inputs: Tensor, targets: Tensor, memory: Memory | None) -> Tensor:
        return self.wrapped(inputs, targets, memory)

    def part(self, *, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.wrapped.no_sync()


class Sharded(Alone):
    """Several ranks that divide every matrix, its gradient and its state of the optimizer among them: torch's FSDP2.

    The parameters of the encodings stay whole: they are few, and layers may share them.
    """

    def __init__(self, model: Model) -> None:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        super().__init__(model)
        self.encoding = [p for p in model.encoding_parameters() if p.requires_grad]
        kept: set[nn.Parameter] = set(model.encoding_parameters())
        for layer in model.layers:
            fully_shard(layer, ignored_params=kept)
        self.wrapped: Any = fully_shard(_Loss(model), ignored_params=kept)
        for module in (self.wrapped, *model.layers):
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # other reductions exist in NCCL only

    def loss(self, inputs: Tensor, targets: Tensor, memory: Memory | None) -> Tensor:
        return self.wrapped(inputs, targets, memory)

    @contextmanager
    def part(self, *, last: bool) -> Iterator[None]:
        self.wrapped.set_requires_gradient_sync(last)
        yield
        if last:
            self._sum_encodings()

    def _sum_encodings(self) -> None:
        """Sum the gradients of the encodings' parameters over the ranks; some may have a gradient on no rank."""
        import torch.distributed as dist

        known = torch.tensor([float(p.grad is not None) for p in self.encoding], device=self.model.device)
        if not len(known):
            return
        dist.all_reduce(known)
        used = [p for p, count in zip(self.encoding, known.tolist(), strict=True) if count]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in used]
        flat = torch.cat([grad.flatten() for grad in grads]) if grads else known
        dist.all_reduce(flat)
        for parameter, grad in zip(used, flat.split([g.numel() for g in grads]) if grads else [], strict=True):
            parameter.grad = grad.view_as(parameter)


def replicas(model: Model, *, sharded: bool) -> Alone:
    """The way in which the ranks of this process share a model."""
    if ranks().count == 1:
        return Alone(model)
    return Sharded(model) if sharded else Replicated(model)


class _Loss(nn.Module):
    """A model whose forward pass is the loss of training, as DDP and FSDP need it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor, memory: Memory | None) -> Tensor:
        return self.model.loss(inputs, targets, memory)


def _summed(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """The sum of a bucket of gradients over the ranks; DDP itself would divide it by their number."""
    import torch.distributed as dist

    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])
