"""Evaluation protocols: which windows are read at each length, and which of their tokens count.

A window is given by its document and its last target. poscli/tasks/task.py says which tokens it then holds, in a line
of text or in an image.

Every protocol of language models scores the same text at every length (`answer` is for tasks that make a text of their
own for every length). `sliding` and `fixed` end their windows at the same tokens, and `nonoverlapping` cuts segments of
the longest length into windows of every length. If each length drew its own windows, the perplexities of two lengths
could differ by 8 % at 3072 scored tokens because of the text alone. The text is drawn in one order for all runs,
encodings and seeds, in which the documents take turns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from poscli.config.request import DEFAULT_BASELINES, DEFAULT_NGRAM
from poscli.system.errors import UsageError
from poscli.system.registry import Registry, subclass_of
from poscli.tasks import HeldOut, Spans


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Everything that decides which tokens are scored, and with which baselines the model is compared."""

    train_length: int
    max_len: int
    tokens: int  # scored per length, in each protocol
    stride: int
    ratios: tuple[float, ...] = ()  # lengths to evaluate, in multiples of the training length; none: 1, 2, 4, ...
    ngram: int = DEFAULT_NGRAM  # tokens that must occur again, in the table of recall by distance
    baselines: tuple[str, ...] = DEFAULT_BASELINES
    protocols: tuple[str, ...] = ()  # beside those of the task
    only: str = ""  # the one protocol to measure; none: those of the task and `protocols`

    def __post_init__(self) -> None:
        if self.max_len < self.train_length:
            raise UsageError(f"--max-len {self.max_len} is below the training length {self.train_length}; give more")
        if self.ratios and self.ratios[0] != 1:
            raise UsageError(f"--lengths must begin with 1, the training length, and not with {self.ratios[0]:g}")
        if not 1 <= self.stride <= self.train_length:
            raise UsageError(f"--stride {self.stride} must be between 1 and the training length {self.train_length}")
        if self.tokens < self.stride:
            raise UsageError(
                f"--tokens {self.tokens} is less than one stride of {self.stride}; give more, or a lower --stride"
            )

    @property
    def lengths(self) -> list[int]:
        """The lengths to evaluate, in tokens: 1, 2, 4, ... or `ratios` times the training length, up to max_len."""
        if self.ratios:
            lengths = [round(ratio * self.train_length) for ratio in self.ratios]
            return [length for length in dict.fromkeys(lengths) if length <= self.max_len]
        doublings = (self.max_len // self.train_length).bit_length()
        return [self.train_length << n for n in range(doublings)]

    def record(self) -> dict[str, Any]:
        """The settings for a file, without defaults, so that old records stay valid when a field is added."""
        optional = {f.name: f.default for f in fields(self)}
        given = {name: value for name, value in asdict(self).items() if value != optional[name]}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents to choose windows from, and the settings of the evaluation.

    `longest` is the longest of the lengths that read these documents.
    """

    text: HeldOut
    settings: EvaluationSettings
    longest: int

    def ends(self, margin: int = 0) -> Spans:
        """The places (document, end) of a window of the longest length that moves by the stride, drawn by `in_turns`.

        Only those where the window begins at least `margin` tokens after its document does.
        """
        return self._drawn[self.text.inside(self._drawn, self.longest, margin)]

    @cached_property
    def _drawn(self) -> Spans:
        return in_turns(self.text.ends(self.settings.stride, self.longest), seed=0)


def in_turns(spans: Spans, seed: int) -> Spans:
    """These spans in a random order in which the documents take turns: one of each document, another of each, ...

    A budget then reaches as many documents as it can. The tokens of one document are alike, and intervals come from the
    differences between documents.
    """
    drawn = spans[np.random.default_rng(seed).permutation(len(spans))]
    by_document = np.argsort(drawn[:, 0], kind="stable")
    document = drawn[by_document, 0]
    turn = np.empty(len(drawn), dtype=np.int64)
    turn[by_document] = np.arange(len(drawn)) - np.searchsorted(document, document)
    return drawn[np.argsort(turn, kind="stable")]


def pieces(spans: Spans, scored: int, piece: int) -> Spans:
    """The windows that read the last `scored` tokens of these windows in pieces, in order: `[n, 2]`."""
    back = np.arange(scored - piece, -1, -piece)
    return np.stack([np.repeat(spans[:, 0], len(back)), (spans[:, 1:] - back).ravel()], axis=1)


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is not above a limit, and at least 1.

    >>> largest_divisor(128, 32), largest_divisor(12, 5), largest_divisor(7, 0)
    (32, 4, 1)
    """
    return next(divisor for divisor in range(max(1, min(number, limit)), 0, -1) if number % divisor == 0)


class Protocol(ABC):
    """A way to measure perplexity. Subclasses register under a name: `@PROTOCOLS.register("sliding")`."""

    name: ClassVar[str]
    explained: ClassVar[str]  # the explanation of the protocol in a report, in Markdown
    convention: ClassVar[str] = ""  # who publishes numbers under it
    compared: ClassVar[bool] = True  # whether baselines are measured too, which gives a context gain
    same_text: ClassVar[bool | None] = None  # if not None, it is only for tasks with this `same_text`

    @abstractmethod
    def spans(self, documents: Documents, length: int) -> Spans:
        """The windows of `length` tokens to read: (document, end) `[n, 2]`, in any order.

        They must lie within their documents, as must those that end earlier because of `piece`, at every length.
        """

    @abstractmethod
    def scored(self, settings: EvaluationSettings, length: int) -> int:
        """How many tokens at the end of each window of `spans` count: if the protocol is `compared`, at most L."""

    def piece(self, settings: EvaluationSettings, window: int) -> int:
        """How many of the `scored` tokens are read off one window of `window` tokens: a divisor of `scored`.

        If it is less than all of them, each window is read as several that end a piece apart, so that every scored
        token has nearly the whole window before it.
        """
        return self.scored(settings, window)


PROTOCOLS: Registry[type[Protocol]] = Registry("protocol", "poscli.evaluation.protocols", subclass_of(Protocol))
