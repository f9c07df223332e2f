"""What all cases of a bench share: settings, device, amounts of work, and the values that say where it ran."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

import poscli
from poscli.bench.settings import BenchSettings
from poscli.bench.timing import SAMPLE_SECONDS, Pace, Timing, Work, in_turns
from poscli.evaluation.measure import PASS_TOKENS
from poscli.system.device import device_name
from poscli.system.provenance import commit, cpu

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Amounts of work that no option sets: users get those of their device, tests give small ones."""

    products: tuple[int, ...]  # sides of the square matrices that are multiplied
    copied_bytes: int  # far more than caches hold
    pass_tokens: int = PASS_TOKENS
    sample_seconds: float = SAMPLE_SECONDS


SIZES = {"cpu": Sizes((512, 1024, 1536), 2**28), "cuda": Sizes((2048, 4096, 8192), 2**31)}


@dataclass(frozen=True)
class Conditions:
    """Settings, device and sizes of a bench; `check` is called between runs and raises to stop."""

    settings: BenchSettings
    device: torch.device
    sizes: Sizes
    check: Work

    def time(self, works: Sequence[Work]) -> list[Timing]:
        """Time functions in turns, at the pace that the settings ask for."""
        pace = Pace(self.settings.repeats, self.settings.seconds, self.sizes.sample_seconds)
        return in_turns(works, pace, self.device, self.check)

    @cached_property
    def where(self) -> Row:
        """The columns of every row that say on what machine and with what software it was measured."""
        return {
            "device": device_name(self.device),
            "machine": cpu(),
            "cores": os.cpu_count() or 0,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "poscli": poscli.__version__,
            "commit": commit(),
        }
