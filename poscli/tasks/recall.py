"""Multi-query associative recall: say which value belongs to which key (Arora et al., 2023, arXiv:2312.04927).

An episode holds several pairs of a key and a value, spread over noise, and ends with the keys in another order, each
followed by its value: `k3 v1 v0 v2 k0 v2 v1 k0 v2 k3 v1`. Only these last values count.

The noise consists of values, so that a value belongs to a key only because it follows it. The gap is the number of
tokens from the value in its pair to the answer.
"""

from __future__ import annotations

import numpy as np

from poscli.tasks.episodes import EpisodeTask, Tokens, drawn_places
from poscli.tasks.task import TASKS

VALUES = 16
KEYS = 16
PAIRS = 4  # in an episode of the evaluation; training has 1 to so many


@TASKS.register("recall")
class AssociativeRecall(EpisodeTask):
    """Give the value of every key. Keys are the tokens from 16 on; training episodes have 1 to 4 of them.

    Here the keys are 23 and 28, and their values 4 and 6 are asked for 14 and 10 tokens later:

    >>> tokens, back = AssociativeRecall().episode(15, np.random.default_rng(1), training=True)
    >>> tokens.tolist(), back.tolist()
    ([23, 4, 28, 6, 4, 13, 4, 6, 10, 8, 1, 0, 28, 6, 23, 4], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 14])
    """

    summary = f"give the values of {PAIRS} keys that stood in noise"
    measured = "accuracy of the answers, by length and by the gap to the pair"
    chance = 1 / VALUES
    version, symbols, others = 1, VALUES, KEYS + 1
    shortest = 4 * PAIRS - 1

    def episode(self, length: int, draw: np.random.Generator, *, training: bool) -> tuple[Tokens, Tokens]:
        pairs = int(draw.integers(1, PAIRS + 1)) if training else PAIRS
        asks = length + 1 - 2 * pairs  # where the first key is asked for
        keys = VALUES + draw.choice(KEYS, pairs, replace=False)
        places, order = drawn_places(pairs, asks, 2, draw), draw.permutation(pairs)
        tokens, back = draw.integers(0, VALUES, length + 1), np.zeros(length + 1, dtype=np.int64)
        tokens[places] = keys
        tokens[asks::2], tokens[asks + 1 :: 2] = keys[order], tokens[places + 1][order]
        back[asks + 1 :: 2] = np.arange(asks, length + 1, 2) - places[order]
        return tokens, back
