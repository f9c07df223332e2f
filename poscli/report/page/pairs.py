"""Every encoding of a section compared with every other one, with the statistics of `poscli compare`.

A page that can be re-based to any encoding needs all pairs. A difference and its interval change only their sign when
the two encodings are swapped, so pairs are kept once; words are kept for both orders, because Holm's correction counts
the comparisons with one baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from poscli.evaluation.plan import PAIRED
from poscli.report import comparison
from poscli.report.over_seeds import UnitLosses, Units
from poscli.report.pooling import LN2, sound
from poscli.runs.schema import FULL
from poscli.statistics.intervals import Case, holm, many_differences, smallest_p

BETTER, WORSE, NOISE, FEW, NOTHING = "b", "w", "n", "t", "-"  # the letters of `Pairs.words`
LETTERS = {
    comparison.BETTER: BETTER, comparison.WORSE: WORSE, comparison.WITHIN_NOISE: NOISE, comparison.TOO_FEW: FEW,
    comparison.NOT_COMPARED: NOTHING,
}  # fmt: skip

Array = NDArray[np.float64]
UNITS = 100_000  # differences reach the page as whole multiples of 1e-5, which are half as long in JSON


@dataclass(frozen=True, eq=False)
class Pairs:
    """Differences between N encodings at each of T lengths, in bits per byte.

    `numbers` `[N, N, T, 3]` are the difference, first minus second, and the ends of its 95 % interval; NaN where a pair
    has no text or seed in common. `words[first]` is a text of N x T letters: what each encoding is, at each length,
    compared with `first`.
    """

    numbers: Array
    words: tuple[str, ...]


Runs = dict[int, str]  # the runs of an encoding that have a loss at one length under one protocol, by seed


class Losses:
    """The losses of every encoding on every unit of text, or its gains over the context cut to L."""

    def __init__(self, rows: pd.DataFrame, units: Units, protocol: str, *, gain: bool = False) -> None:
        own = rows[(rows["protocol"] == protocol) & (rows["variant"] == FULL) & sound(rows)]
        own = own[own["gain"].notna()] if gain else own
        self.units, self._protocol, self._gain = units, protocol, gain
        self.runs: dict[tuple[str, int], Runs] = {
            (str(name), int(length)): dict(zip(part["seed"], part["run_id"], strict=True))
            for (name, length), part in own.drop_duplicates(["run_id", "length"]).groupby(["encoding", "length"])
        }
        # Units of text have names that count documents, so that those of other corpora or tokenizers have equal names.
        self._texts = own.groupby("encoding")["fingerprint"].agg(frozenset).to_dict()
        self._known: dict[tuple[tuple[str, ...], int], UnitLosses | None] = {}

    def of(self, runs: Sequence[str], length: int) -> UnitLosses | None:
        """Losses, or gains, of these runs at a length; None if they have no unit in common."""
        key = (tuple(runs), length)
        if key not in self._known:
            self._known[key] = self._read(list(runs), length)
        return self._known[key]

    def _read(self, runs: list[str], length: int) -> UnitLosses | None:
        found = self.units.losses(runs, self._protocol, length)
        if found is None or not self._gain:
            return found
        cut = self.units.losses(runs, self._protocol, length, PAIRED)
        if cut is None or not np.array_equal(cut.units, found.units):
            return None
        return UnitLosses(found.units, cut.minus(found), found.tokens, found.bytes)

    def case(self, name: str, length: int) -> Case | None:
        """What the interval of one encoding is computed from, in bits and bytes; None without losses."""
        runs = self.runs.get((name, length))
        found = self.of(list(runs.values()), length) if runs else None
        return None if found is None else (found.nats / LN2, found.bytes)

    def least_reach(self, case: Case | None) -> float:
        """How far the interval of a difference reaches at least."""
        return 0.0 if case is None else self.units.least_reach(case[0])

    def difference(self, one: str, other: str, length: int) -> Case | None:
        """What the difference of two encodings is computed from; runs of equal seeds are pairs."""
        ours, theirs = self.runs.get((one, length)), self.runs.get((other, length))
        if ours is None or theirs is None or self._texts[one] != self._texts[other]:
            return None
        mine, yours = self._paired(ours, theirs, length)
        if mine is None or yours is None:
            return None
        if not np.array_equal(mine.units, yours.units):
            common = np.intersect1d(mine.units, yours.units)
            if not len(common):
                return None
            mine, yours = mine.on(common), yours.on(common)
        return mine.minus(yours) / LN2, mine.bytes

    def _paired(self, one: Runs, other: Runs, length: int) -> tuple[UnitLosses | None, UnitLosses | None]:
        """The losses of the runs that have a partner; a single run of each is a pair, whatever the seeds."""
        if len(one) == len(other) == 1:
            return self.of(list(one.values()), length), self.of(list(other.values()), length)
        seeds = sorted(set(one) & set(other))
        return self.of([one[seed] for seed in seeds], length), self.of([other[seed] for seed in seeds], length)


def intervals(losses: Losses, names: Sequence[str], lengths: Sequence[int]) -> Array:
    """The mean of every encoding at every length in bits per byte with its 95 % interval, `[N, T, 3]`."""
    cases = [losses.case(name, length) for name in names for length in lengths]
    return many_differences(cases, test=False)[:, :3].reshape(len(names), len(lengths), 3)


def reversed_pairs(pairs: Pairs) -> Pairs:
    """The differences of what is right from those of what is wrong, with the same words."""
    return Pairs(-pairs.numbers[..., [0, 2, 1]], pairs.words)


def all_pairs(losses: Losses, names: Sequence[str], lengths: Sequence[int], *, more_is_better: bool = False) -> Pairs:
    """All encodings compared with each other; `more_is_better` is for gains."""
    count, shape = len(names), (len(names), len(names), len(lengths))
    at = [(i, j, k) for i in range(count) for j in range(i) for k in range(len(lengths))]
    cases = [losses.difference(names[i], names[j], lengths[k]) for i, j, k in at]
    found = many_differences(cases)
    least = np.array([losses.least_reach(case) for case in cases])
    found[:, 1], found[:, 2] = losses.units.bounded(found[:, 0], found[:, 1], found[:, 2], least)
    numbers, p, floor = np.full((*shape, 3), np.nan), np.full(shape, np.nan), np.zeros(shape)
    for (i, j, k), (estimate, low, high, value), case in zip(at, found, cases, strict=True):
        numbers[i, j, k], numbers[j, i, k] = (estimate, low, high), (-estimate, -high, -low)
        p[i, j, k] = p[j, i, k] = value
        floor[i, j, k] = floor[j, i, k] = smallest_p(*case[0].shape) if case is not None else 0.0
    loss = 1.0 if not more_is_better else -1.0
    words = tuple(_words(numbers[:, base, :, 0] * loss, p[:, base], floor[:, base]) for base in range(count))
    return Pairs(numbers, words)


def compared_with_one(
    losses: Losses, names: Sequence[str], lengths: Sequence[int], base: str
) -> dict[str, tuple[str, int]]:
    """What every other encoding is at the longest length, compared with one: its word, and the seeds of the pair.

    The words are those of `all_pairs` and of `comparison.compared_with`.
    """
    others = [name for name in names if name != base]
    at = [(name, length) for name in others for length in lengths]
    turned = [names.index(name) < names.index(base) for name, _ in at]  # pairs are kept once, the later name first
    cases = [
        losses.difference(base, name, length) if turn else losses.difference(name, base, length)
        for (name, length), turn in zip(at, turned, strict=True)
    ]
    found = many_differences(cases)
    least = np.array([0.0 if case is None else smallest_p(*case[0].shape) for case in cases])
    difference = np.where(turned, -found[:, 0], found[:, 0])
    words = comparison.words(difference, found[:, 3], holm(found[:, 3]), least)
    return {
        name: (str(word), 0 if case is None else len(case[0]))
        for (name, length), word, case in zip(at, words, cases, strict=True)
        if length == lengths[-1]
    }


def packed(pairs: Pairs) -> dict[str, Any]:
    """Pairs (i, j) with j < i one after the other, each with [difference, low, high] at every length, in 1 / UNITS."""
    first, second = np.tril_indices(len(pairs.words), -1)
    numbers = np.round(pairs.numbers[first, second] * UNITS).ravel()
    return {"numbers": [None if math.isnan(v) else int(v) for v in numbers], "words": list(pairs.words)}


def _words(loss: Array, p: Array, least: Array) -> str:
    """The letters of one baseline from `[N, T]` differences, of which negative ones are better, and p-values."""
    named = comparison.words(loss.ravel(), p.ravel(), holm(p.ravel()), least.ravel())
    return "".join(LETTERS[str(word)] for word in named)
