"""Memory of the machine and of a process: what is free, and the peak of a piece of work."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from poscli.system.memory import Peak, available, free_of_container, unaffordable

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a peak counter that can be reset")
def test_a_peak_is_that_of_the_work_inside_alone() -> None:
    torch.ones(2**26).sum()  # 256 MiB, freed before
    with Peak(CPU) as peak:
        torch.ones(2**24).sum()
    assert peak.of == "case"
    assert 63 < peak.mb < 80
    with Peak(CPU) as peak:
        torch.ones(2**20).sum()
    assert 3 < peak.mb < 20


def test_a_container_s_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 50\nactive_file 50\n")
    assert free_of_container(tmp_path) == 350
    (tmp_path / "memory.max").write_text("max\n")
    assert free_of_container(tmp_path) == math.inf
    assert free_of_container(tmp_path / "none") == math.inf


def test_work_is_affordable_below_what_is_free_and_refused_above() -> None:
    assert unaffordable(1e-3 * available(CPU), CPU) == ""
    assert "GiB are free" in unaffordable(2 * available(CPU), CPU)
