"""The answer of the page in one sentence: which encoding, at which length, how sure, at what cost.

It is made from the numbers of the page (`data.section_data`), once for every protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from poscli.drawing.text import listed, named, signed
from poscli.evaluation.intervals import UPPER
from poscli.report.page.pairs import NOISE, NOTHING, WORSE
from poscli.report.verdicts import BREAKS, DEGRADES, HOLDS, MAY_USE_CONTEXT, UNCLEAR, USES_CONTEXT

LOSS, GAIN = slice(3, 6), slice(6, 9)  # of a point: value, low, high
NAMED = 3  # encodings that a sentence names before it counts the rest
# What a verdict says about the longer context, for the fact beside the sentence.
READS = {
    USES_CONTEXT: "Yes",
    MAY_USE_CONTEXT: "Perhaps, seeds are few",
    HOLDS: "It does no harm, but it is not used",
    DEGRADES: "No, it harms",
    BREAKS: "No, it breaks the model",
    UNCLEAR: "Unclear",
}


@dataclass(frozen=True)
class Answer:
    """A sentence in parts, of which those marked True are emphasised, and facts (question, answer) beside it."""

    sentence: tuple[tuple[str, bool], ...]
    facts: tuple[tuple[str, str], ...]
    winner: int | None = None  # number of the encoding

    @property
    def text(self) -> str:
        """The sentence without emphasis."""
        return "".join(text for text, _ in self.sentence)

    def data(self) -> dict[str, Any]:
        """The answer for JSON."""
        return {
            "sentence": [list(p) for p in self.sentence],
            "facts": [list(f) for f in self.facts],
            "winner": self.winner,
        }


def answers(section: dict[str, Any]) -> list[Answer]:
    """The answer under each protocol of a section, whose numbers are given."""
    return [_answer(section, protocol) for protocol in range(len(section["protocols"]))]


def _answer(section: dict[str, Any], protocol: int) -> Answer:
    ends = [line[-1] for line in section["points"][protocol]]
    read = f"{section['lengths'][-1]:,} tokens ({section['ratios'][-1]} the training length)"
    rivals = [n for n, end in enumerate(ends) if _can_win(section["encodings"][n], end)]
    if not rivals:
        measured = any(end is not None and end[3] is not None for end in ends)
        verdicts = listed(sorted({str(encoding["verdict"]) for encoding in section["encodings"]}))
        why = f"can be called best at {read}: the verdicts are {verdicts}" if measured else f"has a result at {read}"
        return Answer(((f"No encoding {why}.", False),), _sure(section))
    best = min(rivals, key=lambda n: ends[n][3])
    name = section["encodings"][best]["name"]
    sentence = (
        (f"Reading {read}, ", False),
        (named(name), True),
        (" predicts best: ", False),
        (f"{ends[best][3]:.3f}", True),
        (
            f" bits per byte {_bracket(ends[best][LOSS])}{_standing(section, protocol, best)}{_cost(section, best)}.",
            False,
        ),
    )
    return Answer(sentence, (_context(section, best, protocol), _others(section), *_sure(section)), best)


def _can_win(encoding: dict[str, Any], end: Sequence[Any] | None) -> bool:
    return bool(encoding["canWin"] and end is not None and end[0] == "ok" and end[3] is not None)


def _bracket(numbers: Sequence[float | None], write: Callable[[float], str] = "{:.3f}".format) -> str:
    """The interval of [value, low, high] in square brackets, or why there is none."""
    _, low, high = numbers
    if low is None or high is None:
        return "(no interval: too few documents)"
    return f"[{write(low)}, {write(high)}]"


def _standing(section: dict[str, Any], protocol: int, best: int) -> str:
    """How the best encoding compares with all others at the longest length."""
    pairs, last = section["pairs"][protocol]["loss"], len(section["lengths"])
    if pairs is None:
        return " (not compared: the losses of single documents are missing)"
    letters = pairs["words"][best][last - 1 :: last]
    names = [encoding["name"] for encoding in section["encodings"]]
    others = {letter: [name for name, own in zip(names, letters, strict=True) if own == letter] for letter in "wn-b"}
    alike, compared = others[NOISE], len(others[WORSE]) + len(others[NOISE])
    if not compared:
        return ""
    told = [f"better than {len(others[WORSE])} of {compared} others"] if others[WORSE] else []
    told += [f"within noise of {listed(alike, NAMED)}"] if alike else ["all beyond noise"]
    ends = dict(zip(names, (line[-1] for line in section["points"][protocol]), strict=True))
    beside = [ends[name] for name in others[NOTHING] if name != names[best]]
    missing = sum(end is None or end[3] is None for end in beside)
    told += [f"{missing} without a result there"] if missing else []
    told += [f"not compared with {len(beside) - missing}, which read other text"] if len(beside) > missing else []
    return f", {', '.join(told)}"


def _cost(section: dict[str, Any], best: int) -> str:
    """The training time of the best encoding, and as a multiple of the shortest."""
    cost = next((cost for cost in section["costs"] if cost["key"] == "seconds"), None)
    known = [[value for value in line if value] for line in cost["values"]] if cost else []
    if not known or not known[best]:
        return ""
    means = [student_of_logs(line)[0] for line in known if line]
    took, low, high = student_of_logs(known[best])
    interval = f"[{seconds(low)}, {seconds(high)}]" if low == low else "(one seed, no interval)"
    ratio = took / min(means) if means else math.nan
    times = f", {ratio:.2f} times as long as the fastest" if ratio > 1.005 else ", the fastest"
    return f", for {seconds(took)} of training {interval}{times if len(means) > 1 else ''}"


def student_of_logs(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of times of several seeds with its 95 % interval, Student's of their logarithms.

    The ends are NaN for one value. Times are positive, and an interval of their logarithms is, too.
    """
    logs = np.log(values)
    mean = float(logs.mean())
    if len(values) < 2:
        return math.exp(mean), math.nan, math.nan
    reach = float(stdtrit(len(values) - 1, UPPER) * logs.std(ddof=1) / math.sqrt(len(values)))
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def seconds(value: float) -> str:
    """A time in words: seconds below two minutes, then minutes, then hours.

    >>> seconds(3.14159), seconds(45.2), seconds(170), seconds(600), seconds(9000)
    ('3.1 s', '45 s', '2.8 min', '10 min', '2.5 h')
    """
    if abs(value) < 120:
        return f"{value:.{1 if abs(value) < 10 else 0}f} s"
    return f"{value / 60:.{0 if abs(value) >= 600 else 1}f} min" if abs(value) < 7200 else f"{value / 3600:.1f} h"


def _context(section: dict[str, Any], best: int, protocol: int) -> tuple[str, str]:
    """Whether the best encoding uses the longer context: its gain over the context cut to L."""
    question, length = "Does it use the longer context?", section["trainLength"]
    shown = section["gainFrom"][protocol]
    end = section["points"][shown][best][-1] if shown is not None else None
    end = end if end is not None and end[6] is not None else None
    verdict = section["encodings"][best]["verdict"]
    if end is None:
        return question, "Not measured: no protocol compares it with a shorter context."
    bits = f"{signed(end[6])} bits per byte {_bracket(end[GAIN], signed)}"
    return question, f"{READS.get(verdict, verdict)}: {bits} against its context cut to {length}."


def _others(section: dict[str, Any]) -> tuple[str, str]:
    """Which encodings still work at the longest length."""
    encodings = section["encodings"]
    good = [each["name"] for each in encodings if each["verdict"] in (USES_CONTEXT, MAY_USE_CONTEXT, HOLDS)]
    question = f"Which still work at {section['ratios'][-1]}?"
    if not good:
        return question, f"None of {len(encodings)}: the longer context harms, or nothing can be told."
    return question, f"{len(good)} of {len(encodings)}: {listed(good, 6)}."


def _sure(section: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What the intervals and words are based on."""
    seeds = len(section["seeds"])
    counts = f"{seeds} seed{'s' * (seeds != 1)}"
    if section["fewSeeds"]:
        told = f"{counts} each: intervals are over documents only, and another seed may rank otherwise."
    else:
        told = f"{counts}: 95 % intervals over seeds and documents; words by paired permutation tests (Holm, p < 0.05)."
    return (("How sure is that?", told),)
