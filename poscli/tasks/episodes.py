"""What synthetic tasks share: episodes that end with an answer, drawn anew for every step and every length.

An episode fills one window. Before its answer lie the tokens that decide it, spread over the whole window, so that a
window of 16 times the training length asks for tokens up to 16 times as far back. Only answers are targets.

Shapes: B episodes, T tokens of a window.
"""

from __future__ import annotations

import copy
import hashlib
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from poscli.data import Split, Tokenizer
from poscli.system.errors import UsageError
from poscli.system.seeds import derive
from poscli.tasks.task import Batch, Task, Text

EPISODES = 256  # that each length of the evaluation has to choose from
Tokens = NDArray[np.int64]
DEPTH, GAP = "depth", "gap"  # the ways in which `EpisodeTask.by` divides answers


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes `[B, T + 1]`, each of which ends with its answer.

    `back` says of each token of an answer how many tokens before it the same token stands that it repeats, and is 0 for
    all other tokens. A token is a target if its `back` is not 0.
    """

    tokens: Tokens
    back: Tokens

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which tokens are targets."""
        return self.back > 0


@dataclass(frozen=True, eq=False)
class EpisodeText(Text):
    """Episodes to evaluate on: each is a document and has the length of the windows."""

    back: NDArray[np.int32] = field(kw_only=True)  # parallel to the tokens, as in `Episodes`

    @classmethod
    def of(cls, episodes: Episodes) -> EpisodeText:
        """The text that consists of these episodes."""
        count, stored = episodes.tokens.shape
        kind = np.min_scalar_type(int(episodes.tokens.max()))
        split = Split(episodes.tokens.astype(kind).ravel(), np.arange(count + 1) * stored)
        return cls(split, episodes.counted.ravel(), back=episodes.back.astype(np.int32).ravel())

    def distances(self, spans: NDArray[np.int64], scored: int) -> NDArray[np.int64]:
        """How many tokens before each of the last `scored` targets of a window the token stands that it repeats.

        `[B, scored]`; 0 for targets that do not count.
        """
        return self.back[self._places(spans, scored)].astype(np.int64)


class EpisodeTask(Task):
    """A task that makes its own episodes, which the seed, the step, the length and the batch size decide.

    `version` enters the fingerprint only. The last token of the vocabulary, `pad`, fills a window up at its start where
    an episode is shorter. Those of the evaluation fill their windows.
    """

    protocols = ("answer",)
    columns: ClassVar = {"accuracy": ("float64", "share of the scored tokens that the model ranks first")}
    measured = "accuracy of the answers, by length and by gap"
    length = 32
    reads_text = False
    same_text = False

    version: ClassVar[int]  # raise it when the episodes of a seed change
    symbols: ClassVar[int]  # tokens that an answer can consist of, all equally frequent: 0 to symbols - 1
    others: ClassVar[int]  # further tokens of the vocabulary, `pad` included
    smallest: ClassVar[int | None] = None  # tokens of the smallest episode of the training; None: all fill the window
    shortest: ClassVar[int] = 8  # tokens of the shortest window that holds any episode, its answer in the second half
    by: ClassVar[str] = GAP  # what accuracy is divided by: GAP, tokens back; DEPTH, the place in the window

    def __init__(self) -> None:
        self.corpus, self.vocab = self.name, self.symbols + self.others
        self.pad = self.vocab - 1
        made_of = f"{self.name} {self.version} {self.symbols} {EPISODES}"
        self.fingerprint = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        self._drawn_for, self._texts = "evaluation", dict[int, EpisodeText]()

    @abstractmethod
    def episode(self, length: int, draw: np.random.Generator, *, training: bool) -> tuple[Tokens, Tokens]:
        """A random episode of `length` tokens: tokens and `back` as in `Episodes`, each `[length + 1]`."""

    def episodes(self, count: int, length: int, draw: np.random.Generator, *, training: bool) -> Episodes:
        """So many random episodes, each in a window of `length` tokens."""
        tokens = np.full((count, length + 1), self.pad, dtype=np.int64)
        back = np.zeros_like(tokens)
        for row in range(count):
            size = int(draw.integers(self.smallest, length + 1)) if training and self.smallest else length
            tokens[row, -size - 1 :], back[row, -size - 1 :] = self.episode(size, draw, training=training)
        return Episodes(tokens, back)

    @classmethod
    def open(cls, corpus: str, tokenizer: str | Tokenizer) -> Self:
        if corpus not in ("stdlib", cls.name) or tokenizer != "bytes":
            raise UsageError(f"the task {cls.name} makes its own text; leave out --corpus and --tokenizer")
        return cls()

    def batch(self, *, size: int, length: int, seed: int, step: int, segments: int = 1) -> Batch:
        draw = np.random.default_rng(derive(seed, self.name, step))
        drawn = self.episodes(size, length, draw, training=True)
        return Batch(drawn.tokens, drawn.counted[:, 1:])

    def text(self, length: int) -> EpisodeText:
        if length not in self._texts:
            draw = np.random.default_rng(derive(0, self.name, self._drawn_for, length))
            self._texts[length] = EpisodeText.of(self.episodes(EPISODES, length, draw, training=False))
        return self._texts[length]

    def tuning(self) -> Self:
        other = copy.copy(self)
        other._drawn_for, other._texts = "tuning", {}
        return other

    def describe(self) -> dict[str, Any]:
        return {"spec": self.corpus, "fingerprint": self.fingerprint, "vocab": self.vocab}

    def check(self, length: int) -> None:
        if length < self.shortest:
            raise UsageError(
                f"--length {length}: an episode of the task {self.name} needs windows of at least {self.shortest} "
                "tokens; give a longer --length"
            )

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.full(tokens.shape, math.log(self.symbols))  # targets are symbols, all equally frequent

    def score(self, logits_BTV: Tensor, targets_BT: Tensor) -> dict[str, Tensor]:
        right = (logits_BTV.argmax(-1) == targets_BT).to(logits_BTV.dtype)
        return super().score(logits_BTV, targets_BT) | {"accuracy": right}


def drawn_places(count: int, room: int, width: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Where `count` things of `width` tokens begin that lie in `room` tokens without overlap, ascending.

    All ways to place them are equally likely.

    >>> [drawn_places(3, room, 2, np.random.default_rng(0)).tolist() for room in (6, 9)]
    [[0, 2, 4], [3, 5, 7]]
    """
    free = room - count * (width - 1)  # places if each thing had one token
    first = np.sort(draw.choice(free, count, replace=False))
    return first + (width - 1) * np.arange(count)
