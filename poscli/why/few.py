"""A few windows of a sample, for analyses in which every window is expensive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from poscli.why.sample import Sample


def few(sample: Sample, windows: int) -> tuple[Sample, NDArray[np.int64]]:
    """A sample of at most `windows` windows, spread evenly over the whole one, and their indices in the whole one."""
    count = min(windows, len(sample.spans))
    chosen = np.linspace(0, len(sample.spans) - 1, count).round().astype(np.int64)
    return replace(sample, spans=sample.spans[chosen]), chosen
