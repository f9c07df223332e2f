"""Tensors of which each rank holds some rows, as FSDP2 leaves them (DTensor), and the same tensors whole."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part of the tensor only."""
    return hasattr(tensor, "full_tensor")  # without an import of DTensor, which takes a second


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor, on every rank, which all must ask for."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def sharded_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, as every rank has it, sharded like a parameter of its shape; as it is if that one is whole."""
    if not is_sharded(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    like = cast(Any, parameter)
    return distribute_tensor(tensor.to(parameter.device), like.device_mesh, like.placements, src_data_rank=None)
