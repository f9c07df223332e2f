"""What one case needs of the memory: estimated before it runs, measured while it does.

Both count what comes on top of what lies in memory before the case: activations and masks, not the weights.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from poscli.config import ModelConfig
from poscli.encodings import TIERS
from poscli.environment import peak_memory_mb

MIB = 2**20
BLOCK_BYTES = 128 * MIB  # that an engine which works block by block holds at a time
SPARE = 0.9  # of what is free: the estimates are rough, and others want memory too
CGROUPS = (  # limit, use and statistics of a container: version 2, version 1
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


@dataclass(frozen=True)
class Needs:
    """What attention holds: score matrices [B, H, S, S] at once, those each layer keeps for a backward pass, bytes."""

    at_once: float = 0.0
    kept: float = 0.0
    buffer: float = 0.0


def needs(engine: str, blanks: frozenset[str], head_width: int) -> Needs:
    """Of an engine for the blanks that an encoding fills, as measured on CPU at 1024 tokens over the catalogue.

    The specification materialises everything, relative vectors pair by pair; block by block a forward pass holds the
    same at any length, but a backward pass remembers every block. Other engines are taken to work like the fused one.
    """
    vectors = len(blanks & {"relative_keys", "relative_queries", "relative_values"})
    rows = bool(blanks & {*TIERS["row"]})
    if engine == "reference":
        pairs, table = rows or bool(blanks & {*TIERS["pair"]}), "distance_bias" in blanks
        return Needs(
            at_once=4 + 2 * table + 8 * pairs + 1.5 * head_width * vectors,
            kept=2.5 + 1.5 * table + 5 * pairs + 1.2 * head_width * vectors,
        )
    materialises = "bias" in blanks or vectors > 0  # a term of every pair
    if engine == "blocks":
        return Needs(kept=2 + 6 * rows + 2 * materialises, buffer=BLOCK_BYTES)
    return Needs(kept=3 * materialises, buffer=BLOCK_BYTES * materialises)


def estimate(config: ModelConfig, vocab: int, needs: Needs, *, batch: int, length: int, training: bool) -> float:
    """Bytes that a forward pass, or a training step, takes at its peak: right within a factor of three.

    Scores at 4 bytes each, tokens with what a layer holds of them (all layers for a backward pass), and their logits.
    """
    layers = config.layers if training else 0
    scores = 4 * batch * config.heads * length**2 * (needs.at_once + layers * needs.kept)
    of_a_layer = (24 if training else 8) * config.width + (6 if training else 3) * config.mlp
    tokens = 4 * batch * length * (of_a_layer * max(1, layers) + vocab * (4 if training else 2))
    return scores + tokens + needs.buffer


def available(device: torch.device) -> float:
    """Bytes that are free on a device: what the system says, or a container's limit where that is lower."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return min(_free_of_the_system(), _free_of_the_container())


def unaffordable(bytes_: float, device: torch.device) -> str:
    """Why a case of this size is not tried; empty if it fits."""
    free = available(device)
    if bytes_ <= SPARE * free:
        return ""
    return f"needs about {bytes_ / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"


class Peak:
    """Peak memory of what runs inside a `with` block, in MiB above what was in memory before.

    `of` says of what: `case`, exactly that; or `process`, the peak of the process so far, where the system has no
    counter that can be reset (anything but Linux).
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.mb, self.of = device, 0.0, "case"
        self._before = 0.0

    def __enter__(self) -> Peak:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device) / MIB
        elif _reset_peak():
            self._before = _own("VmRSS")
        else:
            self.of = "process"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.type == "cuda" or self.of == "process":
            self.mb = peak_memory_mb(self.device) - self._before
        else:
            self.mb = max(0.0, _own("VmHWM") - self._before)


def _reset_peak() -> bool:
    """Give freed memory back to the system, or it would be used again unseen, then start the system's counter anew."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:  # glibc
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux, or a container that does not let it
        return False
    return True


def _own(field: str) -> float:
    """A field of /proc/self/status, MiB."""
    return _field(Path("/proc/self/status"), field) / 2**10


def _free_of_the_system() -> float:
    try:
        return _field(Path("/proc/meminfo"), "MemAvailable") * 2.0**10
    except OSError:  # not Linux: all there is
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _free_of_the_container(root: Path = Path("/sys/fs/cgroup")) -> float:
    """What is left of a container's limit, its reclaimable file cache included; infinite without one."""
    for limit, use, stat in CGROUPS:
        try:
            most, used = (root / limit).read_text().strip(), int((root / use).read_text())
            cache = _field(root / stat, "inactive_file")
        except OSError:
            continue
        if most.isdigit():
            return float(int(most) - used + cache)
    return float("inf")


def _field(path: Path, name: str) -> int:
    """The number after a name in one of the kernel's lists."""
    for line in path.read_text().splitlines():
        key, _, value = line.replace(":", " ").partition(" ")
        if key == name:
            return int(value.split()[0])
    raise OSError(f"{path} has no {name}")
