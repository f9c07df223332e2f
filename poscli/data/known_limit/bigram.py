"""`bigram(symbols=8, alpha=0.1)`: every document has its own table of which values follow which cues."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poscli.data.known_limit import LARGEST_ALPHA, SMALLEST_ALPHA, SOURCES, Draw
from poscli.data.known_limit.pairs import Pairs, seen_before


@SOURCES.register("bigram")
class Bigram(Pairs):
    """p(x | c) = (n_cx + alpha) / (n_c + symbols * alpha) for a value x after a cue c.

    Every document draws a table [symbols, symbols] whose rows have a symmetric Dirichlet(alpha) distribution, and a
    value is drawn from the row of its cue. n_c counts the answers to the cue c that the window shows before the target,
    n_cx those of them with the value x: the formula is the posterior mean of the table's entry, hence the best possible
    prediction. Every further answer makes it better, so that longer windows have lower losses at any length.
    """

    summary = "every document has its own table of which values follow which cues"

    def __init__(self, *, symbols: int = 8, alpha: float = 0.1) -> None:
        if symbols < 2:
            raise ValueError(f"symbols must be 2 or more, got {symbols}")
        if not SMALLEST_ALPHA <= alpha <= LARGEST_ALPHA:
            raise ValueError(f"alpha must be from {SMALLEST_ALPHA:g} to {LARGEST_ALPHA:g}, got {alpha:g}")
        super().__init__(symbols, symbols)
        self.alpha = alpha

    def reply(self, cues: NDArray[np.int64], draw: Draw) -> NDArray[np.int64]:
        """Draw from the formula above instead of a table, which gives the same documents with the same probabilities.

        Of p(x | c), a share n_c / (n_c + symbols * alpha) repeats one of the n_c earlier values, each with equal
        probability, and the rest is a value drawn evenly (Blackwell and MacQueen, 1973). So every pair points at the
        earlier pair whose value it repeats, or at itself, and values are found at the ends of the pointers. This needs
        no gamma function, whose last bits differ between platforms.
        """
        pairs = np.arange(len(cues))
        by_cue = np.argsort(cues, kind="stable")
        uses = seen_before(cues[None])[0][by_cue]  # n_c before each pair, sorted by cue
        place = draw.units(len(cues)) * (uses + self.values * self.alpha)
        points_at = np.where(place < uses, pairs - uses + place.astype(np.int64), pairs)
        while (points_at != points_at[points_at]).any():
            points_at = points_at[points_at]
        values = np.empty_like(cues)
        values[by_cue] = draw.below(self.values, len(cues))[points_at]
        return values

    def costs(self, uses_BN: NDArray[np.int64], repeats_BN: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.log(uses_BN + self.values * self.alpha) - np.log(repeats_BN + self.alpha)
