"""Whether the Triton kernels compute on this process's devices what they should.

A variant of the kernels is tried when it is first needed on a device, once per process: on a small random input of more
than one tile, against the formula in float64, gradients included. Nothing is kept on disk: a trial costs milliseconds
beside compiling the kernels, whose code the run then uses, and Triton caches that by source, version and device. A
failed trial switches the variant off; an error for lack of memory says nothing about a kernel and is raised.

B batch, T queries, S keys, H heads, D and E widths of queries and values.
"""

from __future__ import annotations

import math
import os
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from poscli.native.proof import first_difference
from poscli.system.device import device_name
from poscli.system.errors import PoscliError, one_line
from poscli.system.memory import is_out_of_memory

SWITCH = "POSCLI_TRITON"  # the environment variable that, set to 0, keeps the kernels from running
# Beside Triton's own errors: the driver and a launch raise RuntimeError, a missing C compiler or cache folder OSError,
# and a version of Triton, or a GPU, that the kernels do not fit the others.
ERRORS = (RuntimeError, OSError, ImportError, AssertionError, AttributeError, TypeError, ValueError)
LONGEST_CAUSE = 200  # characters; Triton's messages quote whole kernels
BATCH, HEADS = 2, 2
# Largest difference from the formula that is always allowed, as a share of the largest number: this many roundings.
ROUNDINGS = 64

_faults: dict[tuple[torch.device, Variant], str] = {}  # of every trial that was made; '' for a variant that is proven


@dataclass(frozen=True)
class Variant:
    """What decides the code that the kernels are compiled to."""

    dtype: torch.dtype
    width: int  # D, as the encoding returns queries and keys
    values: int  # E

    def __str__(self) -> str:
        values = f" and values of {self.values}" if self.values != self.width else ""
        return f"kernels in {str(self.dtype).removeprefix('torch.')} for {self.width} channels{values}"

    def fault(self, device: torch.device) -> str:
        """What differs from the formula on a device, '' if nothing; errors of compiling and launching pass through."""
        from poscli.attention.triton_kernels import flash, side_of_tiles

        side = side_of_tiles(max(self.width, self.values), self.dtype)
        inputs, upstream = self._inputs(queries=side + 9, keys=2 * side + 6)
        scale = self.width**-0.5

        def by_kernels(x: dict[str, Tensor]) -> Tensor:
            q, k, v, table = (y.to(device) for y in x.values())
            return flash(q, k, v, table, scale).cpu()

        def by_formula(x: dict[str, Tensor]) -> Tensor:
            apart = torch.arange(x["k"].shape[2])[-x["q"].shape[2] :, None] - torch.arange(x["k"].shape[2])
            s = x["q"] @ x["k"].mT * scale + x["table"][:, apart.clamp(min=0)]
            return s.masked_fill(apart < 0, -math.inf).softmax(-1).to(x["v"].dtype) @ x["v"]

        least = ROUNDINGS * torch.finfo(self.dtype).eps / 2
        return first_difference(by_kernels, by_formula, inputs, upstream, least=least)

    def _inputs(self, queries: int, keys: int) -> tuple[dict[str, Tensor], Tensor]:
        """Random queries, keys, values and table, and the gradient of the output."""
        draw = torch.Generator("cpu").manual_seed(1)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, device="cpu")

        inputs = {
            "q": random(BATCH, queries, HEADS, self.width).transpose(1, 2).to(self.dtype),
            "k": random(BATCH, keys, HEADS, self.width).transpose(1, 2).to(self.dtype),
            "v": random(BATCH, keys, HEADS, self.values).transpose(1, 2).to(self.dtype),
            "table": random(HEADS, keys),
        }
        return inputs, random(BATCH, HEADS, queries, self.values)


def examples(dtype: torch.dtype) -> list[Variant]:
    """Variants for usual widths of heads."""
    return [Variant(dtype, width, width) for width in (64, 128)]


class BrokenDevice(PoscliError):
    """A kernel left the device in a state in which nothing else can run."""


def unavailable() -> str:
    """Why no kernel can run in this process; '' if kernels can."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 switches it off"
    return "" if find_spec("triton") else "triton is not installed"


def trial_fault(variant: Variant, device: torch.device) -> str:
    """What a trial found wrong on a device, in one line that names both; '' if the variant is proven.

    Raises BrokenDevice if nothing runs on the device any more, and the error for lack of memory.
    """
    if device.type == "cuda" and device.index is None:  # `cuda` alone leaves the number to the moment
        device = torch.device("cuda", torch.cuda.current_device())
    key = device, variant
    if key not in _faults:
        _faults[key] = _tried(variant, device)
    return _faults[key]


def _tried(variant: Variant, device: torch.device) -> str:
    try:
        from triton.errors import TritonError
    except ImportError:  # old versions lack it
        TritonError = RuntimeError
    try:
        with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
            fault = variant.fault(device)
    except (*ERRORS, subprocess.CalledProcessError, TritonError) as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        cause = cause if len(cause) <= LONGEST_CAUSE else f"{cause[: LONGEST_CAUSE - 4]} ..."
        if is_out_of_memory(error):
            raise
        if "out of memory" in str(error):  # of the driver, at a launch
            raise torch.OutOfMemoryError(cause) from error
        _refuse_broken(device, variant, cause)
        fault = f"it fails with {one_line(cause)}"
    return fault and f"{variant} on {device_name(device)}: {fault}"


def _refuse_broken(device: torch.device, variant: Variant, cause: str) -> None:
    """BrokenDevice if a sum of ones cannot be computed: after some errors, no kernel of this process can run."""
    try:
        torch.ones(2, device=device).sum().item()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise BrokenDevice(
            f"{variant} broke {device_name(device)} for this process ({cause}); "
            f"set {SWITCH}=0 in the environment and run the command again"
        ) from error
