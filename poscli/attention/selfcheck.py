"""What trials of the Triton kernels found on the devices of this process.

A variant is tried when it is first needed on a device, once per process. Nothing is kept on disk: a trial costs
milliseconds beside compiling the kernels, whose code the run then uses, and Triton caches that by source, version and
device. A failed trial switches the variant off; an error for lack of memory says nothing about a kernel and is raised.
"""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from typing import Protocol

import torch

from poscli.system.device import device_name
from poscli.system.errors import PoscliError, one_line
from poscli.system.memory import is_out_of_memory

SWITCH = "POSCLI_TRITON"  # the environment variable that, set to 0, keeps the kernels from running
# Beside Triton's own errors: the driver and a launch raise RuntimeError, a missing C compiler or cache folder OSError,
# and a version of Triton, or a GPU, that the kernels do not fit the others.
ERRORS = (RuntimeError, OSError, ImportError, AssertionError, AttributeError, TypeError, ValueError)
LONGEST_CAUSE = 200  # characters; Triton's messages quote whole kernels

_faults: dict[tuple[torch.device, Trial], str] = {}  # of every trial that was made; '' for a variant that is proven


class Trial(Protocol):
    """A comparison of compiled kernels with the formula; its text says which kernels."""

    def __hash__(self) -> int: ...

    def fault(self, device: torch.device) -> str:
        """What is wrong on a device, '' if nothing is. Errors of the compiler and of the launch pass through."""


class BrokenDevice(PoscliError):
    """A kernel left the device in a state in which nothing else can run."""


def unavailable() -> str:
    """Why no kernel can run in this process; '' if kernels can."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 switches it off"
    return "" if find_spec("triton") else "triton is not installed"


def fault(trial: Trial, device: torch.device) -> str:
    """What a trial found wrong on a device, in one line that names both; '' if the variant is proven.

    Raises BrokenDevice if nothing runs on the device any more, and the error for lack of memory.
    """
    key = _indexed(device), trial
    if key not in _faults:
        _faults[key] = _tried(trial, key[0])
    return _faults[key]


def _tried(trial: Trial, device: torch.device) -> str:
    try:
        with torch.inference_mode(False), torch.autocast(device.type, enabled=False):
            found = trial.fault(device)
    except (*ERRORS, subprocess.CalledProcessError, _triton_error()) as error:
        cause = f"{type(error).__name__}: {error}"
        if is_out_of_memory(error):
            raise
        if "out of memory" in str(error):  # of the driver, at a launch
            raise torch.OutOfMemoryError(cause) from error
        _refuse_broken(device, trial, cause)
        found = f"it fails with {one_line(_shortened(cause))}"
    return found and f"{trial} on {device_name(device)}: {found}"


def _triton_error() -> type[Exception]:
    """The base class of Triton's errors, which old versions lack."""
    try:
        from triton.errors import TritonError
    except ImportError:
        return RuntimeError
    return TritonError


def _refuse_broken(device: torch.device, trial: Trial, cause: str) -> None:
    """BrokenDevice if a sum of ones cannot be computed: after some errors, no kernel of this process can run."""
    try:
        torch.ones(2, device=device).sum().item()
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise BrokenDevice(
            f"{trial} broke {device_name(device)} for this process ({_shortened(cause)}); "
            f"set {SWITCH}=0 in the environment and run the command again"
        ) from error


def _shortened(cause: str) -> str:
    words = " ".join(cause.split())
    return words if len(words) <= LONGEST_CAUSE else f"{words[: LONGEST_CAUSE - 4]} ..."


def _indexed(device: torch.device) -> torch.device:
    """The device with its number, which `cuda` alone leaves to the moment."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())
