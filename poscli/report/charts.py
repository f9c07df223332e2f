"""What the figures of a section show: their lines, the labels at the ends of these, titles, findings and footnotes.

Encodings without a number are `missing`, which a strip above the axes shows; none is left out. A line is broken at a
length without a number. Encodings that are undertrained or not trained are drawn, and marked at the ends of their
lines. In figures of one model under many encodings the model is named once, and not before every encoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from poscli.drawing.style import MAX_COLORED_LINES
from poscli.drawing.text import distinct, listed, named, number, signed
from poscli.report import accuracy
from poscli.report.collect import Trained
from poscli.report.data import Figure, Line, MissingResults
from poscli.report.groups import Group, shortened
from poscli.report.origin import bits_per, footnote, unit_of
from poscli.report.pooling import (
    Point,
    headline,
    is_per_byte,
    ratio_name,
    the_train_length,
    untrained,
)
from poscli.report.recall import recalled_from
from poscli.report.table import solved_up_to
from poscli.report.verdicts import (
    BREAKS,
    DEGRADES,
    HOLDS,
    MAY_USE_CONTEXT,
    NOT_TRAINED,
    OPEN_HARM,
    SMALL_HARM,
    SOLVED_SHARE,
    SOLVED_TEXT,
    UNCLEAR,
    UNDERTRAINED,
    USES_CONTEXT,
    effect,
    verdict,
)
from poscli.runs.schema import FULL
from poscli.statistics import FEWEST_SEEDS, UNKNOWN, Triple
from poscli.statistics.comparison import LN2
from poscli.system.errors import PoscliError

SKIPPED_POSITIONS = 1 / 16  # of the training length: losses there are so high that they would flatten the curve
MOST_BANDS = 6  # most of the width of a band is the spread of documents, the same for all: more bands hide each other
MOST_BASELINES = 3
EFFECTS = {
    USES_CONTEXT: "helps",
    MAY_USE_CONTEXT: "may help",
    HOLDS: "makes no difference of consequence to",
    SMALL_HARM: "slightly harms",
    DEGRADES: "harms",
    BREAKS: "breaks",
}


class NothingToPlot(PoscliError):
    """A figure has no number to show."""


class Charts:
    """The figures of one section, from its rows, its summary, and its points by protocol and variant."""

    def __init__(
        self,
        group: Group,
        summary: pd.DataFrame,
        measured: Mapping[tuple[str, str], Sequence[Point]],
        runs: Mapping[str, Trained],
    ) -> None:
        """`runs` is what is known of the trainings, by run id."""
        self.rows, self.group, self.summary, self.runs = group.rows, group, summary, runs
        self.model, self.names, self.common = shortened(map(str, summary["encoding"]))
        self.measured: dict[tuple[str, str], list[Point]] = {}
        for key, points in measured.items():
            renamed = (replace(point, encoding=self.short(point.encoding)) for point in points)
            self.measured[key] = sorted(renamed, key=lambda point: (point.encoding, point.length))
        self.train_length, self.bits = the_train_length(self.rows), bits_per(self.rows)
        self.quoted = headline(self.rows)
        gated = summary.loc[summary["verdict"] == UNDERTRAINED, "encoding"]
        self.weak = dict.fromkeys(map(self.short, gated), UNDERTRAINED)
        self.weak |= {self.short(name): NOT_TRAINED for name in untrained(self.rows)}

    def short(self, name: str) -> str:
        """An encoding without what all of them have in common."""
        return self.names.get(name, name)

    def _table(self, table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(encoding=table["encoding"].map(self.short))

    def _in_order(self, points: pd.DataFrame) -> pd.DataFrame:
        """Points by encoding and one more column, in the order of the names that are shown."""
        return self._table(points).sort_values(["encoding", points.columns[1]], ignore_index=True)

    def origin(self, protocol: str) -> str:
        """The footnote of numbers under a protocol."""
        return footnote(self.rows, protocol, self.runs, self.common)

    def all(self) -> tuple[list[Figure], list[str]]:
        """The figures for which there are numbers, and notes that say why others are missing."""
        answers, recall = (self.group.details.get(name, pd.DataFrame()) for name in ("answers", "recall"))
        makers: dict[str, Callable[[], Figure]] = {}
        if len(answers):  # of an episode, only the answer has a loss that the training cared for
            answers = self._table(answers)
            makers["accuracy"] = lambda: self.accuracies(answers)
            if self.group.by_place["from"].nunique() > 1:
                makers["place"] = lambda: self.places(answers)
        else:
            makers = {"perplexity": self.perplexities, "gain": self.gains, "position": self.positions}
        if len(recall) and self.group.recall_points["from"].nunique() > 1:  # random text does not occur again
            makers["recall"] = lambda: self.recall(recall)
        figures, notes = [], []
        for name, make in makers.items():
            try:
                figures.append(make())
            except NothingToPlot as error:
                notes.append(f"No picture of {name}: {error}.")
        return figures, notes

    def _points(self, protocol: str, value: Callable[[Point], float]) -> Sequence[Point]:
        points = self.measured.get((protocol, FULL), [])
        if not any(math.isfinite(value(point)) for point in points):
            raise NothingToPlot(f"protocol {protocol} gave no number at any length")
        return points

    def _marked(self, name: str, label: str) -> str:
        return f"{label}, {self.weak[name]}" if name in self.weak else label

    def perplexities(self) -> Figure:
        """Perplexity by the length of the window, one line per encoding, with its band if there are few."""
        protocol, per_byte, unit = self.quoted.perplexity, is_per_byte(self.rows), unit_of(self.rows)
        score = self.bits if per_byte else "perplexity"
        points = self._points(protocol, lambda point: point.ppl)
        last = max(point.length for point in points)

        def label(name: str, known: Sequence[Point]) -> str:
            at_training = [point.ppl for point in known if point.ratio == 1]
            growth = f" ({number(known[-1].ppl / at_training[0])}x)" if at_training and known[-1].ratio > 1 else ""
            return self._marked(name, f"{name} {number(known[-1].ppl)}{growth}")

        lines = list(_lines(points, lambda point: (point.ppl, point.ppl_low, point.ppl_high), label))
        main = self.rows[self.rows["protocol"] == protocol]
        if len(lines) > MOST_BANDS:
            note = "No bands: those of so many encodings would hide each other. The gain has its intervals."
        elif main.groupby("encoding")["seed"].nunique().max() < FEWEST_SEEDS:
            same = "" if per_byte else ", which are the same for all encodings"
            note = f"Bands: 95 % intervals over {listed(distinct(main['resampled'])) or 'documents'}{same}."
        else:
            note = "Bands: 95 % intervals over seeds and documents."
        longest = ratio_name(last / self.train_length)
        return Figure(
            name="perplexity",
            title=f"Which encodings still predict well at {longest} their training length?",
            finding=perplexity_finding(points, "token" if per_byte else unit, self.weak, score),
            heading=f"{score} at {last} (times its own at {self.train_length})",
            note=f"{self.origin(protocol)} {note}",
            y=score if per_byte else f"perplexity per {unit}",
            train_length=self.train_length,
            ticks=_lengths(points),
            lines=_with_few_bands(lines),
            missing=_missing(points),
        )

    def gains(self) -> Figure:
        """Context gain by length: the loss with the context cut to L minus the loss with the whole context."""
        protocol = self.quoted.gain
        if not protocol:
            raise NothingToPlot("no protocol measured a gain")
        points = self._points(protocol, lambda point: point.gain[0])

        def label(name: str, known: Sequence[Point]) -> str:
            return self._marked(name, f"{name} {signed(known[-1].gain[0])}")

        baselines = []  # but for the one that gains are over, whose own is 0
        for (of_protocol, variant), each in self.measured.items():
            if of_protocol == protocol and variant != FULL and any(abs(point.gain[0]) > 0 for point in each):
                baselines.append((variant, tuple(_lines(each, lambda point: point.gain))))
        few = len(self.summary) <= MAX_COLORED_LINES
        return Figure(
            name="gain",
            title="Does context longer than in training help, or do harm?",
            finding=gain_finding(points, self.weak),
            heading=f"gain at {max(point.length for point in points)}",
            note=f"{self.origin(protocol)} Bars: 95 % intervals of the gain.",
            y=f"context gain, {self.bits}",
            train_length=self.train_length,
            ticks=_lengths(points),
            lines=tuple(_lines(points, lambda point: point.gain, label)),
            missing=_missing(points),
            baselines=tuple(baselines[:MOST_BASELINES]) if few else (),
        )

    def positions(self) -> Figure:
        """Loss by position in the longest window on which each encoding was evaluated."""
        if self.group.positions.empty:
            raise NothingToPlot("no run has a loss by position")
        train_length = self.train_length
        positions = self._table(positions_in_bits(self.group))
        bins = positions.groupby(["encoding", "from", "to"], as_index=False)["bits"].mean()
        bits = bins["bits"].where(np.isfinite(bins["bits"]))
        bins = bins.assign(length=(bins["from"] * bins["to"]) ** 0.5, bits=bits)
        known = bins.dropna(subset=["bits"])
        if known.empty:
            raise NothingToPlot("no position has a loss")
        last, right = int(bins["to"].max()), known["length"].max()
        lines = []
        for name, part in bins.groupby("encoding"):
            line, label = known[known["encoding"] == name], ""
            if len(line) > 1 or (len(line) and line["length"].iloc[-1] == right):
                at_end = self._marked(str(name), f"{name} {line['bits'].iloc[-1]:.2f}")
                label = at_end if line["length"].iloc[-1] == right else str(name)
            lines.append(Line(str(name), tuple(part["length"]), tuple(part["bits"]), label=label))
        below = [train_length >> power for power in range(4, 0, -1) if train_length % (1 << power) == 0]
        octaves = [*below, *(train_length << power for power in range(24))]
        shown = [length for length in octaves if int(bins["from"].min()) <= length <= last] or [train_length]
        note = (
            f"Windows of {last} tokens; the first {_skipped(train_length)} positions are costly for all and not shown."
        )
        return Figure(
            name="position",
            title="Where in a long window does prediction get worse?",
            finding=position_finding(bins, self.weak, self.bits),
            heading=f"{self.bits} at the end of the window",
            note=f"{self.origin(self.quoted.perplexity)} {note}".strip(),
            x="position in the window",
            y=self.bits,
            train_length=train_length,
            ticks=tuple(shown),
            lines=tuple(lines),
        )

    def accuracies(self, answers: pd.DataFrame) -> Figure:
        """Accuracy by the length of the window, one line per encoding, with its interval if there are few."""
        points = self._in_order(self.group.by_length)
        lines = _lines_of_table(points, "length", "accuracy", "{:.3f}".format)
        bands = f" Bands: 95 % intervals over {accuracy.resampled(points)}." if len(lines) <= MOST_BANDS else ""
        return Figure(
            name="accuracy",
            title="How long may a text be, so that what was asked for is still found?",
            finding=f"{solved_up_to(self._table(self.summary))} {accuracy.chance_is(answers)}",
            heading=f"accuracy at {points['length'].max()}",
            note=f"{self.origin(self.quoted.perplexity)}{bands}".strip(),
            y="accuracy of the answers",
            train_length=self.train_length,
            ticks=tuple(sorted(set(points["length"]))),
            lines=_with_few_bands(lines),
            levels=_levels(answers),
        )

    def places(self, answers: pd.DataFrame) -> Figure:
        """Accuracy in the longest window by depth or gap."""
        by_depth, points = accuracy.is_depth(answers), self._in_order(self.group.by_place)
        points = points.assign(x=(points["from"] + points["to"] + 1) / 2 if by_depth else points["to"] + 1)
        ticks = sorted(set(zip(points["x"], points["from"], points["to"], strict=True)))
        lines = [
            Line(str(name), tuple(part["x"]), tuple(part["accuracy"]), label=f"{name} {part['accuracy'].iloc[-1]:.3f}")
            for name, part in points.groupby("encoding")
        ]
        analysis = accuracy.placed(answers, points, self._table(self.summary))
        assert analysis is not None
        return Figure(
            name="place",
            title=analysis.title,
            finding=analysis.answer,
            heading="accuracy at the right end",
            note=f"{self.origin(self.quoted.perplexity)} Windows of {answers['length'].max()} tokens.".strip(),
            x=accuracy.PLACES[by_depth][1],
            y="accuracy of the answers",
            train_length=self.train_length,
            ticks=tuple(x for x, _, _ in ticks),
            tick_names=tuple(f"{first} to {last + 1} %" for _, first, last in ticks) if by_depth else (),
            lines=tuple(lines),
            levels=_levels(answers),
        )

    def recall(self, recall: pd.DataFrame) -> Figure:
        """The gain of the whole window on tokens that could be copied, in octaves of the distance back."""
        points, length = self._in_order(self.group.recall_points), int(recall["train_length"].iloc[0])
        points = points.assign(middle=(points["from"] * points["to"]) ** 0.5)
        lines = _lines_of_table(points, "middle", "gain", signed)
        edges = {int(first) for first in points["from"]} | {int(points["to"].max()) + 1}
        ngram = int(recall["ngram"].iloc[0])
        how = (
            f"Tokens whose {ngram} preceding tokens occurred before, followed by the same token. Gain: the loss with "
            f"the context cut to L = {length} minus the loss with the whole window."
            f"{' Bands: 95 % intervals.' if len(lines) <= MOST_BANDS else ''}"
        )
        return Figure(
            name="recall",
            title="Is text from beyond the training length recalled?",
            finding=recalled_from(points, length),
            heading="gain at the largest distance",
            note=f"{self.origin(self.quoted.gain)} {how}".strip(),
            x="distance back to the earlier occurrence, in tokens",
            y="gain on such tokens, bits",
            train_length=length,
            ticks=tuple(sorted(edges)),
            lines=_with_few_bands(lines),
        )


def positions_in_bits(group: Group) -> pd.DataFrame:
    """Losses by position in the longest window of each encoding, in bits per byte, without those that are skipped."""
    table, scored = group.positions, group.rows[group.rows["status"] == "ok"]
    per_byte = float(scored["tokens"].sum() / scored["bytes"].sum()) if scored["bytes"].sum() else 1.0
    table = table[table["length"] == table.groupby("encoding")["length"].transform("max")]
    table = table[table["to"] > _skipped(group.train_length)]
    return table.assign(bits=table["nll"] / LN2 * per_byte)


def _skipped(train_length: int) -> int:
    return int(train_length * SKIPPED_POSITIONS)


def _levels(answers: pd.DataFrame) -> tuple[tuple[float, str], ...]:
    chance, solved = float(answers["chance"].iloc[0]), (SOLVED_SHARE, f"solved, {SOLVED_TEXT}")
    return (solved,) if math.isnan(chance) else ((chance, f"chance, {chance:.3f}"), solved)


def _lengths(points: Sequence[Point]) -> tuple[int, ...]:
    return tuple(sorted({point.length for point in points}))


def _lines(
    points: Sequence[Point],
    value: Callable[[Point], Triple],
    label: Callable[[str, Sequence[Point]], str] | None = None,
) -> Iterator[Line]:
    """The line of each encoding that has a number, over all lengths; y is NaN at those without one.

    `label` makes the text at the end of a line from the points with a number. A line that ends before the others has
    only its name there, and if it is a single point it has no text, because `_missing` names it.
    """
    lengths = _lengths(points)
    right = max((point.length for point in points if math.isfinite(value(point)[0])), default=0)
    for name in sorted({point.encoding for point in points}):
        known = [point for point in points if point.encoding == name and math.isfinite(value(point)[0])]
        if not known:
            continue
        ends_early, text = known[-1].length < right, ""
        if label is not None and not (ends_early and len(known) == 1):
            text = name if ends_early else label(name, known)
        at = {point.length: value(point) for point in points if point.encoding == name}
        numbers = [at.get(length, UNKNOWN) for length in lengths]
        y, low, high = (tuple(column) for column in zip(*numbers, strict=True))
        finite = tuple(each if math.isfinite(each) else math.nan for each in y)
        yield Line(name, lengths, finite, low, high, text)


def _lines_of_table(points: pd.DataFrame, x: str, y: str, write: Callable[[float], str]) -> list[Line]:
    """The line of each encoding in a table with `low` and `high`; its label ends in the last value, as `write` says."""
    lines = []
    for name, part in points.groupby("encoding"):
        at, values, low, high = (tuple(part[column]) for column in (x, y, "low", "high"))
        lines.append(Line(str(name), at, values, low, high, f"{name} {write(values[-1])}"))
    return lines


def _with_few_bands(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines, without their bands if there are more than MOST_BANDS."""
    return tuple(lines if len(lines) <= MOST_BANDS else (replace(line, low=(), high=()) for line in lines))


def _missing(points: Sequence[Point]) -> tuple[MissingResults, ...]:
    """Encodings without a result at some lengths; those of one cause and one set of lengths stand together."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name in sorted({point.encoding for point in points}):
        lost = [p for p in points if p.encoding == name and (p.status != "ok" or math.isinf(p.ppl))]
        if lost:
            first = lost[0]
            some = f" ({first.failed}/{first.seeds} seeds)" if 0 < first.failed < first.seeds else ""
            status = "infinite" if first.status == "ok" else first.status
            cause = f"{status} from {ratio_name(first.ratio)}{some}"
            alike.setdefault((cause, tuple(point.length for point in lost)), []).append(name)
    return tuple(MissingResults(tuple(names), cause, lengths) for (cause, lengths), names in alike.items())


def perplexity_finding(points: Sequence[Point], unit: str, weak: Mapping[str, str], score: str) -> str:
    """The lowest and the highest score at the longest length, who is `weak` by which verdict, and who has no number.

    It reads the figure, which says nothing about noise; which encoding is best is said by the section's answer.
    """
    last = max(point.length for point in points)
    ends = [point for point in points if point.length == last and not math.isnan(point.ppl)]
    ends = sorted((point for point in ends if point.encoding not in weak), key=lambda point: point.ppl)
    left_out = _left_out(points, weak)
    if not ends:
        return left_out
    text = f"Reading {last} {unit}s at once, {named(ends[0].encoding)}"
    if len(ends) == 1:
        text += f" has {score} {number(ends[0].ppl)}."
    else:
        text += f" has the lowest {score} ({number(ends[0].ppl)}) and {named(ends[-1].encoding)} the highest"
        text += f" ({number(ends[-1].ppl)})."
    return f"{text} {left_out}".strip()


def gain_finding(points: Sequence[Point], weak: Mapping[str, str]) -> str:
    """The encodings that the longest context helps, harms or breaks, judged by the interval of the gain."""
    last = max(point.length for point in points)
    ends = [point for point in points if point.length == last and not math.isnan(point.gain[0])]
    ends = sorted((point for point in ends if point.encoding not in weak), key=lambda point: -point.gain[0])
    ratio = max(point.ratio for point in points)
    if ratio <= 1:
        return "Only the training length was evaluated."
    names: dict[str, list[str]] = {}
    for point in ends:
        word = effect(verdict(*point.gain, seeds=point.seeds - point.failed), point.gain[2])
        names.setdefault(DEGRADES if word == OPEN_HARM else word, []).append(point.encoding)
    parts = [f"{phrase} {listed(names[word], 4)}" for word, phrase in EFFECTS.items() if word in names]
    if parts and UNCLEAR in names:
        parts.append(f"for {listed(names[UNCLEAR], 4)} that is unclear")
    effects = f"longer context {'; '.join(parts)}" if parts else "the effect of longer context is unclear"
    return f"At {ratio_name(ratio)}, {effects}. {_left_out(points, weak)}".strip()


def position_finding(bins: pd.DataFrame, weak: Mapping[str, str], bits: str) -> str:
    """The best and the worst loss in the last of the bins, which have the columns encoding, length and bits."""
    names = dict.fromkeys(bins["encoding"])
    weak_names = _too_weak(names, weak)
    ends = bins[bins["length"] == bins["length"].max()].dropna(subset=["bits"])
    ends = ends[~ends["encoding"].isin(list(weak))].sort_values("bits")
    if ends.empty:
        return weak_names
    best, worst = ends.iloc[0], ends.iloc[-1]
    text = f"At the end of the window {named(best['encoding'])} needs {best['bits']:.2f} {bits}"
    text += f", {named(worst['encoding'])} {worst['bits']:.2f}." if len(ends) > 1 else "."
    return f"{text} {weak_names}".strip()


def _too_weak(names: Collection[str], weak: Mapping[str, str]) -> str:
    which = {word: [name for name in names if weak.get(name) == word] for word in (UNDERTRAINED, NOT_TRAINED)}
    return " ".join(f"{word.capitalize()}: {listed(who, 4)}." for word, who in which.items() if who)


def _left_out(points: Sequence[Point], weak: Mapping[str, str]) -> str:
    """The encodings that did not learn enough, and those that have no number at the longest length."""
    names, last = dict.fromkeys(point.encoding for point in points), max(point.length for point in points)
    lost = [p.encoding for p in points if p.length == last and math.isnan(p.ppl)]
    lacking = f"No result there: {listed(lost, 4)}." if lost else ""
    return " ".join(filter(None, [_too_weak(names, weak), lacking]))
