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
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.drawing.text import listed
from poscli.evaluation.plan import PAIRED
from poscli.report.comparison import refuse_several_per_seed
from poscli.report.origin import bits_per
from poscli.report.pooling import headline, sound, the_train_length, untrained
from poscli.report.summary import as_json
from poscli.report.table import gain_text
from poscli.report.terminal import COLORS, FAILED_COLOR
from poscli.report.verdicts import (
    HARM_BPB,
    HOLDS,
    MAY_USE_CONTEXT,
    NOT_TESTED,
    UNCLEAR,
    USES_CONTEXT,
    is_failure,
    meanings,
    verdict,
)
from poscli.runs.run import AS
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS
from poscli.statistics.comparison import (
    BETTER,
    NOT_COMPARED,
    SIGNIFICANT,
    WITHIN_NOISE,
    WORSE,
    Comparison,
    EncodingLosses,
    Key,
    LossTable,
    judged,
)  # fmt: skip
from poscli.statistics.intervals import holm
from poscli.system.errors import UsageError
from poscli.system.text import counted, printable_line

BEST = "best"  # the word of the candidate with the largest gain


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A spec, or a baseline, under which the model was measured."""

    encoding: str  # in the results
    variant: str  # likewise; a baseline, or the model itself
    spec: str  # "" for the model's own encoding
    gain: Comparison
    cost: Comparison
    verdict: str  # on the gain, or the status of a failure
    reason: str  # of a failure
    counts: bool = False  # whether the gain is above 0 after a correction for the number of candidates
    word: str = ""  # best, or the comparison with the best: within noise, worse, not compared

    @property
    def name(self) -> str:
        """How tables and sentences call it."""
        unnamed = "as it is" if self.variant == FULL else f"as it is + {self.variant}"
        return self.spec or unnamed

    def record(self) -> dict[str, Any]:
        """The candidate for a JSON document: gain and cost are [difference, low, high, p, documents]."""
        numbers = {
            name: [*each.numbers, each.p, each.documents] for name, each in (("gain", self.gain), ("cost", self.cost))
        }
        return asdict(self) | numbers

    @property
    def key(self) -> Key:
        """What names it in the results."""
        return self.encoding, self.variant

    @property
    def price(self) -> float:
        """The cost if its whole interval is above 0, or if it has no interval; else 0."""
        return self.cost.difference if not self.cost.low <= 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The candidates, largest gain first and failures last, and the one to use; None: read the last L tokens only."""

    model: str
    target: int
    train_length: int
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    documents: int  # or spans of them, where they are too few
    seeds: int
    spans_of: int = 0  # how many documents the spans are of; 0 for whole documents
    bits: str = "bits per byte"  # what losses are in
    untrained: str = ""  # why the model counts as not trained on text of this kind
    more: str = "--tokens"  # the option of `poscli advise` by which more text is read
    unfollowed: int = 0  # further ways to read the target, which were left out before the end for lack of time

    @property
    def whole(self) -> Candidate | None:
        """Of the candidates that do not harm, the one that costs least: for inputs that must be read whole."""
        holding = [each for each in self.candidates if each.verdict in (HOLDS, USES_CONTEXT, MAY_USE_CONTEXT)]
        return min(holding, key=lambda each: (each.price, -each.gain.difference), default=None)

    def record(self) -> dict[str, Any]:
        """The advice for a JSON document; NaN becomes None, and a comparison a list of its numbers."""
        chosen = None if self.chosen is None else self.chosen.record()
        candidates = [each.record() for each in self.candidates]
        return as_json(asdict(self) | {"candidates": candidates, "chosen": chosen})


def advice_on(rows: pd.DataFrame, table: LossTable, model: str, target: int, *, dropped: int = 0) -> Advice:
    """Advice for the model of this name from its evaluations; `rows` are those of eval.csv of this model alone.

    `dropped` is how many further candidates were given up because others did better on a part of the same text.

    UsageError if they lack the target, or compare nothing with the cropped context.
    """
    train_length, protocol = the_train_length(rows), headline(rows).gain
    rows = rows[rows["protocol"] == protocol]
    if target not in set(rows["length"]):
        known = ", ".join(map(str, sorted(set(rows["length"])))) or "none"
        raise UsageError(f"{model} was not evaluated at {target} tokens; it was at {known}")
    if rows["fingerprint"].nunique() > 1:
        raise UsageError(f"{model} was evaluated on several corpora: losses on different text cannot be compared")
    for _, runs in rows.groupby("encoding"):
        refuse_several_per_seed(runs)
    losses = EncodingLosses(rows, sound(rows), table, protocol, pair_singles=False)
    keys: list[Key] = [(str(name), FULL) for name in dict.fromkeys(rows["encoding"])]
    baselines = dict.fromkeys(rows.loc[rows["encoding"] == model, "variant"])
    keys += [(model, str(variant)) for variant in baselines if variant not in (FULL, PAIRED)]
    gains = losses.compare(((model, PAIRED), key, target) for key in keys)
    costs = losses.compare((key, (model, FULL), train_length) for key in keys)
    candidates = [_candidate(rows, model, target, *each) for each in zip(keys, gains, costs, strict=True)]
    lost = {each.key: is_failure(each.verdict) or math.isnan(each.gain.difference) for each in candidates}
    candidates.sort(key=lambda each: (lost[each.key], 0.0 if lost[each.key] else -each.gain.difference, *each.key))
    candidates = _judged(candidates, losses, target, dropped)
    return Advice(
        model=model,
        target=target,
        train_length=train_length,
        candidates=tuple(candidates),
        chosen=chosen(candidates),
        documents=max((each.gain.documents for each in candidates), default=0),
        seeds=rows["seed"].nunique(),
        spans_of=int(rows["documents"].max()) if (rows["resampled"] == "spans").any() else 0,
        bits=bits_per(rows),
        untrained=untrained(rows).get(model, ""),
    )


def _candidate(rows: pd.DataFrame, model: str, target: int, key: Key, gain: Comparison, cost: Comparison) -> Candidate:
    """A candidate with the verdict on its gain, or with the failure of one of its runs at the target."""
    encoding, variant = key
    at = rows[(rows["encoding"] == encoding) & (rows["variant"] == variant) & (rows["length"] == target)]
    failed = at[at["status"] != "ok"]
    word = verdict(*gain.numbers, seeds=gain.seeds) if gain.documents else NOT_TESTED
    return Candidate(
        encoding=encoding,
        variant=variant,
        spec="" if encoding == model else encoding.removeprefix(model + AS),
        gain=gain,
        cost=cost,
        verdict=word if failed.empty else str(failed["status"].iloc[0]),
        reason="" if failed.empty else str(failed["reason"].iloc[0]),
    )


def chosen(candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate to use: of those within noise of the best the one that costs least at L, then the simplest.

    The model as it is is the simplest, then a baseline, then what has fewer parts. None if no gain counts.
    """
    peers = [each for each in candidates if each.counts and each.word in (BEST, WITHIN_NOISE)]
    return min(peers, key=lambda each: (each.price, _parts(each), -each.gain.difference), default=None)


def _judged(candidates: Sequence[Candidate], losses: EncodingLosses, target: int, dropped: int) -> list[Candidate]:
    """The candidates, each with whether its gain counts, and compared with the best one that counts.

    Among many candidates some intervals lie above 0 by chance, which Holm's correction of their p-values leaves out. It
    counts those that were `dropped` on the same text: the best of many were chosen by it.
    """
    corrected = holm([*(each.gain.p for each in candidates), *[1.0] * dropped])[: len(candidates)]
    candidates = [
        replace(each, counts=each.verdict in (USES_CONTEXT, MAY_USE_CONTEXT) and bool(p <= SIGNIFICANT))
        for each, p in zip(candidates, corrected, strict=True)
    ]
    best = next((each for each in candidates if each.counts), None)
    if best is None:
        return candidates
    others = [each for each in candidates if each is not best]
    comparisons = judged(losses.compare((each.key, best.key, target) for each in others))
    worse = {NOT_COMPARED: NOT_COMPARED, BETTER: WORSE, WORSE: WORSE}
    words = {each.key: worse.get(to_best.word, WITHIN_NOISE) for each, to_best in zip(others, comparisons, strict=True)}
    return [replace(each, word=words.get(each.key, BEST)) for each in candidates]


def _parts(candidate: Candidate) -> int:
    """How much there is to a candidate: nothing for the model as it is, then a baseline, then the parts of a spec."""
    if not candidate.spec:
        return int(candidate.variant != FULL)
    return 1 + len(set(re.split("[+|]", candidate.spec)))


def answer(advice: Advice) -> list[str]:
    """The advice in one to three sentences."""
    if advice.untrained:
        return [f"No advice: on this text {advice.model} is no better than a guess ({advice.untrained})."]
    return _window(advice) if advice.chosen is None else _encoding(advice, advice.chosen)


def notes(advice: Advice) -> list[str]:
    """What the numbers are, and over what their intervals are."""
    last = f"last {advice.train_length} tokens"
    documents = counted(advice.documents, "document")
    if advice.spans_of:
        documents = f"{counted(advice.documents, 'span')} of {counted(advice.spans_of, 'document')}"
    known = any(not math.isnan(each.gain.low) for each in advice.candidates)
    few = advice.seeds < FEWEST_SEEDS
    over = f"{documents} only: this one training of the model" if few else f"{advice.seeds} seeds and {documents}"
    lines = [
        f"gain: {advice.bits} by which the loss on inputs of {advice.target} tokens is below that of the model as it "
        f"is reading the {last}, on the same tokens",
        f"cost: {advice.bits} by which the loss on inputs of {advice.train_length} tokens is above that of the model "
        "as it is",
        f"95 % intervals are over {over}" if known else f"no 95 % intervals: {documents} cannot give any",
    ]
    if advice.spans_of and known:
        lines.append("spans of a document are not independent: true intervals are wider")
    seen = {each.verdict for each in advice.candidates}
    return lines + [f"{word}: {meaning}" for word, meaning in meanings(advice.bits).items() if word in seen]


def show_advice(advice: Advice, console: Console) -> None:
    """Print the answer, the candidates, and what the numbers mean."""
    for line in answer(advice):
        console.print(Text(printable_line(line), style="bold"))
    console.print()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(Text(f"{advice.model} under"), overflow="fold", min_width=12)
    table.add_column(Text(f"gain at {advice.target} [95 %]"), justify="right")
    table.add_column(Text(f"cost at {advice.train_length} [95 %]"), justify="right")
    table.add_column(Text("verdict"))
    table.add_column(Text("among the best"))
    for each in advice.candidates:
        style = "bold" if each is advice.chosen else ""
        table.add_row(
            Text(printable_line(each.name), style=style),
            _numbers(each.gain),
            _numbers(each.cost),
            Text(each.verdict, style=COLORS.get(each.verdict, FAILED_COLOR)),
            each.word,
        )
    console.print(table)
    for line in notes(advice):
        console.print(Text(printable_line(line), style="dim"))
    for each in advice.candidates:
        if each.reason:
            console.print(Text(printable_line(f"{each.name}: {each.verdict}: {each.reason}"), style=FAILED_COLOR))


def _numbers(each: Comparison) -> str:
    return gain_text(*each.numbers)


def _encoding(advice: Advice, chosen: Candidate) -> list[str]:
    """What to do, what it brings, and what else would do as well."""
    last = f"its last {advice.train_length} tokens"
    do = f"Run {advice.model} under {chosen.spec}"
    if not chosen.spec:
        leave = f"Leave the positions of {advice.model} as they are"
        do = leave if chosen.variant == FULL else f"{leave} and limit its attention ({chosen.variant})"
    gain, cost = _numbers(chosen.gain), _numbers(chosen.cost)
    first = f"{do}: at {advice.target} tokens it gains {gain} {advice.bits} over reading {last}"
    unchanged = chosen.variant == FULL and not chosen.spec
    lines = [f"{first}." if unchanged else f"{first}, and costs {cost} at {advice.train_length}."]
    peers = [each for each in advice.candidates if each.word in (BEST, WITHIN_NOISE) and each.counts]
    if others := [each.name for each in peers if each is not chosen]:
        cheapest = chosen.price < min(each.price for each in peers if each is not chosen)
        why = "costs least" if cheapest else "is the simplest of those that cost least"
        lines.append(f"The gain of {listed(others)} is within noise of it; it {why} at {advice.train_length} tokens.")
    return lines


def _window(advice: Advice) -> list[str]:
    """Why the last tokens are all that should be read, and what would do the least harm."""
    gaining = [each for each in advice.candidates if each.gain.difference > 0]
    doubtful = [each.name for each in gaining if each.verdict in (USES_CONTEXT, MAY_USE_CONTEXT, UNCLEAR)]
    others = f" ({advice.unfollowed} others were left out for lack of time)" if advice.unfollowed else ""
    lines = [
        f"Let {advice.model} read the last {advice.train_length} tokens only: of {len(advice.candidates)} ways to read "
        f"{advice.target}{others}, none is {'known to be ' if doubtful or others else ''}better."
    ]
    if (cheapest := advice.whole) is not None:
        lines.append(
            f"If inputs must be read whole, {cheapest.name} costs least of the ways that lose less than {HARM_BPB} "
            f"{advice.bits} against that: its gain is {_numbers(cheapest.gain)} and its cost {_numbers(cheapest.cost)} "
            f"{advice.bits}."
        )
    if doubtful:
        lines.append(
            f"The gain of {listed(doubtful)} may be chance, given how many were tried and how much text was read: "
            f"give more {advice.more}."
        )
    return lines
