"""The processor cores that this process may use, and how many threads a piece of work takes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# The files of a container's share of the processors: cgroup version 2 (quota and period in one), version 1.
QUOTA_V2, QUOTA_V1, PERIOD_V1 = "cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def usable_cores() -> int:
    """The number of cores that this process may use: of its affinity and of its container's quota, the smaller."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min(allowed, quota_of_container())))


def quota_of_container(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Processors that the container may use on average; infinite where there is no limit."""
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
