"""The compiled kernels of this machine, for tests of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from poscli.native import library, why_not

UNIT = 2.0**-24  # of rounding of float32
REAL = "" if (loaded := library()) is None else loaded._name  # the file of the kernels of this machine
needs_kernels = pytest.mark.skipif(library() is None, reason=f"no compiled kernels: {why_not()}")


def kernels() -> ctypes.CDLL:
    loaded = library()
    assert loaded is not None
    return loaded


def randoms(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=draw).requires_grad_() for shape in shapes]


class Wrong:
    """The real library, but for one kernel, whose arguments are changed before the call."""

    def __init__(self, name: str, fault: Callable) -> None:
        self.name, self.fault = name, fault

    def __getattr__(self, name: str) -> Callable:
        real = getattr(kernels(), name)
        return (lambda *arguments: self.fault(real, *arguments)) if name == self.name else real
