"""How the work of a measurement is divided among the ranks, and how they end each round of passes together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from poscli.model.context_parallel import boundaries
from poscli.system.ranks import exchanged, gathered, numbers_of_all, ranks


@dataclass(frozen=True)
class PassOutcome:
    """How a pass ended on one rank: `ok`, or another status with its reason."""

    status: str = "ok"  # ok, unsupported, oom, stopped (by the signal `code`), failed (with the exit code `code`)
    reason: str = ""
    code: int = 0


class Ended(Exception):
    """A pass did not end well on some rank, and all ranks raise its outcome."""

    def __init__(self, outcome: PassOutcome, rank: int) -> None:
        super().__init__(outcome.reason)
        self.outcome, self.rank = outcome, rank


def settle(own: PassOutcome) -> None:
    """Tell the other ranks how this one's pass ended; raises Ended on all ranks if one of them did not end well."""
    if not any(bad for (bad,) in numbers_of_all([float(own.status != "ok")])):
        return
    for rank, said in enumerate(exchanged(json.dumps(asdict(own)).encode())):
        if (outcome := PassOutcome(**json.loads(said))).status != "ok":
            raise Ended(outcome, rank)


@dataclass(frozen=True)
class Division:
    """The losses of a measurement, `[windows, length]`, divided among the ranks.

    A pass reads `step` windows. The ranks take passes in turn, or, if `context_parallel`, each rank reads a part of the
    tokens of every window.
    """

    windows: int
    length: int
    step: int
    context_parallel: bool

    def rounds(self) -> Iterator[tuple[slice, slice]]:
        """The windows of each round, in which every rank makes one pass, and those of this rank among them."""
        at_once = self.step if self.context_parallel else self.step * ranks().count
        for first in range(0, self.windows, at_once):
            end = min(first + at_once, self.windows)
            start = min(first + (0 if self.context_parallel else self.step * ranks().rank), end)
            yield slice(first, end), slice(start, min(start + self.step, end))

    def rows(self, rank: int) -> NDArray[np.int64]:
        """The windows that a rank reads, in order."""
        every = np.arange(self.windows)
        return every if self.context_parallel else every[every // self.step % ranks().count == rank]

    def columns(self, rank: int) -> slice:
        """The tokens of its windows whose losses a rank computes."""
        if not self.context_parallel:
            return slice(0, self.length)
        ends = boundaries(self.length, ranks().count)
        return slice(ends[rank], ends[rank + 1])

    def empty(self) -> NDArray[np.float32]:
        """Room for the losses of this rank."""
        tokens = self.columns(ranks().rank)
        return np.empty((len(self.rows(ranks().rank)), tokens.stop - tokens.start), np.float32)

    def joined(self, own: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
        """The measurements of all ranks by name, `[windows, length]`; rank 0 makes a pass of every measurement."""
        if ranks().count == 1:
            return own
        whole = {}
        for name in json.loads(exchanged(json.dumps(list(own)).encode())[0]):
            whole[name] = np.empty((self.windows, self.length), np.float32)
            for rank, part in enumerate(gathered(own.get(name, self.empty()))):
                whole[name][self.rows(rank), self.columns(rank)] = part
        return whole
