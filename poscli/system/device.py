"""The device a model runs on, the precision that is fastest there, and the cores that this process may use."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from poscli.system.errors import UsageError


def device_of(name: str) -> torch.device:
    """The device that a name stands for; `auto` is CUDA if there is a GPU, else the CPU.

    Raises UsageError if the name is unknown or this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name!r} is no device; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"--device {name}: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices; use cpu"
        )
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: poscli runs on cpu and cuda")
    return device


def places_of_layers(device: torch.device) -> tuple[torch.device, ...]:
    """The devices over which a model may be spread that is too large for the given one, in the order of their use.

    For "cuda", which names no GPU, they are all GPUs and then the CPU, if there are two GPUs or more and the package
    accelerate is installed; otherwise the given device alone.
    """
    gpus = torch.cuda.device_count() if device == torch.device("cuda") and find_spec("accelerate") else 1
    return (device,) if gpus < 2 else (*(torch.device("cuda", n) for n in range(gpus)), torch.device("cpu"))


def device_name(device: torch.device) -> str:
    """`cpu`, or the name of the GPU."""
    return "cpu" if device.type == "cpu" else f"cuda:{torch.cuda.get_device_name(device)}"


# The smallest model width at which `auto` chooses bfloat16 on a CPU that multiplies bfloat16 natively. A training step
# was measured 1.65 times faster at width 768, 1.57 at 384, 1.45 at 256, 1.28 at 128 and 1.12 at 64 (docs/BENCH.md).
# Encodings are compared at widths of 128 and below, where freedom from bfloat16's rounding is worth more than that.
SMALLEST_BFLOAT16_WIDTH = 256


def precision_name(precision: str, device: torch.device, width: int) -> str:
    """The precision to train in: `precision`, or for `auto` bfloat16 where it is much faster, else float32."""
    if precision != "auto":
        if precision not in ("float32", "bfloat16", "float16"):
            raise UsageError(f"--precision {precision!r}: choose auto, float32, bfloat16 or float16")
        return precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if width >= SMALLEST_BFLOAT16_WIDTH and cpu_has_bfloat16() else "float32"


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16 numbers."""
    if platform.machine() in ("arm64", "aarch64"):
        return "bf16" in cpu_flags()
    return bool(cpu_flags() & {"avx512_bf16", "amx_bf16"})


@cache
def cpu_flags() -> frozenset[str]:
    """The names of the instruction sets of this CPU, as Linux lists them; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return frozenset()
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return frozenset(flags.split())


# The files of a container's share of the processors: cgroup version 2 (quota and period in one), version 1.
QUOTA_V2, QUOTA_V1, PERIOD_V1 = "cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def usable_cores() -> int:
    """The number of cores that this process may use: of its affinity and of its container's quota, the smaller."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.floor(min(allowed, quota_of_container()))


def quota_of_container(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Processors that the container may use on average, at least 1; infinite where there is no limit."""
    try:
        quota, period = (root / QUOTA_V2).read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = (root / QUOTA_V1).read_text().strip(), (root / PERIOD_V1).read_text().strip()
        except OSError:
            return math.inf
    return max(1.0, int(quota) / int(period)) if quota.isdigit() else math.inf


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads in the block; None leaves their number as it is."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


if "OMP_NUM_THREADS" not in os.environ and usable_cores() < torch.get_num_threads():
    torch.set_num_threads(usable_cores())  # torch counts the cores of the machine, whatever the container may use
