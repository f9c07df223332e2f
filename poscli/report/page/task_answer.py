"""The answer of the page for a task with right answers: which encoding has most of them right in the longest window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from poscli.drawing.text import named
from poscli.report.findings import solved_up_to
from poscli.report.page.told import Answer, bracket, cost, standing, sure


def task_answer(section: dict[str, Any]) -> Answer:
    """The answer of a section whose task has right answers, from the numbers of the page."""
    answered, encodings = section["answered"], section["encodings"]
    ends, chance = [line[-1] for line in answered["points"]], answered["chance"]
    asked = f"windows of {section['lengths'][-1]:,} tokens ({section['ratios'][-1]} the training length)"
    rivals = [n for n, end in enumerate(ends) if encodings[n]["canWin"] and _beats(end, chance or 0)]
    facts = (*_solved(encodings), *_guess(chance), *sure(section))
    if not rivals:
        why = "answers better than by chance" if any(end is not None for end in ends) else "has a result"
        return Answer(((f"In {asked}, no encoding {why}.", False),), facts)
    best = max(rivals, key=lambda n: ends[n][0])
    beside = standing(section, answered["pairs"], [end is None for end in ends], best)
    sentence = (
        (f"Asked in {asked}, ", False),
        (named(encodings[best]["name"]), True),
        (" has the most answers right: ", False),
        (f"{ends[best][0]:.3f}", True),
        (f" of them {bracket(ends[best], items='episodes')}{beside}{cost(section, best)}.", False),
    )
    return Answer(sentence, facts, best)


def _beats(end: Sequence[float | None] | None, chance: float) -> bool:
    """Whether an accuracy is above chance: its interval, or, where that is not known, the accuracy."""
    if end is None or end[0] is None:
        return False
    low = end[0] if end[1] is None else end[1]
    return low > chance


def _solved(encodings: Sequence[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    effective = [math.nan if each["effective"] is None else each["effective"] for each in encodings]
    table = pd.DataFrame({"encoding": [each["name"] for each in encodings], "effective": effective})
    return (("How long may the window be?", solved_up_to(table)),)


def _guess(chance: float | None) -> tuple[tuple[str, str], ...]:
    if chance is None:
        return ()
    return (("What does a guess get right?", f"{chance:.3f}, if it knows the task and not the text."),)
