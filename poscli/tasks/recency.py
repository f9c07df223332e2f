"""Sorting by recency: list keys in the order in which they were last seen, as a cache that drops the oldest one does.

An episode is padding with keys in it, each of which occurs twice. It ends with the token SORT and all of these keys,
the one that was seen last first: `2 - 0 0 - 1 2 - 1 SORT 1 2 0`. Only the keys after SORT count.

Every key occurs equally often, so that nothing but the places of the tokens tells their order. It is the priority sort
of the Neural Turing Machine (Graves et al., 2014, arXiv:1410.5401), with the place of a key instead of a number beside
it.
"""

from __future__ import annotations

import numpy as np

from poscli.tasks.episodes import EpisodeTask, Tokens, drawn_places
from poscli.tasks.task import TASKS

KEYS = 8  # in an episode of the evaluation; training has 2 to so many
SORT, PAD = KEYS, KEYS + 1


@TASKS.register("recency")
class Recency(EpisodeTask):
    """List the keys, the one seen last first. Training episodes have 2 to 8 of them.

    Here the keys 4, 7, 5 and 3 were seen last in this order. SORT is token 8:

    >>> tokens, back = Recency().episode(12, np.random.default_rng(4), training=True)
    >>> tokens.tolist(), back.tolist()
    ([4, 4, 7, 5, 7, 5, 3, 3, 8, 3, 5, 7, 4], [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 5, 7, 11])
    """

    summary = f"list {KEYS} keys in the order in which they were last seen"
    measured = "accuracy of the answers, by length and by the gap to the key's last occurrence"
    chance = sum(1 / left for left in range(1, KEYS + 1)) / KEYS  # the first key is one of 8, the next of 7, ...
    version, symbols, others = 1, KEYS, 2
    smallest, shortest = 6, 3 * KEYS

    def episode(self, length: int, draw: np.random.Generator, *, training: bool) -> tuple[Tokens, Tokens]:
        count = int(draw.integers(2, min(KEYS, length // 3) + 1)) if training else KEYS
        sort = length - count  # where the token SORT stands
        keys = draw.choice(KEYS, count, replace=False)
        places, seen = drawn_places(2 * count, sort, 1, draw), draw.permutation(np.repeat(np.arange(count), 2))
        last = np.zeros(count, dtype=np.int64)
        last[seen] = places  # of two equal indices, the later one stays
        order = np.argsort(-last)
        tokens, back = np.full(length + 1, PAD), np.zeros(length + 1, dtype=np.int64)
        tokens[places], tokens[sort], tokens[sort + 1 :] = keys[seen], SORT, keys[order]
        back[sort + 1 :] = np.arange(sort + 1, length + 1) - last[order]
        return tokens, back
