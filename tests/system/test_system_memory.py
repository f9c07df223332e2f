"""What a machine or a container lets a process use, and the peak memory of a piece of work."""

from __future__ import annotations

import math
import mmap
import sys
from pathlib import Path

import pytest
import torch

from poscli.system.device import quota_of_container
from poscli.system.memory import Peak, free_memory, free_of_container, unaffordable

CPU = torch.device("cpu")


def touch(mebibytes: int) -> None:
    """Take fresh memory from the system, write to all of it, and give it back; no allocator stands in between."""
    with mmap.mmap(-1, mebibytes * 2**20) as memory:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a peak counter that can be reset")
def test_a_peak_is_that_of_the_work_inside_alone() -> None:
    """It may be off by what the rest of the process takes and returns meanwhile: 30 MiB is far more than that."""
    touch(512)
    with Peak(CPU) as large:
        touch(256)
    with Peak(CPU) as small:
        touch(64)
    if large.of == "process":
        pytest.skip("this system does not let a process reset its peak")
    assert (large.of, small.of) == ("case", "case")
    assert large.mb == pytest.approx(256, abs=30)
    assert small.mb == pytest.approx(64, abs=30)


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({}, math.inf),
        ({"cpu.max": "250000 100000\n"}, 2.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
    ],
)
def test_a_container_s_share_of_the_processors_counts(files: dict[str, str], processors: float, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert quota_of_container(tmp_path) == processors


def test_a_container_s_memory_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 50\nactive_file 50\n")
    assert free_of_container(tmp_path) == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert free_of_container(tmp_path) == math.inf
    assert free_of_container(tmp_path / "none") == math.inf


def test_work_is_affordable_below_what_is_free_and_refused_above() -> None:
    assert unaffordable(1e-3 * free_memory(CPU), CPU) == ""
    assert "GiB are free" in unaffordable(2 * free_memory(CPU), CPU)
