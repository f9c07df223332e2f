"""What the scripts of the page draw of a section, as plain lists for JSON: the numbers of the report, shortened.

A point is a list, short because there are thousands: status, failed seeds, reason, then the loss with the ends of its
interval, the gain with those of its own, and tokens per byte. Numbers that have no table of documents behind them, such
as seconds, are lists of one value per seed; from them the page computes Student's interval over seeds, absolute or
relative to another encoding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from poscli.report.accuracy import PLACES
from poscli.report.catalogue import TITLES
from poscli.report.comparison import Pairs
from poscli.report.data import Accuracies, Answer, Bin, Section, Values
from poscli.report.pooling import ratio_name
from poscli.report.verdicts import SOLVED_SHARE
from poscli.statistics import UPPER
from poscli.statistics.comparison import BETTER, NOT_COMPARED, TOO_FEW, WITHIN_NOISE, WORSE

DIGITS = 5
UNITS = 100_000  # differences reach the page as whole multiples of 1e-5, which are half as long in JSON
LETTERS = {BETTER: "b", WORSE: "w", WITHIN_NOISE: "n", TOO_FEW: "t", NOT_COMPARED: "-"}


def page_section(section: Section) -> dict[str, Any]:
    """The numbers and texts that the page shows of one section."""
    names = [each.name for each in section.protocols]
    families = {each.family for each in section.encodings}
    return {
        "title": section.title,
        "corpus": section.corpus,
        "trainLength": section.train_length,
        "lengths": section.lengths,
        "ratios": [ratio_name(length / section.train_length) for length in section.lengths],
        "unit": section.unit,
        "bits": section.bits,
        "perplexities": not section.per_byte,  # of several tokenizers, only losses per byte compare
        "protocols": [{"name": each.name, "explained": each.explained} for each in section.protocols],
        "main": names.index(section.headline.perplexity),
        "gainFrom": [names.index(each.gain_from) if each.gain_from else None for each in section.protocols],
        "families": [{"key": key, "title": title} for key, title in TITLES.items() if key in families],
        "encodings": _encodings(section),
        "points": [_points(section, name) for name in names],
        "pairs": [{"loss": _packed(each.losses), "gain": _packed(each.gains)} for each in section.protocols],
        "answered": None if section.accuracies is None else _accuracies(section, section.accuracies),
        "tasks": {
            name: {protocol: [_lists(values) for values in by_length] for protocol, by_length in protocols.items()}
            for name, protocols in section.measures.items()
        },
        "costs": [{"key": c.key, "title": c.title, "values": _lists(c.values)} for c in section.costs],
        "timing": section.timing,
        "position": _bins(section.positions),
        "recall": _bins(section.recall),
        "attribution": [{"title": h.title, "values": _lists(h.values), "why": h.why} for h in section.harms],
        "facts": section.made,
        "notes": section.notes,
        "seeds": section.seeds,
        "items": section.items,
        "fewSeeds": section.few_seeds,
        "student": shorts(stdtrit(np.arange(1, max(2, len(section.seeds))), UPPER)),
        "answers": [_answer(each.answer) for each in section.protocols],
    }


def short(value: float) -> float | None:
    """A number for JSON: five decimals, None for NaN and infinity.

    >>> short(2.1234567), short(float("nan")), short(3.0)
    (2.12346, None, 3)
    """
    value = float(value)
    if not math.isfinite(value):
        return None
    rounded = round(value, DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded


def shorts(values: Iterable[float]) -> list[float | None]:
    """Several numbers for JSON."""
    return [short(value) for value in values]


def _lists(values: Sequence[Values]) -> list[list[float | None]]:
    return [shorts(each) for each in values]


def _bins(bins: Sequence[Bin]) -> list[dict[str, Any]]:
    return [{"from": each.first, "to": each.last, "values": _lists(each.values)} for each in bins]


def _answer(answer: Answer) -> dict[str, Any]:
    return {"sentence": answer.sentence, "facts": answer.facts, "best": answer.best}


def _encodings(section: Section) -> list[dict[str, Any]]:
    least = min(each.parameters for each in section.encodings)
    return [
        {
            "name": each.name,
            "family": each.family,
            "acts": each.acts,
            "parts": each.formulas,
            "parameters": each.parameters,
            "extra": each.parameters - least,
            "seeds": each.seeds,
            "safe": short(each.safe),
            "effective": short(each.effective),
            "verdict": each.verdict,
            "meaning": each.meaning,
            "reason": each.reason,
            "canWin": each.can_win,
            "color": each.color,
            "dash": each.dash,
            "strong": each.strong,
            "command": each.command,
        }
        for each in section.encodings
    ]


def _points(section: Section, protocol: str) -> list[list[list[Any] | None]]:
    """The points of a protocol by encoding and length; None where there is no row."""
    known = {
        (p.encoding, p.length): [p.status, p.failed, p.reason, *shorts((*p.loss, *p.gain, p.tokens_per_byte))]
        for p in section.points(protocol)
    }
    return [[known.get((each.name, length)) for length in section.lengths] for each in section.encodings]


def _packed(pairs: Pairs | None) -> dict[str, Any] | None:
    """Every pair at every length as [difference, low, high] in 1 / UNITS, and for every base a letter for each word."""
    if pairs is None:
        return None
    numbers = [None if math.isnan(v) else round(v * UNITS) for each in pairs.comparisons for v in each.numbers]
    return {"numbers": numbers, "words": ["".join(map(LETTERS.__getitem__, pairs.words(base))) for base in pairs.names]}


def _accuracies(section: Section, accuracies: Accuracies) -> dict[str, Any]:
    """The right answers: [accuracy, low, high] by encoding and length, None without a number; compared; by place."""
    place = None
    if accuracies.places:
        question, _, label = PLACES[accuracies.by_depth]
        place = {
            "title": f"Does it matter {question}?",
            "label": label,
            "depth": accuracies.by_depth,
            "length": accuracies.place_length,
            "bins": _bins(accuracies.places),
        }
    return {
        "solved": SOLVED_SHARE,
        "chance": short(accuracies.chance),
        "pairs": _packed(accuracies.pairs),
        "place": place,
        "points": [
            [None if math.isnan(numbers[0]) else shorts(numbers) for numbers in line] for line in accuracies.points
        ],
    }
