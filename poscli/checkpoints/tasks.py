"""Questions in words about a long text, for models that know a language and a tokenizer: checkpoints, first of all.

An episode is a passage of the corpus, of as many documents as it takes, in which something is told, at any depth, and
which ends with the question and the answer. Only the tokens of answers count. They are the same tokens that were
told, also where the tokenizer would join them otherwise. A checkpoint reads few episodes, as each takes long: their
depths are not drawn one by one, but spread evenly however few they are.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from poscli.data import Corpus, Split, Tokenizer, TrainedTokenizer, check_trainable, check_tunable, load_corpus
from poscli.data.tokenizers import TRAINED
from poscli.system.errors import UsageError
from poscli.tasks.episodes import DEPTH, EPISODES, Episodes, EpisodeTask, Tokens
from poscli.tasks.task import TASKS

Words = list[int]  # the tokens of a phrase
KEY_DIGITS, VALUE_DIGITS = 5, 4
SAMPLED = 97  # every 97th number is encoded to see how many tokens numbers have: any last digits are among them
FACTS, ASKED = 8, 3
REPEATED, CUE, COMMON = 24, 4, 512
GOLDEN = (math.sqrt(5) - 1) / 2  # the remainders of its multiples are spread evenly over [0, 1), however many there are
NAMES = ("Ada", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Louis")


@dataclass(frozen=True)
class ToldAnswer:
    """Tokens that an episode ends with, and where they were told."""

    place: int  # of the first one, in what the episode ends with
    piece: int  # that told them
    told_at: int  # of the first one, in that piece
    tokens: int


class Told(EpisodeTask):
    """A task whose episodes are told in the tokens of a tokenizer, within the text of a corpus."""

    measured = "accuracy of the answers, by length and by the depth of what they repeat"
    length = 512
    reads_text = True
    symbols, others = 10, 0  # digits
    digits: ClassVar[int]  # of the numbers that are answers
    shortest = 256
    by = DEPTH

    def __init__(self, data: Corpus) -> None:
        self.data, self.corpus, self.vocab, self.pad = data, data.spec, data.vocab, data.tokenizer.end
        made_of = f"{self.name} {self.version} {EPISODES} {data.fingerprint}"
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        self._drawn_for, self._texts = "evaluation", {}
        if isinstance(data.tokenizer, TrainedTokenizer):
            self.files = {TRAINED: data.tokenizer.content}

    @classmethod
    def open(cls, corpus: str, tokenizer: str | Tokenizer) -> Self:
        return cls(load_corpus(corpus, tokenizer=tokenizer))

    @abstractmethod
    def parts(self, draw: np.random.Generator) -> tuple[list[Words], Words, list[ToldAnswer]]:
        """What is told, in pieces in the order in which they stand; what the episode ends with; the answers in it."""

    def episodes(self, count: int, length: int, draw: np.random.Generator, *, training: bool) -> Episodes:
        if training:
            return super().episodes(count, length, draw, training=True)
        first = draw.random()
        drawn = [self.episode(length, draw, training=False, first=first + n * GOLDEN) for n in range(count)]
        tokens, back = (np.stack(each) for each in zip(*drawn, strict=True))
        return Episodes(tokens, back)

    def episode(
        self, length: int, draw: np.random.Generator, *, training: bool, first: float | None = None
    ) -> tuple[Tokens, Tokens]:
        """A random episode. With `first`, its pieces are told at depths spread evenly, from that one on, modulo 1."""
        told, asked, answers = self.parts(draw)
        opening = [self.data.tokenizer.end] if self.data.tokenizer.opens else []
        room = length + 1 - len(opening) - len(asked) - sum(map(len, told))
        if room < 1:
            needed = length + 1 - room
            raise UsageError(
                f"an episode of the task {self.name} takes {needed} tokens of this tokenizer, and windows have "
                f"{length}; take a model with a trained length of at least {needed} tokens"
            )
        passage = _passage(self._split(training), room, draw)
        depths = draw.random(len(told)) if first is None else (first + GOLDEN * np.arange(len(told))) % 1
        cuts = np.sort((depths * (room + 1)).astype(np.int64))
        tokens, begins = list(opening), []
        for piece, first, last in zip(told, [0, *cuts], cuts, strict=False):
            tokens += passage[first:last].tolist()
            begins.append(len(tokens))
            tokens += piece
        tokens += [*passage[cuts[-1] :].tolist(), *asked]
        back, end = np.zeros(length + 1, dtype=np.int64), length + 1 - len(asked)
        for each in answers:
            place = end + each.place
            back[place : place + each.tokens] = place - begins[each.piece] - each.told_at
        return np.array(tokens), back

    def _split(self, training: bool) -> Split:
        return self.data.train if training else self.data.tune if self._drawn_for == "tuning" else self.data.valid

    def words(self, text: str) -> Words:
        """The tokens of a phrase."""
        return [int(token) for token in self.data.tokenizer.encode(text.encode())]

    def number(self, draw: np.random.Generator) -> Words:
        """The tokens of a random number, with the space before it."""
        return self.words(f" {int(draw.integers(10 ** (self.digits - 1), 10**self.digits))}")

    @cached_property
    def guess(self) -> float:
        """The loss in nats per token of an answer, guessed by who knows the question and has not read the text.

        All numbers are equally likely. The tokens of a number are counted as the mean over a sample of numbers.
        """
        numbers = range(10 ** (self.digits - 1), 10**self.digits, SAMPLED)
        return math.log(9 * 10 ** (self.digits - 1)) / statistics.fmean(len(self.words(f" {n}")) for n in numbers)

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.full(tokens.shape, self.guess)

    def tuning(self) -> Self:
        check_tunable(self.data)
        return super().tuning()

    def describe(self) -> dict[str, Any]:
        return self.data.describe() | {"fingerprint": self.fingerprint}

    def check(self, length: int) -> None:
        super().check(length)
        check_trainable(self.data, length)
        check_tunable(self.data)  # training asks questions whose passages are of documents for tuning

    def token_bytes(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.data.tokenizer.token_bytes[tokens]


def _passage(split: Split, count: int, draw: np.random.Generator) -> Tokens:
    """The first tokens of random documents, each without the token that opens it, until there are `count`."""
    parts, missing = list[NDArray[Any]](), count
    while missing > 0:
        document = int(draw.integers(split.documents))
        part = split.tokens[split.starts[document] + 1 : split.starts[document + 1]][:missing]
        parts.append(part)
        missing -= len(part)
    return np.concatenate(parts).astype(np.int64)


@TASKS.register("needle")
class Needle(Told):
    """Give the pass key that was told somewhere in a long text (Mohtashami and Jaggi, 2023, arXiv:2305.16300)."""

    summary = f"give a key of {KEY_DIGITS} digits that a long text told, in words"
    version, digits = 2, KEY_DIGITS

    def parts(self, draw: np.random.Generator) -> tuple[list[Words], Words, list[ToldAnswer]]:
        key = self.number(draw)
        telling, asking = self.words("\nRemember this: the pass key is"), self.words("\nWhat is the pass key? It is")
        return (
            [telling + key + self.words(".\n")],
            asking + key,
            [ToldAnswer(len(asking), 0, len(telling), len(key))],
        )


@TASKS.register("facts")
class Facts(Told):
    """Give the numbers of some of the names that a long text told, each at its own depth: recall of several keys."""

    summary = f"give the numbers of {ASKED} of {FACTS} names that a long text told, in words"
    version, digits, shortest = 2, VALUE_DIGITS, 512

    def parts(self, draw: np.random.Generator) -> tuple[list[Words], Words, list[ToldAnswer]]:
        names = [NAMES[n] for n in draw.choice(len(NAMES), FACTS, replace=False)]
        phrases = [self.words(f"\nThe number of {name} is") for name in names]
        values = [self.number(draw) for _ in names]
        stop = self.words(".\n")
        asked, answers = Words(), list[ToldAnswer]()
        for n in draw.choice(FACTS, ASKED, replace=False):
            asked += phrases[n]
            answers.append(ToldAnswer(len(asked), int(n), len(phrases[n]), len(values[n])))
            asked += values[n] + stop
        return [phrase + value + stop for phrase, value in zip(phrases, values, strict=True)], asked, answers


@TASKS.register("repeat")
class Repeat(Told):
    """Say words again that a long text told in a meaningless order, after the first few of them: copying in context."""

    summary = f"say {REPEATED - CUE} words again that a long text told, after the first {CUE}"
    version = 3

    def parts(self, draw: np.random.Generator) -> tuple[list[Words], Words, list[ToldAnswer]]:
        items = [int(token) for token in draw.choice(self._frequent, REPEATED)]
        telling, asking = self.words("\nRemember these words:"), self.words("\nThe same words again:")
        answer = ToldAnswer(len(asking) + CUE, 0, len(telling) + CUE, REPEATED - CUE)
        return [telling + items + self.words("\n")], asking + items, [answer]

    @cached_property
    def guess(self) -> float:
        return math.log(len(self._frequent))

    @cached_property
    def _frequent(self) -> NDArray[np.int64]:
        """The tokens that the scored text has most often, so that a model knows them well.

        The token that opens documents is no word, and the most frequent of the others is left out.
        """
        words = self.data.valid.tokens != self.data.tokenizer.end
        tokens, counts = np.unique(self.data.valid.tokens[words], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return tokens[order][1 : 1 + COMMON].astype(np.int64)
