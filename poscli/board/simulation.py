"""Made-up boards of known truth: how often ranking.py shows a difference where there is none, and where one is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poscli.board.ranking import NumbersOfEncodings, rank

TEXTS, DOCUMENTS = 4, 256
APART = (0.0, 0.02, 0.05, 0.1)  # bits per byte between the groups of a made-up board
# In bits per byte, as seen on the panel: of an encoding over seeds, and how far the sds of encodings are apart (sd of
# their logarithms); of all encodings over seeds alike; of an encoding on a document; and of a seed on a document.
SEED_SD, SPREAD_OF_SDS, COMMON_SD, DOCUMENT_SD, INTERACTION_SD = 0.02, 0.4, 0.02, 0.25, 0.1


@dataclass(frozen=True)
class Simulated:
    """What was shown on made-up boards.

    `false` is the share of boards on which any order was shown that is not true, `power` the share of true orders of
    neighbouring groups that were shown, and `top` the mean size of the top group.
    """

    false: float
    power: float
    top: float


def simulate(*, boards: int, encodings: int, seeds: int, apart: float, groups: int = 8, draw: int = 0) -> Simulated:
    """Rank made-up boards of encodings in groups, each `apart` bits per byte behind the one before; 0: all are ties."""
    random, groups = np.random.default_rng(draw), min(groups, encodings)
    truth = apart * (np.arange(encodings) * groups // encodings)
    texts = np.repeat(np.arange(TEXTS), DOCUMENTS)
    shares = np.full(len(texts), 1 / DOCUMENTS)
    better = truth[:, None] < truth[None, :]
    next_group = better & (truth[None, :] - truth[:, None] <= 1.5 * apart)
    false = found = top = 0
    for _ in range(boards):
        ranks = rank(NumbersOfEncodings(_values(random, truth, seeds), shares, texts))
        false += bool((ranks.better & ~better).any())
        found += int((ranks.better & next_group).sum())
        top += int(ranks.top.sum())
    return Simulated(false / boards, found / max(1, boards * int(next_group.sum())), top / boards)


def _values(random: np.random.Generator, truth: NDArray, seeds: int) -> NDArray[np.float64]:
    """What each document adds to the number of each encoding, `[E, S, D]`."""
    count, size = len(truth), TEXTS * DOCUMENTS
    sds = SEED_SD * np.exp(SPREAD_OF_SDS * random.standard_normal(count))
    luck = sds[:, None] * random.standard_normal((count, seeds)) + COMMON_SD * random.standard_normal(seeds)
    values = INTERACTION_SD * random.standard_normal((count, seeds, size))
    values += DOCUMENT_SD * random.standard_normal((count, 1, size)) + 2 * random.standard_normal(size)
    return (values + truth[:, None, None] + luck[:, :, None]) / size
