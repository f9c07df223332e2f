"""What a result was made with: versions, machine, source tree."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

import poscli
from poscli.errors import UsageError


def device_of(name: str) -> torch.device:
    """The device of a name; `auto` is CUDA where there is one. UsageError if it is not here."""
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


def device_name(device: torch.device) -> str:
    """`cpu`, or the name of the GPU."""
    return "cpu" if device.type == "cpu" else f"cuda:{torch.cuda.get_device_name(device)}"


# Matrix products of bfloat16 pay on CPU, given cores with bfloat16 dot products: a training step ran 1.65 times faster
# at width 768, 1.57 at 384, 1.45 at 256, 1.28 at 128 and 1.12 at 64 (docs/BENCH.md). At 128 and below, where encodings
# are compared, that is given up for numbers without a rounding of their own.
BFLOAT16_WIDTH = 256


def precision_name(asked: str, device: torch.device, width: int) -> str:
    """The precision to train in: the one asked for, or the fastest one measured for a device and a width."""
    if asked != "auto":
        if asked not in ("float32", "bfloat16", "float16"):
            raise UsageError(f"--precision {asked!r}: choose auto, float32, bfloat16 or float16")
        return asked
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if width >= BFLOAT16_WIDTH and cpu_has_bfloat16() else "float32"


def cpu_has_bfloat16() -> bool:
    """Does this CPU multiply bfloat16 natively?"""
    if platform.machine() in ("arm64", "aarch64"):
        return "bf16" in _cpu_flags()
    return bool(_cpu_flags() & {"avx512_bf16", "amx_bf16"})


@cache
def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return frozenset()
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return frozenset(flags.split())


@cache
def commit() -> str:
    """The commit of the source tree that runs, `+` if it was changed; empty for an installed package."""
    root = Path(poscli.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        head = _git(root, "rev-parse", "--short=10", "HEAD")
        return head + (
            "+" if head and _git(root, "status", "--porcelain", "--untracked-files=no", "--", "poscli") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def describe(device: torch.device) -> dict[str, Any]:
    """Versions and machine, for env.json and `poscli doctor`."""
    return {
        "poscli": poscli.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": device_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_bfloat16": cpu_has_bfloat16(),
        "command": " ".join(["poscli", *sys.argv[1:]]),
    }


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory so far, MiB: of torch's allocator on CUDA, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def is_out_of_memory(error: BaseException) -> bool:
    """Did torch fail to get memory? On CPU it says so in words only."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "allocate memory" in str(error)
