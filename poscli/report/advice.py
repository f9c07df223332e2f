"""Which encoding a trained model is best run under at one length, if under another one at all.

Every candidate is compared with what the owner of the model can do without it, which is to read the last L tokens of
the input with the model as it is. The `gain` of the candidate is by how much its loss is lower, on the same tokens. Its
`cost` is by how much its loss on inputs of L tokens is higher than that of the model as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from poscli.evaluation.plan import PAIRED
from poscli.report.comparison import NOT_COMPARED, SIGNIFICANT, WITHIN_NOISE, WORSE, refuse_several_per_seed
from poscli.report.guessing import untrained
from poscli.report.origin import bits_per
from poscli.report.over_seeds import Units
from poscli.report.pooling import LN2, headline, the_train_length
from poscli.report.verdicts import MAY_USE_CONTEXT, NOT_TESTED, USES_CONTEXT, is_failure, verdict
from poscli.runs.schema import FULL
from poscli.statistics.intervals import holm, permutation_test, two_level_interval
from poscli.system.errors import UsageError

Key = tuple[str, str]  # encoding and variant of a candidate, in the results
AS = " as "  # between a model's own name and the spec that it is evaluated under
BEST = "best"  # the word of the candidate with the largest gain


class Difference(NamedTuple):
    """A paired difference of losses in bits per byte with its 95 % interval, and the p-value of a difference of 0."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    documents: int = 0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A spec, or a baseline, under which the model was measured."""

    encoding: str  # in the results
    variant: str  # likewise; a baseline, or the model itself
    spec: str  # "" for the model's own encoding
    gain: Difference
    cost: Difference
    verdict: str  # on the gain, or the status of a failure
    reason: str = ""  # of a failure
    counts: bool = False  # whether the gain is above 0 after a correction for the number of candidates
    word: str = ""  # best, or the comparison with the best: within noise, worse, not compared

    @property
    def name(self) -> str:
        """How tables and sentences call it."""
        own = "as it is" if self.variant == FULL else f"as it is + {self.variant}"
        return self.spec or own

    @property
    def price(self) -> float:
        """The cost, or 0 where its interval includes 0."""
        return self.cost.value if not self.cost.low <= 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The candidates, largest gain first and failures last, and the one to use; None: read the last L tokens only."""

    model: str
    target: int
    train_length: int
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    documents: int
    seeds: int
    bits: str = "bits per byte"  # what losses are in
    untrained: str = ""  # why the model counts as not trained on text of this kind

    def record(self) -> dict[str, Any]:
        """The advice for a JSON document; NaN becomes None."""
        return _plain(asdict(self))


def advise(rows: pd.DataFrame, units: Units, model: str, target: int) -> Advice:
    """Advice for the model of this name from its evaluations; `rows` are those of eval.csv of this model alone.

    UsageError if they lack the target, or compare nothing with the cropped context.
    """
    train_length, protocol = the_train_length(rows), headline(rows).gain
    rows = rows[rows["protocol"] == protocol]
    if target not in set(rows["length"]):
        known = ", ".join(map(str, sorted(set(rows["length"])))) or "none"
        raise UsageError(f"{model} was not evaluated at {target} tokens; it was at {known}")
    if rows["fingerprint"].nunique() > 1:
        raise UsageError(f"{model} was evaluated on several corpora: losses on different text cannot be compared")
    measured = _Measured(rows, units, model, protocol, (train_length, target))
    found = sorted((measured.candidate(*key) for key in measured.entrants()), key=_order)
    found = _counted(found)
    found = _compared(found, measured)
    return Advice(
        model=model,
        target=target,
        train_length=train_length,
        candidates=tuple(found),
        chosen=chosen(found),
        documents=max((each.gain.documents for each in found), default=0),
        seeds=rows["seed"].nunique(),
        bits=bits_per(rows),
        untrained=untrained(rows).get(model, ""),
    )


def chosen(candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate to use: of those within noise of the best the one that costs least at L, then the simplest.

    The model as it is is the simplest, then a baseline, then what has fewer parts. None if no gain counts.
    """
    peers = [each for each in candidates if each.counts and each.word in (BEST, WITHIN_NOISE)]
    return min(peers, key=lambda each: (each.price, _parts(each), -each.gain.value), default=None)


def _counted(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, each with whether its gain counts: among many, some intervals lie above 0 by chance."""
    p = holm([each.gain.p for each in candidates])
    above = [each.verdict in (USES_CONTEXT, MAY_USE_CONTEXT) for each in candidates]
    counts = [bool(up and p_holm <= SIGNIFICANT) for up, p_holm in zip(above, p, strict=True)]
    return [replace(each, counts=count) for each, count in zip(candidates, counts, strict=True)]


def _compared(candidates: Sequence[Candidate], measured: _Measured) -> list[Candidate]:
    """The candidates, the gain of each compared with the best one that counts."""
    best = next((each for each in candidates if each.counts), None)
    if best is None:
        return list(candidates)
    others = [each for each in candidates if each is not best]
    apart = [measured.difference(_key(each), _key(best), measured.target) for each in others]
    words = [_word(p) for p in holm([each.p for each in apart])]
    judged = {id(each): replace(each, word=word) for each, word in zip(others, words, strict=True)}
    return [judged.get(id(each)) or replace(each, word=BEST) for each in candidates]


def _word(p_holm: float) -> str:
    if math.isnan(p_holm):
        return NOT_COMPARED
    return WITHIN_NOISE if p_holm > SIGNIFICANT else WORSE


def _key(candidate: Candidate) -> Key:
    return candidate.encoding, candidate.variant


def _order(candidate: Candidate) -> tuple[bool, float, str, str]:
    """Failures and candidates without a gain last."""
    unknown = is_failure(candidate.verdict) or math.isnan(candidate.gain.value)
    return unknown, 0.0 if unknown else -candidate.gain.value, *_key(candidate)


def _parts(candidate: Candidate) -> int:
    """How much there is to a candidate: nothing for the model as it is, then a baseline, then the parts of a spec."""
    if not candidate.spec:
        return int(candidate.variant != FULL)
    return 1 + len(set(re.split("[+|]", candidate.spec)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Measured:
    """The losses of one model at two lengths, under one protocol."""

    def __init__(self, rows: pd.DataFrame, units: Units, model: str, protocol: str, lengths: tuple[int, int]) -> None:
        self.rows, self.units, self.model, self.protocol = rows, units, model, protocol
        self.train_length, self.target = lengths

    def entrants(self) -> list[Key]:
        """Every candidate: the model under each spec, and the baselines of its own."""
        own = self.rows[self.rows["encoding"] == self.model]
        baselines = [name for name in dict.fromkeys(own["variant"]) if name not in (FULL, PAIRED)]
        return [(name, FULL) for name in dict.fromkeys(self.rows["encoding"])] + [(self.model, b) for b in baselines]

    def candidate(self, encoding: str, variant: str) -> Candidate:
        gain = self.difference((self.model, PAIRED), (encoding, variant), self.target)
        cost = self.difference((encoding, variant), (self.model, FULL), self.train_length)
        status, reason = self._failure(encoding, variant)
        seeds = len(self._pairs(self.model, encoding)[0])
        judged = verdict(*gain[:3], seeds=seeds) if gain.documents else NOT_TESTED
        spec = "" if encoding == self.model else encoding.removeprefix(self.model + AS)
        return Candidate(
            encoding=encoding, variant=variant, spec=spec, gain=gain, cost=cost, verdict=status or judged, reason=reason
        )

    def difference(self, first: Key, second: Key, length: int) -> Difference:
        """The loss of the first minus that of the second over runs of equal seeds; NaN if one of them has none."""
        runs = self._pairs(first[0], second[0])
        variants = first[1], second[1]
        one, two = (self.units.losses(own, self.protocol, length, v) for own, v in zip(runs, variants, strict=True))
        if one is None or two is None or not np.array_equal(one.units, two.units):
            return Difference()
        totals = (one.nats - two.nats) / LN2
        found = two_level_interval(totals, one.bytes)
        return Difference(found.estimate, found.low, found.high, permutation_test(totals, one.bytes), found.documents)

    def _pairs(self, one: str, other: str) -> tuple[list[str], list[str]]:
        """The runs of two encodings that have a partner of the same seed, in the same order."""
        ours, theirs = self._runs(one), self._runs(other)
        seeds = sorted(ours.keys() & theirs.keys())
        return [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]

    def _runs(self, name: str) -> dict[int, str]:
        """The runs of an encoding by seed; UsageError for several of one seed, of which none is the one to take."""
        own = self.rows[self.rows["encoding"] == name].drop_duplicates("run_id")
        refuse_several_per_seed(own)
        return dict(zip(own["seed"], own["run_id"], strict=True))

    def _failure(self, name: str, variant: str) -> tuple[str, str]:
        at = self.rows[(self.rows["encoding"] == name) & (self.rows["variant"] == variant)]
        failed = at[(at["length"] == self.target) & (at["status"] != "ok")]
        return (str(failed["status"].iloc[0]), str(failed["reason"].iloc[0])) if len(failed) else ("", "")
