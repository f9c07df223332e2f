"""What the answers of the page have in common: their parts, intervals, costs, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from poscli.drawing.text import listed, low_to_high
from poscli.evaluation.estimates import FEWEST_SEEDS, UPPER
from poscli.report.page.pairs import BETTER, FEW, NOISE, NOTHING, WORSE

LETTERS = (BETTER, WORSE, NOISE, FEW, NOTHING)
NAMED = 3  # encodings that a sentence names before it counts the rest


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


def bracket(
    numbers: Sequence[float | None], write: Callable[[float], str] = "{:.3f}".format, items: str = "documents"
) -> str:
    """The interval of [value, low, high] in square brackets, or why there is none."""
    _, low, high = numbers
    if low is None or high is None:
        return f"(no interval: too few {items})"
    return f"[{write(low)}, {write(high)}]"


def standing(section: dict[str, Any], pairs: dict[str, Any] | None, missing: Sequence[bool], best: int) -> str:
    """How the best encoding compares with all others at the longest length.

    `pairs` are the comparisons, None if there are none; `missing` says which encodings have no number there.
    """
    if pairs is None:
        return f" (not compared: the results of single {section['items']} are missing)"
    last = len(section["lengths"])
    letters = pairs["words"][best][last - 1 :: last]
    names = [encoding["name"] for encoding in section["encodings"]]
    others = {letter: [name for name, own in zip(names, letters, strict=True) if own == letter] for letter in LETTERS}
    compared = sum(len(others[letter]) for letter in (WORSE, NOISE, FEW, BETTER))
    if not compared:
        return ""
    told = [f"better than {len(others[WORSE])} of {compared} others"] if others[WORSE] else []
    told += [f"within noise of {listed(others[NOISE], NAMED)}"] if others[NOISE] else []
    told += ["all beyond noise"] if len(others[WORSE]) == compared else []
    told += [f"with too few {section['items']} to tell from {listed(others[FEW], NAMED)}"] if others[FEW] else []
    # The mean of other seeds can be the best one although, on the seeds that both have, another is better.
    told += [f"but worse than {listed(others[BETTER], NAMED)} on the seeds in common"] if others[BETTER] else []
    lacking = dict(zip(names, missing, strict=True))
    beside = [lacking[name] for name in others[NOTHING] if name != names[best]]
    told += [f"{sum(beside)} without a result there"] if any(beside) else []
    apart = len(beside) - sum(beside)
    told += [f"not compared with {apart}, for want of a seed or text in common"] if apart else []
    return f", {', '.join(told)}"


def cost(section: dict[str, Any], best: int) -> str:
    """The training time of the best encoding, and as a multiple of the shortest."""
    times = next((each for each in section["costs"] if each["key"] == "seconds"), None)
    known = [[value for value in line if value] for line in times["values"]] if times else []
    if not known or not known[best]:
        return ""
    means = [student_of_logs(line)[0] for line in known if line]
    took, low, high = student_of_logs(known[best])
    interval = f"[{seconds(low)}, {seconds(high)}]" if low == low else "(too few seeds for an interval)"
    ratio = took / min(means) if means else math.nan
    beside = f", {ratio:.2f} times as long as the fastest" if ratio > 1.005 else ", the fastest"
    return f", for {seconds(took)} of training {interval}{beside if len(means) > 1 else ''}"


def student_of_logs(values: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of times of several seeds with its 95 % interval, Student's of their logarithms.

    The ends are NaN for fewer than FEWEST_SEEDS. Times are positive, and an interval of their logarithms is, too.
    """
    logs = np.log(values)
    mean = float(logs.mean())
    if len(values) < FEWEST_SEEDS:
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


def sure(section: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What the intervals and words are based on."""
    counts = low_to_high({encoding["seeds"] for encoding in section["encodings"]})
    counts = f"{counts} seed{'s' * (counts != '1')}"
    if section["fewSeeds"]:
        told = f"{counts} each: intervals are over {section['items']} only, and another seed may rank otherwise."
    else:
        basis = f"95 % intervals over seeds and {section['items']}"
        told = f"{counts}: {basis}; words by paired permutation tests (Holm, p < 0.05)."
    return (("How sure is that?", told),)
