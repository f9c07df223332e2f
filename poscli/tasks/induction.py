"""Induction: after a symbol that occurred before, repeat what followed it (Olsson et al., 2022, arXiv:2209.11895).

An episode is a sequence of random symbols. It ends with a symbol that occurred exactly once before, and the symbol
that followed it there: `5 2 7 7 0 4 2 7`. Only the last symbol counts. Any symbol may be asked for, so that a model
must compare tokens instead of waiting for a special one.
"""

from __future__ import annotations

import numpy as np

from poscli.tasks.episodes import EpisodeTask, Tokens
from poscli.tasks.task import TASKS

SYMBOLS = 16


@TASKS.register("induction")
class Induction(EpisodeTask):
    """Repeat what followed the last symbol at its only earlier occurrence, which lies anywhere in the window.

    >>> tokens, back = Induction().episode(8, np.random.default_rng(0), training=False)
    >>> tokens.tolist(), back.tolist()
    ([5, 2, 2, 13, 15, 14, 0, 13, 15], [0, 0, 0, 0, 0, 0, 0, 0, 4])
    """

    summary = "repeat the symbol that followed the last one before"
    measured = "accuracy of the answers, by length and by the gap to the earlier occurrence"
    chance = 1 / SYMBOLS
    version, symbols, others = 1, SYMBOLS, 1
    smallest = 3

    def episode(self, length: int, draw: np.random.Generator, *, training: bool) -> tuple[Tokens, Tokens]:
        asked, place = int(draw.integers(0, SYMBOLS)), int(draw.integers(0, length - 2))
        tokens = (asked + draw.integers(1, SYMBOLS, length + 1)) % SYMBOLS  # any symbol but the one asked for
        tokens[[place, -2]], tokens[-1] = asked, tokens[place + 1]
        back = np.zeros_like(tokens)
        back[-1] = length - 1 - place
        return tokens, back
