"""What a machine or a container lets a process use, and the peak memory of a piece of work."""

from __future__ import annotations

import math
import mmap
import os
import platform
import re
import sys
from pathlib import Path

import pytest
import torch

from poscli.system import device, memory
from poscli.system.device import cpu_has_bfloat16, device_of, quota_of_container, usable_cores
from poscli.system.errors import UsageError
from poscli.system.memory import Peak, free_memory, free_of_container, in_words, peak_memory_mb, unaffordable

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GIB = 2**30
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def touch(mebibytes: int) -> None:
    """Take fresh memory from the system, write to all of it, and give it back; no allocator stands in between."""
    with mmap.mmap(-1, mebibytes * 2**20) as memory:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1


@on_linux
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
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
    ],
)
def test_a_container_s_share_of_the_processors_counts(files: dict[str, str], processors: float, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert quota_of_container(tmp_path) == processors


@pytest.mark.parametrize(
    ("limit", "used", "statistics"),
    [
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ],
)
def test_a_container_s_memory_counts(limit: str, used: str, statistics: str, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("1000\n")
    (tmp_path / used).write_text("700\n")
    (tmp_path / statistics).write_text("anon 600\ninactive_file 50 and more\nactive_file 50\n")
    assert free_of_container(tmp_path, tmp_path / "none") == 350
    (tmp_path / limit).write_text("max\n")
    assert free_of_container(tmp_path, tmp_path / "none") == math.inf
    assert free_of_container(tmp_path / "none") == math.inf


@pytest.mark.parametrize(
    ("top", "files", "own"),
    [
        ("", ("memory.max", "memory.current", "memory.stat"), "0::/slurm/job_1/step_0/task_0\n"),
        (
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
            "4:cpu:/\n9:memory:/slurm/job_1/step_0/task_0\n0::/\n",
        ),
    ],
)
def test_limits_of_groups_above_that_of_the_process_count(
    top: str, files: tuple[str, str, str], own: str, tmp_path: Path
) -> None:
    """Slurm limits the step or the job, and not the group of each task."""
    task = tmp_path / top / "slurm/job_1/step_0/task_0"
    task.mkdir(parents=True)
    for folder, limit in ((task, "max"), (task.parent, "2000"), (task.parents[1], "1000")):
        for name, content in zip(files, (limit, "700", "inactive_file 50"), strict=True):
            (folder / name).write_text(content)
    groups = tmp_path / "groups"
    groups.write_text(own)
    assert free_of_container(tmp_path, groups) == 350


@on_linux
def test_memory_is_what_the_kernel_says_in_bytes_and_mebibytes() -> None:
    """What is free may change by the work of others between two looks."""
    import resource

    free = int(re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())[0]) * 2**10
    assert free_memory(CPU) == pytest.approx(min(free, free_of_container()), rel=0.3)
    assert peak_memory_mb(CPU) * 2**20 == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10


def test_memory_of_a_gpu_is_that_of_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak of a piece of work is what it takes above what was in use before; what torch keeps for later is free."""
    reset: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 2**23))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * 2**20)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * 2**20 + 4)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5 * 2**20)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    with Peak(CUDA) as peak:
        assert (peak.mb, reset) == (0, [CUDA])
    assert (peak.mb, peak.of, peak_memory_mb(CUDA), free_memory(CUDA)) == (3, "case", 5, 7)


def test_work_is_affordable_up_to_nine_tenths_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 100.0 * GIB)
    assert unaffordable(0.9 * 100.0 * GIB, CPU) == ""
    assert unaffordable(90.1 * GIB, CPU) == "needs about 90.1 GiB, 100.0 GiB are free"
    sizes = {0: "0.0 GiB", 999 * GIB: "999.0 GiB", 1000 * GIB: "1.0 TiB", 999 * 2**50: "999.0 PiB"}
    assert {size: in_words(size) for size in sizes} == sizes
    assert in_words(1000 * 2**50) == "1,000 PiB or more"


# ---- devices and cores


def test_a_device_is_one_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus in (0, 1, 2):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert device_of("auto") == (CUDA if gpus else CPU)
        for number, name in enumerate(("cuda:0", "cuda:1", "cuda:2")):
            if number < gpus:
                assert (device_of(name), device_of("cuda")) == (torch.device(name), CUDA)
            else:
                with pytest.raises(UsageError, match=f"--device {name}: torch .* sees {gpus} CUDA devices; use cpu"):
                    device_of(name)
    for name, words in (("meta", "meta: poscli runs on cpu and cuda"), ("tpu", "'tpu' is no device; use auto, cpu")):
        with pytest.raises(UsageError, match=words):
            device_of(name)


def test_a_cpu_multiplies_bfloat16_if_it_lists_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, named in (("x86_64", {"avx512_bf16", "amx_bf16"}), ("aarch64", {"bf16"}), ("arm64", {"bf16"})):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        for flag in ("avx512_bf16", "amx_bf16", "bf16", "sse"):
            monkeypatch.setattr(device, "cpu_flags", lambda flag=flag: frozenset({flag, "other"}))
            assert cpu_has_bfloat16() is (flag in named)


def test_cores_are_those_of_the_affinity_and_of_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed, quota, cores in ((4, math.inf, 4), (4, 2.5, 2), (2, 3.5, 2), (1, 1.0, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, n=allowed: set(range(n)), raising=False)
        monkeypatch.setattr(device, "quota_of_container", lambda quota=quota: quota)
        assert usable_cores() == cores
