"""The answer of a section: which encoding is best in the longest window, how sure that is, and what it costs.

It is computed once, for every protocol. The page, the terminal and report.md print the same sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from poscli.drawing.text import listed, named, signed
from poscli.report.collect import Trained, timing_note
from poscli.report.comparison import AllPairs
from poscli.report.data import Accuracies, AnswerData, Fact
from poscli.report.origin import bits_per, items_of, seed_counts
from poscli.report.pooling import Point, ratio_name, the_train_length
from poscli.report.table import solved_up_to
from poscli.report.verdicts import (
    BREAKS,
    DEGRADES,
    GAIN_BPB,
    HARM_BPB,
    HOLDS,
    MAY_USE_CONTEXT,
    NOT_TESTED,
    UNCLEAR,
    UNDERTRAINED,
    USES_CONTEXT,
    can_win,
    is_failure,
    surely_harms,
    verdict,
)
from poscli.statistics import FEWEST_SEEDS, Triple
from poscli.statistics.comparison import BETTER, NOT_COMPARED, TOO_FEW, WITHIN_NOISE, WORSE
from poscli.statistics.intervals import interval_of_seeds

QUESTION = "How sure is that?"
NAMED = 3  # encodings that a sentence names before it counts the rest
Form = tuple[str, str]  # the words before and after a number
Ends = Mapping[str, Sequence[float]]  # (value, low, high) in the longest window by encoding, of those with a value
READS = {
    USES_CONTEXT: "Yes",
    MAY_USE_CONTEXT: "Perhaps, seeds are few",
    HOLDS: "Not measurably",
    DEGRADES: "No, it harms",
    BREAKS: "No, it breaks the model",
    UNCLEAR: "Unclear",
}


class Answers:
    """The answers about one section: its rows, its summary, and what training took."""

    def __init__(self, rows: pd.DataFrame, summary: pd.DataFrame, trained: Mapping[str, Trained]) -> None:
        self.rows, self.summary, self.trained = rows, summary, trained
        self.names = [str(name) for name in summary["encoding"]]
        self.fair = [str(name) for name, word in zip(self.names, summary["verdict"], strict=True) if can_win(word)]
        self.items, self.bits = items_of(rows), bits_per(rows)
        self.last, self.train_length = int(rows["length"].max()), the_train_length(rows)
        multiple = "" if self.last == self.train_length else f"{ratio_name(self.last / self.train_length)} "
        self.window = f"{self.last:,} tokens ({multiple}the training length)"

    def by_loss(self, points: Sequence[Point], gains: Sequence[Point], pairs: AllPairs | None) -> AnswerData:
        """The answer under a protocol; `gains` are the points whose gain is shown with its losses."""
        ends = {point.encoding: point for point in points if point.length == self.last}
        known = {  # rounded as on the page, so that both write the same digits
            name: [round(each, 5) for each in ends[name].loss]
            for name in self.names
            if name in ends and ends[name].is_known
        }
        rivals = [name for name in self.fair if name in known and ends[name].status == "ok"]
        rivals.sort(key=lambda name: known[name][0])
        read = f"Reading {self.window}"
        if not rivals:
            words = Counter(map(str, self.summary.loc[~self.summary["encoding"].isin(self.fair), "verdict"]))
            # Those that may win elsewhere failed under this protocol, or were not evaluated under it.
            words.update(ends[name].status if name in ends else NOT_TESTED for name in self.fair)
            counts = []
            for word, count in words.items():
                is_or_are = "is" if count == 1 else "are"
                counts.append(f"{count} failed ({word})" if is_failure(word) else f"{count} {is_or_are} {word}")
            why = f"can be ranked: {listed(counts, len(counts))}" if known else "has a result"
            return self._nothing(f"{read}, no encoding {why}.", ())
        longer = self.last > self.train_length
        facts = (self._context(gains, rivals[0]), self._still_work()) if longer else ()
        unit = f" {self.bits}"
        forms = (" predicts best: ", unit), (" has the lowest loss: ", unit), (" has a loss of ", unit)
        return self._about(f"{read}, ", forms, known, rivals, pairs, facts)

    def by_accuracy(self, accuracies: Accuracies) -> AnswerData:
        """The answer of a task with right answers; rivals have more of them right than a guess."""
        ends = {name: line[-1] for name, line in zip(self.names, accuracies.points, strict=True)}
        known = {name: end for name, end in ends.items() if not math.isnan(end[0])}
        chance = 0.0 if math.isnan(accuracies.chance) else accuracies.chance

        # The interval is above chance, or, where that is not known, the accuracy.
        sure = {name: value if math.isnan(low) else low for name, (value, low, _) in known.items()}
        rivals = [name for name in self.fair if name in known and sure[name] > chance]
        rivals.sort(key=lambda name: -known[name][0])
        facts: tuple[Fact, ...] = (("How long may the window be?", solved_up_to(self.summary)),)
        if not math.isnan(accuracies.chance):
            facts += (("What does a guess get right?", f"{chance:.3f}, if it knows the task and not the text."),)
        windows = f"n windows of {self.window}"
        if not rivals:
            why = "answers better than by chance" if known else "has a result"
            return self._nothing(f"I{windows}, no encoding {why}.", facts)
        most = " has the most answers right: ", " of them"
        forms = most, most, (" gets ", " of the answers right")
        return self._about(f"Asked i{windows}, ", forms, known, rivals, accuracies.pairs, facts)

    def _nothing(self, sentence: str, facts: tuple[Fact, ...]) -> AnswerData:
        """The answer where no encoding can be called best."""
        basis = self._basis(told_apart=False)
        return AnswerData(((sentence, False),), (*facts, (QUESTION, basis)), basis)

    def _about(
        self,
        start: str,
        forms: tuple[Form, Form, Form],
        ends: Ends,
        rivals: list[str],
        pairs: AllPairs | None,
        facts: tuple[Fact, ...],
    ) -> AnswerData:
        """The answer about the first of the rivals, which are in the order of the ranking.

        `forms` are the words around its number: where it is the best, where it cannot be told from others, and where it
        has no rival.
        """
        first, words, seeds = rivals[0], None, 0
        if pairs is not None and len(self.names) > 1:
            gated = set(self.summary.loc[self.summary["verdict"] == UNDERTRAINED, "encoding"])
            against = {name: each for name, each in pairs.of_the_best(first, self.last).items() if name not in gated}
            words = {name: each.word for name, each in against.items()}
            counts = [each.seeds for each in against.values() if each.word == WORSE]
            seeds = min(counts or [each.seeds for each in against.values() if each.word != NOT_COMPARED], default=0)
        # Those that cannot be told from the first; without a comparison, all rivals.
        peers = [name for name in rivals if words is None or words.get(name) != WORSE]
        alone = len(rivals) == 1
        verb, unit = forms[2] if alone else forms[1] if len(peers) > 1 else forms[0]
        beside = "" if len(self.names) == 1 else self._beside(words, seeds, ends)
        if alone and len(self.names) > 1:
            beside += f"; of {len(self.names)} encodings no other can be ranked"
        cost = self._cost(first)
        sentence = (
            (start, False),
            (named(first), True),
            (verb, False),
            (f"{ends[first][0]:.3f}", True),
            (f"{unit} {bracket(ends[first], items=self.items)}{beside}{cost}.", False),
        )
        basis = self._basis(told_apart=words is not None and WORSE in words.values())
        timing = timing_note(self.rows["run_id"].unique(), self.trained) if cost else ""
        facts = (*facts, (QUESTION, basis), *([("Do the times compare?", timing)] if timing else []))
        return AnswerData(sentence, facts, basis, () if alone else tuple(peers), timing)

    def _beside(self, words: Mapping[str, str] | None, seeds: int, ends: Ends) -> str:
        """How the first of the rivals compares with others in the longest window, given the word for each."""
        if words is None:
            return f" (not compared: the results of single {self.items} are missing)"
        of = {word: [name for name in words if words[name] == word] for word in set(words.values())}
        worse, noise, few, better = (of.get(word, []) for word in (WORSE, WITHIN_NOISE, TOO_FEW, BETTER))
        compared = sum(map(len, (worse, noise, few, better)))
        parts = []
        if worse:
            every = named(worse[0]) if len(worse) == 1 else f"all {len(worse)} others"
            who = every if len(worse) == compared else f"{len(worse)} of {compared} others"
            parts += [f"better than {who}, {beyond(seeds, self.items)}"]
        parts += [f"within noise of {listed(noise, NAMED)}"] if noise else []
        parts += [f"with too few {self.items} to tell it from {listed(few, NAMED)}"] if few else []
        # The mean of other seeds can be the best one although, on the seeds that both have, another is better.
        parts += [f"but worse than {listed(better, NAMED)} on the seeds in common"] if better else []
        apart = of.get(NOT_COMPARED, [])
        lacking = [name for name in apart if name not in ends]
        parts += [f"{len(lacking)} had no result there"] if lacking else []
        if apart := [name for name in apart if name in ends]:
            parts += [f"not compared with {listed(apart, NAMED)}, for want of a seed or text in common"]
        return f", {', '.join(parts)}" if parts else ""

    def _cost(self, first: str) -> str:
        """The training time of an encoding, and as a multiple of the shortest.

        Runs without any result are left out: a training that failed was short. A model that is read under several
        encodings was trained once, and there is nothing to compare.
        """
        runs = self.rows[self.rows["status"] == "ok"].drop_duplicates("run_id").groupby("encoding")["run_id"]
        known = {
            str(name): {
                self.trained[run].training or run: self.trained[run].seconds for run in ids if run in self.trained
            }
            for name, ids in runs
        }
        known = {name: {run: time for run, time in times.items() if time > 0} for name, times in known.items()}
        if not known.get(first):
            return ""
        means = {frozenset(times): student_of_logs([*times.values()])[0] for times in known.values() if times}
        time, low, high = student_of_logs([*known[first].values()])
        interval = f"[{seconds(low)}, {seconds(high)}]" if low == low else "(too few seeds for an interval)"
        if timing_note(self.rows["run_id"].unique(), self.trained):
            return f"; it trained for {seconds(time)} {interval}"
        ratio = time / min(means.values())
        beside = f", {ratio:.2f} times as long as the fastest" if ratio > 1.005 else ", the fastest"
        return f"; it trained for {seconds(time)} {interval}{beside if len(means) > 1 else ''}"

    def _basis(self, *, told_apart: bool) -> str:
        """What intervals and words are based on; `told_apart`: an encoding is called better than another."""
        basis = seed_counts(self.rows)
        if self.rows.groupby("encoding")["seed"].nunique().max() < FEWEST_SEEDS:
            basis += f" each: intervals are over {self.items} only, and another seed may rank otherwise"
        else:
            basis += f": 95 % intervals over seeds and {self.items}; words by paired permutation tests (Holm, p < 0.05)"
        return f"{basis}; {paired(self.items)}." if told_apart else f"{basis}."

    def _context(self, gains: Sequence[Point], name: str) -> Fact:
        """Whether an encoding uses the longer context: its gain over the context cut to L."""
        question = "Does it use the longer context?"
        end = [point for point in gains if (point.encoding, point.length) == (name, self.last)]
        if not end or math.isnan(end[0].gain[0]):
            return question, "Not measured: no protocol compares it with a shorter context."
        gain = [round(each, 5) for each in end[0].gain]  # as on the page, so that both write the same digits
        bits = f"{signed(gain[0])} {self.bits} {bracket(gain, signed)}"
        word = reads(*end[0].gain, seeds=end[0].seeds - end[0].failed)
        return question, f"{word}: {bits} against its context cut to {self.train_length}."

    def _still_work(self) -> Fact:
        """Which encodings still work in the longest window."""
        good = self.summary[self.summary["verdict"].isin([USES_CONTEXT, MAY_USE_CONTEXT, HOLDS])]["encoding"]
        question = f"Which still work at {ratio_name(self.last / self.train_length)}?"
        if good.empty:
            return question, f"None of {len(self.summary)}: the longer context harms, or nothing can be told."
        return question, f"{len(good)} of {len(self.summary)}: {listed([str(name) for name in good], 6)}."


def paired(items: str) -> str:
    """Why an encoding can be better than another although their intervals overlap."""
    return (
        f"differences are taken between runs of equal seeds on the same {items}, so one encoding can be better than "
        "another although the intervals of the two overlap"
    )


def beyond(seeds: int, items: str) -> str:
    """Beyond which noise a difference lies that this number of pairs of runs shows.

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
    if word == HOLDS and low > 0:
        return f"Hardly, it gains a little (less than {GAIN_BPB})"
    if word == UNCLEAR and surely_harms(high):
        return f"No, it harms (whether by {HARM_BPB} or more is open)"
    return READS[word]


def bracket(numbers: Sequence[float], write: Callable[[float], str] = "{:.3f}".format, items: str = "documents") -> str:
    """The interval of (value, low, high) in square brackets, or why there is none."""
    _, low, high = numbers
    known = math.isfinite(low) and math.isfinite(high)
    return f"[{write(low)}, {write(high)}]" if known else f"(no interval: too few {items})"


def student_of_logs(values: Sequence[float]) -> Triple:
    """The geometric mean of times of several seeds with its 95 % interval, Student's of their logarithms.

    The ends are NaN for fewer than FEWEST_SEEDS. The ends are positive, as times are, because logarithms are averaged.
    """
    logs = np.log(values)
    ends = logs if len(logs) >= FEWEST_SEEDS else np.full(len(logs), math.nan)
    mean, low, high = np.exp(interval_of_seeds(logs, ends, ends)).tolist()
    return mean, low, high


def seconds(value: float) -> str:
    """A time in words: seconds below two minutes, then minutes, then hours.

    >>> seconds(3.14159), seconds(45.2), seconds(170), seconds(600), seconds(9000)
    ('3.1 s', '45 s', '2.8 min', '10 min', '2.5 h')
    """
    if abs(value) < 120:
        return f"{value:.{1 if abs(value) < 10 else 0}f} s"
    return f"{value / 60:.{0 if abs(value) >= 600 else 1}f} min" if abs(value) < 7200 else f"{value / 3600:.1f} h"
