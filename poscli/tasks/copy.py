"""Copying: repeat a string of random symbols (Jelassi et al., 2024, arXiv:2402.01032).

An episode is a string, the token COPY, and the string again: `3 1 2 COPY 3 1 2`. Only the tokens of the second
string count. A model that copies at four times its training length finds tokens four times as far back as in training.
"""

from __future__ import annotations

import numpy as np

from poscli.tasks.episodes import Episodes, EpisodeTask, Tokens
from poscli.tasks.task import TASKS

SYMBOLS = 16  # different symbols in a string
COPY, PAD = SYMBOLS, SYMBOLS + 1


@TASKS.register("copy")
class Copy(EpisodeTask):
    """Repeat a string. Its length is drawn from 1 to half of the window in training, and that half in evaluation.

    A string of 2 symbols, and how many tokens before each token of the answer the same one stands:

    >>> tokens, back = Copy().episode(4, np.random.default_rng(0), training=False)
    >>> tokens.tolist(), back.tolist()
    ([13, 10, 16, 13, 10], [0, 0, 0, 3, 3])
    """

    summary = "repeat a string of random symbols"
    chance = 1 / SYMBOLS
    length = 512
    version, symbols, others = 1, SYMBOLS, 2
    shortest = 2

    def answer(self, string: Tokens) -> Tokens:
        """The tokens that must follow the token COPY: those of the string, in any order that is always the same."""
        return string

    def episodes(self, count: int, length: int, draw: np.random.Generator, *, training: bool) -> Episodes:
        longest = length // 2
        sizes = draw.integers(1, longest + 1, count) if training else np.full(count, longest)
        tokens = np.full((count, length + 1), PAD, dtype=np.int64)
        back = np.zeros_like(tokens)
        for row, size in enumerate(sizes):
            stored = slice(-2 * size - 1, None)
            tokens[row, stored], back[row, stored] = self.episode(2 * int(size), draw, training=training)
        return Episodes(tokens, back)

    def episode(self, length: int, draw: np.random.Generator, *, training: bool) -> tuple[Tokens, Tokens]:
        string = draw.integers(0, SYMBOLS, length // 2)
        order = self.answer(np.arange(length // 2))
        tokens = np.concatenate([string, [COPY], string[order]])
        back = np.zeros_like(tokens)
        back[-len(order) :] = len(order) + 1 + np.arange(len(order)) - order
        return tokens, back
