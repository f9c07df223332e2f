"""The answer of the page in one sentence: which encoding, at which length, how sure, at what cost.

It is made from the numbers of the page (`data.section_data`), once for every protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from poscli.drawing.text import listed, named, signed
from poscli.report.page.task_answer import task_answer
from poscli.report.page.told import Answer, bracket, cost, standing, sure
from poscli.report.verdicts import BREAKS, DEGRADES, HOLDS, MAY_USE_CONTEXT, UNCLEAR, USES_CONTEXT, verdict

LOSS, GAIN = slice(3, 6), slice(6, 9)  # of a point: value, low, high
# What a verdict says about the longer context, for the fact beside the sentence.
READS = {
    USES_CONTEXT: "Yes",
    MAY_USE_CONTEXT: "Perhaps, seeds are few",
    HOLDS: "It does no harm, but it is not used",
    DEGRADES: "No, it harms",
    BREAKS: "No, it breaks the model",
    UNCLEAR: "Unclear",
}


def answers(section: dict[str, Any]) -> list[Answer]:
    """The answer under each protocol of a section, whose numbers are given."""
    if section["answered"] is not None:
        return [task_answer(section)] * len(section["protocols"])
    return [_answer(section, protocol) for protocol in range(len(section["protocols"]))]


def _answer(section: dict[str, Any], protocol: int) -> Answer:
    ends = [line[-1] for line in section["points"][protocol]]
    read = f"{section['lengths'][-1]:,} tokens ({section['ratios'][-1]} the training length)"
    rivals = [n for n, end in enumerate(ends) if _can_win(section["encodings"][n], end)]
    if not rivals:
        measured = any(end is not None and end[3] is not None for end in ends)
        verdicts = listed(sorted({str(encoding["verdict"]) for encoding in section["encodings"]}))
        why = f"can be called best at {read}: the verdicts are {verdicts}" if measured else f"has a result at {read}"
        return Answer(((f"No encoding {why}.", False),), sure(section))
    best = min(rivals, key=lambda n: ends[n][3])
    name = section["encodings"][best]["name"]
    missing = [end is None or end[3] is None for end in ends]
    beside = standing(section, section["pairs"][protocol]["loss"], missing, best)
    sentence = (
        (f"Reading {read}, ", False),
        (named(name), True),
        (" predicts best: ", False),
        (f"{ends[best][3]:.3f}", True),
        (
            f" bits per byte {bracket(ends[best][LOSS])}{beside}{cost(section, best)}.",
            False,
        ),
    )
    return Answer(sentence, (_context(section, best, protocol), _others(section), *sure(section)), best)


def _can_win(encoding: dict[str, Any], end: Sequence[Any] | None) -> bool:
    return bool(encoding["canWin"] and end is not None and end[0] == "ok" and end[3] is not None)


def _context(section: dict[str, Any], best: int, protocol: int) -> tuple[str, str]:
    """Whether the best encoding uses the longer context: its gain over the context cut to L."""
    question, length = "Does it use the longer context?", section["trainLength"]
    shown = section["gainFrom"][protocol]
    end = section["points"][shown][best][-1] if shown is not None else None
    end = end if end is not None and end[6] is not None else None
    if end is None or section["lengths"][-1] <= length:
        return question, "Not measured: no protocol compares it with a shorter context."
    gain, low, high = (math.nan if value is None else value for value in end[GAIN])
    word = verdict(gain, low, high, seeds=section["encodings"][best]["seeds"])
    bits = f"{signed(gain)} bits per byte {bracket(end[GAIN], signed)}"
    return question, f"{READS[word]}: {bits} against its context cut to {length}."


def _others(section: dict[str, Any]) -> tuple[str, str]:
    """Which encodings still work at the longest length."""
    encodings = section["encodings"]
    good = [each["name"] for each in encodings if each["verdict"] in (USES_CONTEXT, MAY_USE_CONTEXT, HOLDS)]
    question = f"Which still work at {section['ratios'][-1]}?"
    if not good:
        return question, f"None of {len(encodings)}: the longer context harms, or nothing can be told."
    return question, f"{len(good)} of {len(encodings)}: {listed(good, 6)}."
