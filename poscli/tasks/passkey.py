"""Passkey retrieval: find a key in a long text that says nothing (Mohtashami and Jaggi, 2023, arXiv:2305.16300).

An episode is noise with the token KEY and, after it, the digits of the key somewhere in it. It ends with KEY again and
the same digits: `4 1 KEY 3 0 2 2 KEY 3 0` for a key of two digits. Only the last digits count.

The noise consists of digits, too. So it is not enough to tell digits from other text: a model must find what followed
KEY, digit by digit, and one that does not know the order of the tokens can only guess.
"""

from __future__ import annotations

import numpy as np

from poscli.tasks.episodes import DEPTH, EpisodeTask, Tokens
from poscli.tasks.task import TASKS

DIGITS = 10
KEY_DIGITS = 2
KEY = DIGITS


@TASKS.register("passkey")
class Passkey(EpisodeTask):
    """Repeat the digits of a key that lies anywhere in the window.

    Episodes of the training are short or long, up to the whole window: with long ones alone, a small model stays at
    chance (rope, nano, L = 64: 10 % right after 1M tokens, and 89 % with short ones).

    Here the key is 8 4, and the answer repeats each digit 3 tokens later. KEY is token 10:

    >>> tokens, back = Passkey().episode(9, np.random.default_rng(2), training=False)
    >>> tokens.tolist(), back.tolist()
    ([8, 2, 1, 2, 10, 8, 4, 10, 8, 4], [0, 0, 0, 0, 0, 0, 0, 0, 3, 3])
    """

    summary = f"find a key of {KEY_DIGITS} digits in noise"
    measured = "accuracy of the answers, by length and by the depth of the key"
    chance = 1 / DIGITS
    version, symbols, others = 1, DIGITS, 2
    smallest = 2 * KEY_DIGITS + 1
    by = DEPTH

    def episode(self, length: int, draw: np.random.Generator, *, training: bool) -> tuple[Tokens, Tokens]:
        tokens, back = draw.integers(0, DIGITS, length + 1), np.zeros(length + 1, dtype=np.int64)
        asks = length - KEY_DIGITS  # where the second KEY stands
        place = int(draw.integers(0, asks - KEY_DIGITS))  # of the first one
        tokens[[place, asks]] = KEY
        tokens[asks + 1 :] = tokens[place + 1 : place + 1 + KEY_DIGITS]
        back[asks + 1 :] = asks - place
        return tokens, back
