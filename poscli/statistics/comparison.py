"""Comparisons of encodings over seeds and documents: what is paired, by how much they differ, and the word for that.

Runs of equal seeds are pairs, and only the units of text that all of their runs scored count. From these pairs come the
difference, its 95 % interval and its p-value; a family of comparisons, corrected by Holm's method, gives the words.

Shapes: S runs (seeds), D units of text (documents, or episodes of a task).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from poscli.statistics import Triple
from poscli.statistics.intervals import Case, holm, many_differences, smallest_p, unseen_share

Array = NDArray[np.float64]
Key = tuple[str, str]  # an encoding, and the variant of the model: the model itself, or a baseline
LN2 = math.log(2)  # nats per bit
SIGNIFICANT = 0.05
BETTER, WORSE, WITHIN_NOISE, NOT_COMPARED = "better", "worse", "within noise", "not compared"
TOO_FEW = "too few documents"


@dataclass(frozen=True)
class Comparison:
    """A first encoding compared with a second at one length.

    `difference` is the loss of the first minus that of the second in bits per byte (or its gain, or its share of right
    answers, minus that of the second), `low` and `high` are the ends of its 95 % interval, and `p` is the p-value of a
    paired permutation test. They are NaN where no seed or no text is common. `seeds` and `documents` count the pairs of
    runs and the units of text. `judged` adds `p_holm` and `word`.
    """

    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    seeds: int = 0
    documents: int = 0
    p_holm: float = math.nan
    word: str = NOT_COMPARED

    @property
    def numbers(self) -> Triple:
        """The difference and the ends of its interval."""
        return self.difference, self.low, self.high

    def reversed(self) -> Comparison:
        """The second compared with the first, not judged yet."""
        return Comparison(-self.difference, -self.high, -self.low, self.p, self.seeds, self.documents)


def corrected(family: Sequence[Comparison], *, more_is_better: bool) -> tuple[list[float], list[str]]:
    """The p-values of comparisons after Holm's correction for their number, and the word for the first of each pair.

    If a comparison would not be significant with the smallest p-value that it could have had, corrected for all that
    are not significant, nothing was tested: the word is then `TOO_FEW`, and not `WITHIN_NOISE`.
    """
    lines = [
        (each.difference, each.p, smallest_p(each.seeds, each.documents) if each.seeds else 0.0) for each in family
    ]
    difference, p, least = np.array(lines, float).reshape(-1, 3).T
    p_holm = holm(p)
    untested = least * np.sum(~(p_holm <= SIGNIFICANT) & ~np.isnan(p)) > SIGNIFICANT
    better = difference > 0 if more_is_better else difference < 0
    words = np.select(
        [np.isnan(p_holm), p_holm <= SIGNIFICANT, untested],
        [NOT_COMPARED, np.where(better, BETTER, WORSE), TOO_FEW],
        WITHIN_NOISE,
    )
    return p_holm.tolist(), words.tolist()


def judged(family: Sequence[Comparison], *, more_is_better: bool = False) -> list[Comparison]:
    """The comparisons with their `p_holm` and `word` (see `corrected`)."""
    corrections = zip(family, *corrected(family, more_is_better=more_is_better), strict=True)
    return [replace(each, p_holm=p_holm, word=word) for each, p_holm, word in corrections]


@dataclass(frozen=True, eq=False)
class UnitLosses:
    """The losses of S runs on the D units of text that all of them scored: nats `[S, D]`, tokens and bytes `[D]`.

    Where runs scored different amounts of a unit, the nats are those of as many bytes as the first run scored there.
    """

    units: NDArray[np.str_]
    nats: Array
    tokens: Array
    bytes: Array

    def on(self, units: NDArray[np.str_]) -> UnitLosses:
        """The losses on some of the units, which are sorted."""
        chosen = np.searchsorted(self.units, units)
        return UnitLosses(units, self.nats[:, chosen], self.tokens[chosen], self.bytes[chosen])

    def minus(self, other: UnitLosses) -> Array:
        """The differences in nats, `[S, D]`, of as many bytes as these are; units and runs are the same."""
        return self.nats - other.nats * _scale(self.bytes, other.bytes)


def _scale(wanted: Array, scored: Array) -> Array:
    """The factor from the loss of the scored bytes to that of the wanted number of bytes; 1 where none was scored."""
    return np.divide(wanted, scored, out=np.ones_like(wanted), where=scored > 0)


class LossTable:
    """The table of units, cut by run, protocol, length and variant, because tables of pandas are slow to cut.

    `of_answers` says that `nll` / ln 2 is the share of wrong tokens of an answer; shares of right ones are compared.
    """

    def __init__(self, units: pd.DataFrame, *, of_answers: bool = False) -> None:
        """`units` has the columns run_id, protocol, length, variant, unit, nll (per token), tokens and bytes."""
        self.of_answers = of_answers
        units = units.sort_values("unit", kind="stable")
        names = units["unit"].to_numpy(dtype=str)
        columns = [units[name].to_numpy(dtype=float) for name in ("nll", "tokens", "bytes")]
        groups = units.groupby(["run_id", "protocol", "length", "variant"]).indices
        self._parts = {key: (names[at], *(values[at] for values in columns)) for key, at in groups.items()}

    def losses(self, runs: Sequence[str], protocol: str, length: int, variant: str) -> UnitLosses | None:
        """The losses of these runs, one row each; None if one of them has none, or if no unit is common to all."""
        keys = [(run, protocol, length, variant) for run in runs]
        if not keys or any(key not in self._parts for key in keys):
            return None
        parts = [self._parts[key] for key in keys]
        common = parts[0][0]
        for names, *_ in parts[1:]:
            common = np.intersect1d(common, names)
        if not len(common):
            return None
        at = [np.searchsorted(names, common) for names, *_ in parts]
        tokens, sizes = (column[at[0]] for column in parts[0][2:])
        nats = [part[1][i] * part[2][i] * _scale(sizes, part[3][i]) for part, i in zip(parts, at, strict=True)]
        return UnitLosses(common, np.stack(nats), tokens, sizes)

    def gains(self, runs: Sequence[str], protocol: str, length: int, variant: str, baseline: str) -> UnitLosses | None:
        """By how much the loss of these runs is below that under a baseline; None if the units are not the same."""
        model = self.losses(runs, protocol, length, variant)
        cropped = self.losses(runs, protocol, length, baseline)
        if model is None or cropped is None or not np.array_equal(cropped.units, model.units):
            return None
        return UnitLosses(model.units, cropped.minus(model), model.tokens, model.bytes)


class EncodingLosses:
    """The losses of every encoding at every length under one protocol, or its gains over a baseline, to be paired."""

    def __init__(
        self,
        rows: pd.DataFrame,
        known: pd.Series,
        table: LossTable,
        protocol: str,
        *,
        gain_over: str = "",
        pair_singles: bool = True,
    ) -> None:
        """`rows` are those of eval.csv, and `known` says which of them have a number.

        `gain_over` names the variant over which a gain is: then gains take the place of losses. `pair_singles` makes a
        pair of the only runs of two encodings, whatever their seeds.
        """
        self.table, self._protocol, self._gain_over = table, protocol, gain_over
        chosen = rows["protocol"] == protocol
        runs = rows[chosen].groupby("encoding")["run_id"].nunique()
        self._single = set(runs.index[runs == 1]) if pair_singles else set()
        measured = rows[chosen & known].drop_duplicates(["run_id", "length", "variant"])
        self._runs: dict[tuple[str, str, int], dict[int, str]] = {
            (str(name), str(variant), int(length)): dict(zip(part["seed"], part["run_id"], strict=True))
            for (name, variant, length), part in measured.groupby(["encoding", "variant", "length"])
        }
        # Units are called by the number of their document, so that those of different corpora have equal names.
        self._texts = measured.groupby("encoding")["fingerprint"].agg(frozenset).to_dict()
        self._read: dict[tuple[tuple[str, ...], str, int], UnitLosses | None] = {}

    @property
    def more_is_better(self) -> bool:
        """Whether gains or shares of right answers are compared, and not losses."""
        return bool(self._gain_over) or self.table.of_answers

    def compare(self, pairs: Iterable[tuple[Key, Key, int]]) -> list[Comparison]:
        """The comparison of each first encoding with a second at a length, not judged yet.

        Answers that are the same in all D documents could still differ in others. So an interval of answers reaches at
        least `unseen_share(D)` to both sides of the estimate, and is cut off at -1 and 1.
        """
        cases = [self.pair(*each) for each in pairs]
        numbers = many_differences(cases)
        if self.table.of_answers:
            unseen = np.array([0.0 if case is None else unseen_share(case[0].shape[1]) for case in cases])
            estimate, low, high = -numbers[:, 0], -numbers[:, 2], -numbers[:, 1]  # from wrong answers to right ones
            numbers[:, 0] = estimate
            numbers[:, 1] = np.maximum(np.minimum(low, estimate - unseen), -1.0)
            numbers[:, 2] = np.minimum(np.maximum(high, estimate + unseen), 1.0)
        sizes = [(0, 0) if case is None else case[0].shape for case in cases]
        return [Comparison(*line, *size) for line, size in zip(numbers.tolist(), sizes, strict=True)]

    def runs(self, key: Key, length: int) -> Mapping[int, str]:
        """The runs of an encoding under a variant that have a number at a length, by seed."""
        return self._runs.get((*key, length), {})

    def of(self, key: Key, length: int) -> Case | None:
        """The losses of all runs of one encoding at a length, in bits and bytes; None without losses."""
        losses = self._losses(list(self.runs(key, length).values()), key[1], length)
        return None if losses is None else (losses.nats / LN2, losses.bytes)

    def pair(self, first: Key, second: Key, length: int, *, seeds: Container[int] | None = None) -> Case | None:
        """The loss of the first minus that of the second, in bits and bytes, over runs of equal seeds.

        Of `seeds` only, if given; the only runs of two encodings are a pair whatever their seeds (`pair_singles`). None
        if no seed or no text is common.
        """
        ours, theirs = self.runs(first, length), self.runs(second, length)
        if not ours or not theirs or self._texts[first[0]] != self._texts[second[0]]:
            return None
        if first[0] in self._single and second[0] in self._single:
            pairs = list(zip(ours.values(), theirs.values(), strict=True))
        else:
            common_seeds = sorted(ours.keys() & theirs.keys())
            pairs = [(ours[seed], theirs[seed]) for seed in common_seeds if seeds is None or seed in seeds]
        one = self._losses([run for run, _ in pairs], first[1], length)
        other = self._losses([run for _, run in pairs], second[1], length)
        if one is None or other is None:
            return None
        if not np.array_equal(one.units, other.units):
            common = np.intersect1d(one.units, other.units)
            if not len(common):
                return None
            one, other = one.on(common), other.on(common)
        return one.minus(other) / LN2, one.bytes

    def _losses(self, runs: list[str], variant: str, length: int) -> UnitLosses | None:
        key = (tuple(runs), variant, length)
        if key not in self._read:
            if self._gain_over:
                self._read[key] = self.table.gains(runs, self._protocol, length, variant, self._gain_over)
            else:
                self._read[key] = self.table.losses(runs, self._protocol, length, variant)
        return self._read[key]
