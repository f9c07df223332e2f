"""Memory of the machine and of this process: what is free, the peak of a piece of work, and out-of-memory errors."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch

MIB = 2**20  # bytes
USABLE = 0.9  # share of the free memory that one piece of work may take: estimates are rough, and others need memory
NO_MEMORY = ("allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")  # in messages of errors
# Files with the limit, the use and the statistics of a group of processes: cgroup version 2, version 1.
V2 = ("memory.max", "memory.current", "memory.stat")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory so far in MiB: of torch's allocator on CUDA, of the process on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MIB if sys.platform == "darwin" else 2**10)


KEPT_BYTES, LARGEST_KEPT = 2**30, 2**25  # of freed memory, and of one tensor; glibc takes no more for the latter
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as in malloc.h


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed tensors for the next ones, up to `KEPT_BYTES`.

    By default it returns tensors of megabytes to the system, which clears each page again when the next step asks for
    it: 2,000 to 10,000 page faults in a training step of the preset `tiny`. Does nothing where there is no glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that torch got no memory; on CPU, and of CUDA's libraries, only the message says so."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in NO_MEMORY)


def free_memory(device: torch.device) -> float:
    """Free memory of a device in bytes; on CPU a container's limit counts where it is lower than the system's."""
    if device.type == "cuda":  # torch keeps what is freed for its next tensors
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + kept)
    return min(_free_of_system(), free_of_container())


def unaffordable(size: float, *devices: torch.device) -> str:
    """Why work that needs `size` bytes should not be started on devices that share it; empty if it fits."""
    free = sum(map(free_memory, devices))
    if size <= USABLE * free:
        return ""
    return f"needs about {in_words(size)}, {in_words(free)} are free"


def in_words(size: float) -> str:
    """A number of bytes for people.

    >>> in_words(3 * 2**28), in_words(2.0**43), in_words(1e30)
    ('0.8 GiB', '8.0 TiB', '1,000 PiB or more')
    """
    for unit, name in ((2**30, "GiB"), (2**40, "TiB"), (2**50, "PiB")):
        if size < 1000 * unit:
            return f"{size / unit:.1f} {name}"
    return "1,000 PiB or more"


class Peak:
    """Peak memory of the work inside a `with` block, in MiB above what was in use before it.

    `of` is usually "case". If the system cannot reset its counter of the peak, as outside Linux, `of` is "process" and
    `mb` is the peak of the process so far.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.mb, self.of = device, 0.0, "case"
        self._before = 0.0

    def __enter__(self) -> Peak:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device) / MIB
        elif _reset_peak():
            self._before = _process_mb("VmRSS")
        else:
            self.of = "process"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.type == "cuda" or self.of == "process":
            self.mb = peak_memory_mb(self.device) - self._before
        else:
            self.mb = max(0.0, _process_mb("VmHWM") - self._before)


def _reset_peak() -> bool:
    """Reset the kernel's record of this process's peak memory; false where that is impossible.

    Freed memory is returned to the system first: the allocator would otherwise reuse it, and the peak would not rise.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:  # glibc only
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or a container that forbids it
        return False
    return True


def _process_mb(field: str) -> float:
    """A field of /proc/self/status in MiB."""
    return _number_after(field, Path("/proc/self/status")) / 2**10


def _free_of_system() -> float:
    """Bytes that the system can give to processes; outside Linux, all of its memory."""
    try:
        return _number_after("MemAvailable", Path("/proc/meminfo")) * 2.0**10
    except OSError:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def free_of_container(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Bytes left below the limits of a container or of a batch system; file cache that can be reclaimed counts as free.

    `own` names the groups of this process. Slurm sets its limit in one above them. Infinite where there is no limit.
    """
    groups: dict[str, str] = {}
    with suppress(OSError):
        groups = {names: path for _, names, path in (line.split(":", 2) for line in own.read_text().splitlines())}
    left = float("inf")
    for controller, top, files in (("", root, V2), ("memory", root / "memory", V1)):
        group = top / groups.get(controller, "").lstrip("/")
        for folder in [each for each in (group, *group.parents) if each.is_relative_to(top)]:
            with suppress(OSError):
                limit, used, cache = (folder / name for name in files)
                if (most := limit.read_text().strip()).isdigit():
                    left = min(left, float(int(most) - int(used.read_text()) + _number_after("inactive_file", cache)))
    return left


def _number_after(name: str, path: Path) -> int:
    """The number after a name in a file of lines `name: number` or `name number`; OSError if the name is missing."""
    for line in path.read_text().splitlines():
        key, _, value = line.replace(":", " ").partition(" ")
        if key == name:
            return int(value.split()[0])
    raise OSError(f"{path} has no {name}")
