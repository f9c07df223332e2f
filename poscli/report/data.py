"""What a report says, as one tree of frozen objects: computed once (section.py), then only written and drawn.

Numbers that are not known are NaN, and None in the JSON form. Losses and gains are in bits per byte, or per cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from poscli.config.claim import Claim
from poscli.drawing.style import Styles
from poscli.drawing.text import number
from poscli.report.comparison import AllPairs
from poscli.report.pooling import Headline, Point
from poscli.report.summary import as_json, join
from poscli.report.table import Column
from poscli.runs.schema import FULL
from poscli.statistics import Triple
from poscli.system.notebook import html_table

Values = tuple[float, ...]  # one number per seed of the section; NaN where a seed has none
Fact = tuple[str, str]  # a question or the name of a fact, and what is known


@dataclass(frozen=True)
class AnswerData:
    """Which encoding is best: a sentence in parts, of which those marked True are emphasised, and facts beside it.

    `best` are the encodings that may be called best: one, or several that cannot be told apart. It is empty where
    nothing can be compared: no encoding has a result, or a single one.
    """

    sentence: tuple[tuple[str, bool], ...]
    facts: tuple[Fact, ...]
    sure: str  # the fact that says what the sentence is based on
    best: tuple[str, ...] = ()
    timing: str = ""  # why training times do not compare, where the sentence names one and they do not

    @property
    def text(self) -> str:
        """The sentence without emphasis."""
        return "".join(text for text, _ in self.sentence)

    @property
    def basis(self) -> str:
        """What the sentence is based on, and why times do not compare."""
        return " ".join(filter(None, [self.sure, self.timing]))


@dataclass(frozen=True)
class Analysis:
    """A question about the results, its answer, single findings as `points`, and a table; `legend` explains columns."""

    title: str
    answer: str
    columns: tuple[Column, ...] = ()
    legend: tuple[str, ...] = ()
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class EncodingData:
    """One encoding of a section: what it is, its size, its look, the verdict, and how to reproduce its results."""

    name: str
    family: str
    acts: str
    parts: tuple[tuple[str, str, str], ...]  # name, formula and paper of each encoding that it consists of
    parameters: int
    extra: int  # parameters more than the smallest model has
    seeds: int
    safe: float  # proven up to this multiple of L
    harmful: float  # proven from this multiple on
    safety: str  # both in words, with what is undecided; empty with too few seeds
    effective: float  # multiples of L, as the ends of its interval
    effective_low: float
    effective_high: float
    verdict: str
    meaning: str
    reason: str
    can_win: bool
    color: int  # in PALETTE
    dash: int  # in DASHES
    strong: bool
    command: str


@dataclass(frozen=True)
class ProtocolData:
    """One protocol: what it is, the answer under it, and all encodings compared by their losses and gains."""

    name: str
    explained: str
    answer: AnswerData
    losses: AllPairs | None  # None without a table of units
    gains: AllPairs | None
    gain_from: str  # the protocol whose gain is shown with these losses; empty if there is none


@dataclass(frozen=True)
class ProtocolPoints:
    """The points of all encodings and lengths under one protocol, of the model or under a baseline."""

    protocol: str
    variant: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class BinData:
    """A range of positions, distances or depths, with the values of every encoding by seed.

    `intervals` are (mean, low, high) of every encoding over documents or episodes and seeds, where they are known.
    """

    first: int
    last: int
    values: tuple[Values, ...]
    intervals: tuple[Triple, ...]


@dataclass(frozen=True)
class Accuracies:
    """The right answers of a task: (accuracy, low, high) by encoding and length, compared, and by place."""

    points: tuple[tuple[Triple, ...], ...]
    chance: float
    pairs: AllPairs | None
    by_depth: bool  # places are depths in percent of the window, and not gaps in tokens
    places: tuple[BinData, ...]  # in the longest window; empty where all answers lie in one bin
    place_length: int  # of that window


@dataclass(frozen=True)
class Cost:
    """What encodings cost, by seed; less is better."""

    key: str
    title: str
    values: tuple[Values, ...]


@dataclass(frozen=True)
class Harm:
    """The harm of a change to the window in bits per token, by encoding and seed, or why there is none."""

    title: str
    values: tuple[Values, ...]
    why: tuple[str, ...]


@dataclass(frozen=True)
class Ceiling:
    """What models win that are trained at a longer length, and what each encoding of the section wins of that.

    All are (estimate, low, high) with 95 % intervals, in bits per byte but for the shares `used`; those of encodings
    are in their order, and NaN where they are not known.
    """

    length: int
    ratio: float
    short: str  # the best encoding that was trained at L, with the context cut to L
    long: str  # the best one that was trained at this length
    headroom: Triple  # by how much the second is better
    gains: tuple[Triple, ...]
    used: tuple[Triple, ...]
    prices: tuple[Triple, ...]


@dataclass(frozen=True)
class Line:
    """The line of one encoding in a figure; its number is missing where y is NaN. `label` stands at its end."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class MissingResults:
    """Encodings without a result at some lengths, all for the same cause."""

    names: tuple[str, ...]
    cause: str
    lengths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What a figure shows; figures.py draws it. Its alternative text is the title with the finding."""

    name: str
    title: str
    finding: str
    heading: str  # above the labels at the ends of the lines
    note: str  # the footnote
    x: str = ""
    y: str
    train_length: int
    ticks: tuple[int, ...]
    tick_names: tuple[str, ...] = ()
    lines: tuple[Line, ...]
    missing: tuple[MissingResults, ...] = ()
    baselines: tuple[tuple[str, tuple[Line, ...]], ...] = ()
    levels: tuple[tuple[float, str], ...] = ()

    @property
    def alt(self) -> str:
        """The alternative text."""
        return f"{self.title} {self.finding}"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Everything that is said about results that may be compared: one corpus and one training length.

    Lists by encoding are in the order of `encodings`, the best at the longest length first; lists by length are in that
    of `lengths`; lists by seed in that of `seeds`.
    """

    title: str
    slug: str  # suffix of the names of its pictures; empty where there is one section
    train_length: int
    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    few_seeds: bool  # too few for intervals over seeds
    unit: str  # what one token is
    bits: str  # what losses are in
    items: str  # what intervals are over: documents or episodes
    per_byte: bool  # several tokenizers, of which only losses per byte compare
    headline: Headline
    summary: pd.DataFrame
    answered: bool  # a task with right answers, by which encodings are judged
    encodings: tuple[EncodingData, ...]
    styles: Styles  # of lines, by the names that the figures give to encodings
    protocols: tuple[ProtocolData, ...]
    measured: tuple[ProtocolPoints, ...]
    accuracies: Accuracies | None
    measures: Mapping[str, Mapping[str, tuple[tuple[Values, ...], ...]]]  # of a task, by protocol, length and encoding
    costs: tuple[Cost, ...]
    timing: str  # why training times do not compare; empty where they may
    positions: tuple[BinData, ...]
    recall: tuple[BinData, ...]
    harms: tuple[Harm, ...]
    ceilings: tuple[Ceiling, ...]
    use: Analysis | None  # what encodings win of the ceilings, which is also the first of the analyses
    facts: tuple[Fact, ...]  # how the results were made
    made: tuple[Fact, ...]  # how the results and the models were made
    made_of: Mapping[str, tuple[Fact, ...]]  # the same for each encoding
    analyses: tuple[Analysis, ...]
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]

    @property
    def pictures(self) -> tuple[str, ...]:
        """The names of the PNG files of the figures, in their order."""
        return tuple(f"{figure.name}{self.slug}.png" for figure in self.figures)

    @property
    def answer(self) -> AnswerData:
        """The answer under the protocol that reports quote, which the page, the terminal and report.md print."""
        return next(each.answer for each in self.protocols if each.name == self.headline.perplexity)

    def points(self, protocol: str) -> tuple[Point, ...]:
        """The points of the models themselves, without baselines, under a protocol; none if it was not measured."""
        points = (each.points for each in self.measured if (each.protocol, each.variant) == (protocol, FULL))
        return next(points, ())


@dataclass(frozen=True, kw_only=True)
class About:
    """What the rows of a report cannot tell."""

    title: str = ""
    description: str = ""
    claims: Sequence[Claim] = ()  # that are held against the results
    left_out: Sequence[str] = ()  # runs without rows: which, and why
    explained: Sequence[str] = ()  # what the protocols and baselines are, in Markdown


@dataclass(frozen=True, repr=False)
class Report:
    """Everything that a report says, the section with the most encodings first, and the files on disk."""

    sections: tuple[Section, ...]
    about: About
    files: tuple[Path, ...]

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The summaries of all sections, as in summary.csv."""
        return join([section.summary for section in self.sections])

    @property
    def notes(self) -> tuple[str, ...]:
        """The caveats of all sections."""
        return tuple(dict.fromkeys(note for section in self.sections for note in section.notes))

    def json(self) -> dict[str, Any]:
        """The report as plain values; NaN becomes None, and tables become lists of records."""
        return {"about": as_json(self.about), "sections": as_json(self.sections)}

    def __repr__(self) -> str:
        verdicts = (f"{row['encoding']}: {row['verdict']}" for row in self.summary.to_dict("records"))
        return "\n".join([*verdicts, *map(str, self.files)])

    def _repr_html_(self) -> str:
        scores = [name for name in self.summary.columns if name.startswith("ppl_")]
        rows = [
            (row["encoding"], *(number(row[name]) for name in scores), row["verdict"])
            for row in self.summary.to_dict("records")
        ]
        head = ["encoding", *(name.replace("ppl_", "perplexity ") for name in scores), "verdict"]
        return html_table("", rows, head, notes=[str(path) for path in self.files])
