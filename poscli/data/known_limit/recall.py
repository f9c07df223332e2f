"""`recall(cues=16, values=4)`: every document gives each cue one value, and repeats it whenever the cue comes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from poscli.data.known_limit import SOURCES, Draw
from poscli.data.known_limit.pairs import Pairs


@SOURCES.register("recall")
class Recall(Pairs):
    """An answer costs nothing if the window shows an earlier answer to its cue, else log(values).

    A cue comes back after 2 * cues tokens on average: what a window of L tokens shows too rarely, a longer window shows
    nearly always.
    """

    summary = "every document gives each cue one value, to be repeated"

    def __init__(self, *, cues: int = 16, values: int = 4) -> None:
        for name, value in (("cues", cues), ("values", values)):
            if value < 2:
                raise ValueError(f"{name} must be 2 or more, got {value}")
        super().__init__(cues, values)

    def reply(self, cues: NDArray[np.int64], draw: Draw) -> NDArray[np.int64]:
        return draw.below(self.values, self.cues)[cues]

    def costs(self, uses_BN: NDArray[np.int64], repeats_BN: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.where(uses_BN > 0, 0.0, math.log(self.values))
