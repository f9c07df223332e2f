"""Copying: repeat a string of random symbols.

An episode is a string, the token COPY, and the string again: `3 1 2 COPY 3 1 2`. Only the tokens of the second
string count. A model that copies at four times its training length finds tokens four times as far back as in training.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from poscli.data import Split
from poscli.system.errors import UsageError
from poscli.system.seeds import derive
from poscli.tasks.task import TASKS, Batch, Task
from poscli.tasks.text import Text

SYMBOLS = 16  # different symbols in a string
COPY, PAD = SYMBOLS, SYMBOLS + 1
EPISODES = 256  # that each length of the evaluation has to choose from
VERSION = 1  # raise it when the episodes of a seed change


@TASKS.register("copy")
class Copy(Task):
    """Repeat a string. Its length is drawn from 1 to half of the window in training, and that half in evaluation."""

    summary = "repeat a string of random symbols"
    protocols = ("answer",)
    columns: ClassVar = {"accuracy": ("float64", "share of the scored tokens that the model ranks first")}
    same_text = False

    def __init__(self) -> None:
        self.corpus, self.vocab = self.name, SYMBOLS + 2
        self.fingerprint = hashlib.sha256(f"{self.name} {VERSION} {SYMBOLS} {EPISODES}".encode()).hexdigest()[:16]

    @classmethod
    def open(cls, corpus: str, tokenizer: str) -> Copy:
        if corpus not in ("stdlib", cls.name) or tokenizer != "bytes":
            raise UsageError(f"the task {cls.name} makes its own text; leave out --corpus and --tokenizer")
        return cls()

    def batch(self, *, size: int, length: int, seed: int, step: int, segments: int = 1) -> Batch:
        draw = np.random.default_rng(derive(seed, "copy", step))
        tokens, counted = self.episodes(draw.integers(1, length // 2 + 1, size), length, draw)
        return Batch(tokens, counted[:, 1:])

    def text(self, length: int) -> Text:
        draw = np.random.default_rng(derive(0, "copy", "evaluation", length))
        tokens, counted = self.episodes(np.full(EPISODES, length // 2), length, draw)
        starts = np.arange(EPISODES + 1) * (length + 1)
        return Text(Split(tokens.ravel(), starts), counted.ravel())

    def describe(self) -> dict[str, Any]:
        return {"spec": self.corpus, "fingerprint": self.fingerprint, "vocab": self.vocab}

    def check(self, length: int) -> None:
        if length < 2:
            raise UsageError(f"--length {length}: an episode of the task {self.name} has at least 2 tokens")

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.full(tokens.shape, math.log(SYMBOLS))  # the tokens that count are symbols, all equally frequent

    def score(self, logits_BTV: Tensor, targets_BT: Tensor) -> dict[str, Tensor]:
        right = (logits_BTV.argmax(-1) == targets_BT).to(logits_BTV.dtype)
        return super().score(logits_BTV, targets_BT) | {"accuracy": right}

    def answer(self, string: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tokens that must follow the token COPY, as many as in the string."""
        return string

    def episodes(
        self, sizes: NDArray[np.int64], length: int, draw: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Episodes with strings of these sizes: tokens `[B, length + 1]`, padded at the start, and which of them count.

        Every episode ends with the answer.

        >>> tokens, counted = Copy().episodes(np.array([2]), 6, np.random.default_rng(0))
        >>> tokens.tolist(), counted[0].astype(int).tolist()
        ([[17, 17, 13, 10, 16, 13, 10]], [0, 0, 0, 0, 0, 1, 1])
        """
        tokens = np.full((len(sizes), length + 1), PAD, dtype=np.int64)
        counted = np.zeros((len(sizes), length + 1), dtype=bool)
        for row, size in enumerate(sizes):
            string = draw.integers(0, SYMBOLS, size)
            tokens[row, -2 * size - 1 :] = [*string, COPY, *self.answer(string)]
            counted[row, -size:] = True
        return tokens, counted
