"""What the answer of a section has beside its ranking: intervals, noise, gain and harm, costs, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

from poscli.drawing.text import low_to_high
from poscli.report.origin import items_of
from poscli.report.sections import Group
from poscli.report.trained import Trained
from poscli.report.verdicts import (
    BREAKS,
    DEGRADES,
    GAIN_BPB,
    HARM_BPB,
    HOLDS,
    MAY_USE_CONTEXT,
    UNCLEAR,
    USES_CONTEXT,
    surely_gains,
    surely_harms,
    verdict,
)
from poscli.statistics import FEWEST_SEEDS, UPPER

READS = {
    USES_CONTEXT: "Yes",
    MAY_USE_CONTEXT: "Perhaps, seeds are few",
    HOLDS: "Not measurably",
    DEGRADES: "No, it harms",
    BREAKS: "No, it breaks the model",
    UNCLEAR: "Unclear",
}
PAIRED = (
    "differences are taken between runs of equal seeds on the same {items}, so one encoding can be better than another "
    "although the intervals of the two overlap"
)


def beyond(seeds: int, items: str) -> str:
    """Beyond which noise a difference lies that so many pairs of runs show.

    >>> beyond(3, "documents"), beyond(1, "documents")
    ('beyond noise', 'beyond the noise of documents (one seed says nothing about other seeds)')
    """
    if seeds >= FEWEST_SEEDS:
        return "beyond noise"
    few = "one seed says nothing" if seeds == 1 else f"{seeds} seeds say little"
    return f"beyond the noise of {items} ({few} about other seeds)"


def reads(gain: float, low: float, high: float, *, seeds: int) -> str:
    """Whether a model uses the longer context, from its gain and the ends of the gain's interval, in bits per byte.

    >>> reads(-0.005, -0.008, -0.001, seeds=3)
    'No, it harms a little (by less than 0.01)'
    """
    word = verdict(gain, low, high, seeds=seeds)
    if word == HOLDS and surely_harms(high):
        return f"No, it harms a little (by less than {HARM_BPB})"
    if word == HOLDS and surely_gains(low):
        return f"Hardly, it gains a little (less than {GAIN_BPB})"
    if word == UNCLEAR and surely_harms(high):
        return f"No, it harms (whether by {HARM_BPB} or more is open)"
    return READS[word]


def sure(group: Group, *, told_apart: bool) -> str:
    """What intervals and words are based on; `told_apart` says whether an encoding is called better than another."""
    counts, items = set(group.rows.groupby("encoding")["seed"].nunique()), items_of(group.rows)
    told = f"{low_to_high(counts)} seed{'s' * (counts != {1})}"
    if max(counts) < FEWEST_SEEDS:
        told = f"{told} each: intervals are over {items} only, and another seed may rank otherwise"
    else:
        basis = f"95 % intervals over seeds and {items}"
        told = f"{told}: {basis}; words by paired permutation tests (Holm, p < 0.05)"
    if told_apart:
        told += f"; {PAIRED.format(items=items)}"
    return f"{told}."


def cost(group: Group, names: Sequence[str], first: str, trained: Mapping[str, Trained]) -> str:
    """The training time of an encoding, and as a multiple of the shortest."""
    runs = group.rows.drop_duplicates("run_id").groupby("encoding")["run_id"].agg(list).to_dict()
    times = {name: [trained[run].seconds for run in runs[name] if run in trained] for name in names}
    known = {name: [value for value in values if value > 0] for name, values in times.items()}
    if not known[first]:
        return ""
    means = [student_of_logs(values)[0] for values in known.values() if values]
    took, low, high = student_of_logs(known[first])
    interval = f"[{seconds(low)}, {seconds(high)}]" if low == low else "(too few seeds for an interval)"
    ratio = took / min(means)
    beside = f", {ratio:.2f} times as long as the fastest" if ratio > 1.005 else ", the fastest"
    return f", for {seconds(took)} of training {interval}{beside if len(means) > 1 else ''}"


def bracket(
    numbers: Sequence[float | None], write: Callable[[float], str] = "{:.3f}".format, items: str = "documents"
) -> str:
    """The interval of [value, low, high] in square brackets, or why there is none."""
    _, low, high = numbers
    if low is None or high is None:
        return f"(no interval: too few {items})"
    return f"[{write(low)}, {write(high)}]"


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
