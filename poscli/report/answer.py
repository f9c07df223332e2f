"""The answer of a section: which encoding is best in the longest window, how sure that is, and what it costs.

It is computed once, for every protocol. The page, the terminal and report.md print the same sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from poscli.drawing.text import listed, named, signed
from poscli.report.accuracy import by_length, wrong_answers
from poscli.report.comparison import compared_with, losses_of
from poscli.report.findings import solved_up_to
from poscli.report.origin import bits_per, items_of
from poscli.report.page.measured import points
from poscli.report.pooling import ACCURACY, gain_protocol, headline, pool, the_train_length
from poscli.report.sections import Group
from poscli.report.summary import is_answered, ratio_name
from poscli.report.told import beyond, bracket, cost, reads, sure
from poscli.report.trained import Trained, timing_note
from poscli.report.verdicts import (
    HOLDS,
    MAY_USE_CONTEXT,
    USES_CONTEXT,
    can_win,
    is_failure,
)
from poscli.statistics.comparison import BETTER, NOT_COMPARED, TOO_FEW, WITHIN_NOISE, WORSE, Losses

QUESTION = "How sure is that?"
NAMED = 3  # encodings that a sentence names before it counts the rest
Form = tuple[str, str]  # the words before and after a number
Facts = tuple[tuple[str, str], ...]  # questions and answers


@dataclass(frozen=True)
class Answer:
    """A sentence in parts, of which those marked True are emphasised, and facts (question, answer) beside it.

    `best` are the encodings that may be called best: one, or several that cannot be told apart. It is empty where
    nothing can be compared: no encoding has a result, or a single one.
    """

    sentence: tuple[tuple[str, bool], ...]
    facts: tuple[tuple[str, str], ...]
    sure: str  # the fact that says what the sentence is based on
    best: tuple[str, ...] = ()
    timing: str = ""  # why training times do not compare, where they are told and do not

    @property
    def text(self) -> str:
        """The sentence without emphasis."""
        return "".join(text for text, _ in self.sentence)

    @property
    def basis(self) -> str:
        """What the sentence is based on, and why times do not compare."""
        return " ".join(filter(None, [self.sure, self.timing]))

    def data(self) -> dict[str, Any]:
        """The answer for JSON."""
        return {
            "sentence": [list(part) for part in self.sentence],
            "facts": [list(fact) for fact in self.facts],
            "best": list(self.best),
        }


@dataclass(frozen=True)
class _Standing:
    """The encodings compared with the first of the ranking in the longest window, and over how many seeds."""

    of: Mapping[str, list[str]]  # names by the word for them
    seeds: int  # the fewest of a pair that is told apart, or of any pair if none is

    def names(self, word: str) -> list[str]:
        return self.of.get(word, [])

    @property
    def compared(self) -> int:
        return sum(len(self.names(word)) for word in (WORSE, WITHIN_NOISE, TOO_FEW, BETTER))


@dataclass(frozen=True)
class _Ends:
    """What the encodings of a section reach in the longest window: [value, low, high] by name, None where unknown."""

    numbers: Mapping[str, Sequence[float | None]]
    rivals: list[str]  # those that may be called best, best first
    losses: Losses | None  # by which they are compared; None without a table of documents or episodes


def answers(group: Group, summary: pd.DataFrame, trained: Mapping[str, Trained]) -> dict[str, Answer]:
    """The answer under each protocol of a section, by the protocol's name; `trained` is what `trained_runs` found."""
    protocols = list(dict.fromkeys(map(str, group.rows["protocol"])))
    if is_answered(summary):
        return dict.fromkeys(protocols, _of_answers(group, summary, trained))
    return {protocol: _of_losses(group, summary, protocol, trained) for protocol in protocols}


def _of_losses(group: Group, summary: pd.DataFrame, protocol: str, trained: Mapping[str, Trained]) -> Answer:
    names, last = [str(name) for name in summary["encoding"]], int(group.rows["length"].max())
    ends = {name: line[-1] for name, line in zip(names, points(group, protocol, names, [last]), strict=True)}
    fair = {name for name, word in zip(names, summary["verdict"], strict=True) if can_win(word)}
    known = {name: end[3:6] for name, end in ends.items() if end is not None and end[3] is not None}
    rivals = [name for name in names if name in fair and name in known and ends[name][0] == "ok"]
    losses = losses_of(group.rows, group.units, protocol) if group.units is not None else None
    found = _Ends(known, sorted(rivals, key=lambda name: known[name][0]), losses)
    read = f"Reading {_window(group)}"
    if not rivals:
        why = "has a result" if not known else f"can be ranked: {_verdicts_are(summary)}"
        return _nothing(f"{read}, no encoding {why}.", group, summary, ())
    first = found.rivals[0]
    facts = (_context(group, protocol, first), _still_work(group, summary))
    unit = f" {bits_per(group.rows)}"
    forms = (" predicts best: ", unit), (" has the lowest loss: ", unit), (" has a loss of ", unit)
    return _answer(f"{read}, ", forms, group, summary, found, facts, trained)


def _of_answers(group: Group, summary: pd.DataFrame, trained: Mapping[str, Trained]) -> Answer:
    """The answer of a task with right answers; rivals have more of them right than a guess."""
    rows, protocol = group.rows, headline(group.rows).perplexity
    answered = group.details.get("answers", pd.DataFrame())
    table = pool(rows, protocol).assign(accuracy=lambda own: own[ACCURACY], low=math.nan, high=math.nan)
    chance, losses = 0.0, None
    if not answered.empty:
        table = pd.concat([by_length(answered), table[~table["encoding"].isin(answered["encoding"])]])
        chance, losses = float(answered["chance"].iloc[0]), losses_of(rows, wrong_answers(answered, protocol), protocol)
    end = table[(table["length"] == rows["length"].max()) & table["accuracy"].notna()]
    known = {
        str(name): [None if math.isnan(value) else float(value) for value in numbers]
        for name, *numbers in end[["encoding", "accuracy", "low", "high"]].itertuples(index=False)
    }
    fair = [str(name) for name, word in zip(summary["encoding"], summary["verdict"], strict=True) if can_win(word)]
    rivals = [name for name in fair if name in known and _beats(known[name], chance)]
    found = _Ends(known, sorted(rivals, key=lambda name: -(known[name][0] or 0.0)), losses)
    guess = f"{chance:.3f}, if it knows the task and not the text."
    facts: Facts = (("How long may the window be?", solved_up_to(summary)),)
    facts += (("What does a guess get right?", guess),) if len(answered) else ()
    asked = f"n windows of {_window(group)}"
    if not rivals:
        why = "answers better than by chance" if known else "has a result"
        return _nothing(f"I{asked}, no encoding {why}.", group, summary, facts)
    most = " has the most answers right: ", " of them"
    forms = most, most, (" gets ", " of the answers right")
    return _answer(f"Asked i{asked}, ", forms, group, summary, found, facts, trained)


def _window(group: Group) -> str:
    """The longest window, such as `4,096 tokens (16x the training length)`."""
    last, length = int(group.rows["length"].max()), the_train_length(group.rows)
    multiple = "the training length" if last == length else f"{ratio_name(last / length)} the training length"
    return f"{last:,} tokens ({multiple})"


def _nothing(sentence: str, group: Group, summary: pd.DataFrame, facts: tuple[tuple[str, str], ...]) -> Answer:
    """The answer where no encoding can be called best."""
    basis = sure(group, told_apart=False)
    return Answer(((sentence, False),), (*facts, (QUESTION, basis)), basis)


def _answer(
    start: str,
    forms: tuple[Form, Form, Form],
    group: Group,
    summary: pd.DataFrame,
    ends: _Ends,
    facts: tuple[tuple[str, str], ...],
    trained: Mapping[str, Trained],
) -> Answer:
    """The answer about the first of the rivals.

    `forms` are the words around its number: where it is the best, where it cannot be told from others, and where it has
    no rival.
    """
    first, items = ends.rivals[0], items_of(group.rows)
    names = [str(name) for name in summary["encoding"]]
    standing = _standing(group, ends, names, first)
    peers = _peers(ends, standing)
    alone = len(ends.rivals) == 1
    verb, unit = forms[2] if alone else forms[1] if len(peers) > 1 else forms[0]
    value = ends.numbers[first][0]
    beside = "" if len(names) == 1 else _beside(ends, standing, items)
    if alone and len(names) > 1:
        beside += f", the only one of {len(names)} encodings that can be ranked"
    took = cost(group, names, first, trained)
    sentence = (
        (start, False),
        (named(first), True),
        (verb, False),
        (f"{value:.3f}", True),
        (f"{unit} {bracket(ends.numbers[first], items=items)}{beside}{took}.", False),
    )
    basis = sure(group, told_apart=standing is not None and bool(standing.names(WORSE)))
    timing = timing_note(group.rows["run_id"].unique(), trained) if took else ""
    told = (*facts, (QUESTION, basis), *([("Do the times compare?", timing)] if timing else []))
    return Answer(sentence, told, basis, () if alone else tuple(peers), timing)


def _standing(group: Group, ends: _Ends, names: list[str], first: str) -> _Standing | None:
    """How all others compare with the first; None if there is no table of documents or episodes to compare by."""
    if ends.losses is None or len(names) == 1:
        return None
    lengths = sorted(int(length) for length in set(group.rows["length"]))
    found = compared_with(ends.losses, names, lengths, first)
    last = {name: each for (name, length), each in found.items() if length == lengths[-1]}
    by_word: dict[str, list[str]] = {}
    for name, each in last.items():
        by_word.setdefault(each.word, []).append(name)
    seeds = [each.seeds for each in last.values() if each.word == WORSE]
    seeds = seeds or [each.seeds for each in last.values() if each.word != NOT_COMPARED]
    return _Standing(by_word, min(seeds, default=0))


def _peers(ends: _Ends, standing: _Standing | None) -> list[str]:
    """The rivals that cannot be told from the first, itself included, in the order of the ranking.

    Without a comparison they are all rivals.
    """
    if standing is None:
        return ends.rivals
    return [name for name in ends.rivals if name not in standing.names(WORSE)]


def _beside(ends: _Ends, standing: _Standing | None, items: str) -> str:
    """How the first of the rivals compares with all other encodings in the longest window."""
    if standing is None:
        return f" (not compared: the results of single {items} are missing)"
    worse, noise, few = (standing.names(word) for word in (WORSE, WITHIN_NOISE, TOO_FEW))
    told = []
    if len(worse) == standing.compared and worse:
        told += [f"better than {_all(worse)}, {beyond(standing.seeds, items)}"]
    elif worse:
        told += [f"better than {len(worse)} of {standing.compared} others, {beyond(standing.seeds, items)}"]
    told += [f"within noise of {listed(noise, NAMED)}"] if noise else []
    told += [f"with too few {items} to tell it from {listed(few, NAMED)}"] if few else []
    # The mean of other seeds can be the best one although, on the seeds that both have, another is better.
    if better := standing.names(BETTER):
        told += [f"but worse than {listed(better, NAMED)} on the seeds in common"]
    apart = standing.names(NOT_COMPARED)
    lacking = [name for name in apart if name not in ends.numbers]
    told += [f"{len(lacking)} without a result there"] if lacking else []
    apart = [name for name in apart if name not in lacking]
    told += [f"not compared with {listed(apart, NAMED)}, for want of a seed or text in common"] if apart else []
    return f", {', '.join(told)}" if told else ""


def _all(names: list[str]) -> str:
    """All others, in words: the only one by its name.

    >>> _all(["rope"]), _all(["rope", "t5"])
    ('rope', 'all 2 others')
    """
    return named(names[0]) if len(names) == 1 else f"all {len(names)} others"


def _beats(numbers: Sequence[float | None], chance: float) -> bool:
    """Whether an accuracy is above chance: its interval, or, where that is not known, the accuracy."""
    value, low, _ = numbers
    return (low if low is not None else value or 0.0) > chance


def _verdicts_are(summary: pd.DataFrame) -> str:
    """Why no encoding can be ranked, with how many they are, such as `2 are not trained and 1 failed (oom)`."""
    told = []
    for word, count in summary["verdict"].value_counts(sort=False).items():
        is_or_are = "is" if count == 1 else "are"
        told.append(f"{count} failed ({word})" if is_failure(str(word)) else f"{count} {is_or_are} {word}")
    return listed(told, len(told))


def _context(group: Group, protocol: str, name: str) -> tuple[str, str]:
    """Whether an encoding uses the longer context: its gain over the context cut to L."""
    question, length = "Does it use the longer context?", the_train_length(group.rows)
    shown, last = gain_protocol(group.rows, protocol), int(group.rows["length"].max())
    end = pool(group.rows, shown) if shown else pd.DataFrame(columns=["encoding", "length", "gain"])
    end = end[(end["encoding"] == name) & (end["length"] == last) & end["gain"].notna()]
    if end.empty or last <= length:
        return question, "Not measured: no protocol compares it with a shorter context."
    gain, low, high = (float(value) for value in end[["gain", "gain_low", "gain_high"]].iloc[0])
    seeds = int(end["seeds"].iloc[0] - end["failed"].iloc[0])
    numbers = [None if math.isnan(value) else value for value in (gain, low, high)]
    bits = f"{signed(gain)} {bits_per(group.rows)} {bracket(numbers, signed)}"
    return question, f"{reads(gain, low, high, seeds=seeds)}: {bits} against its context cut to {length}."


def _still_work(group: Group, summary: pd.DataFrame) -> tuple[str, str]:
    """Which encodings still work in the longest window."""
    good = summary[summary["verdict"].isin([USES_CONTEXT, MAY_USE_CONTEXT, HOLDS])]["encoding"]
    question = f"Which still work at {ratio_name(group.rows['length'].max() / the_train_length(group.rows))}?"
    if good.empty:
        return question, f"None of {len(summary)}: the longer context harms, or nothing can be told."
    return question, f"{len(good)} of {len(summary)}: {listed([str(name) for name in good], 6)}."
