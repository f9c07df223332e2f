"""`period(low=8, high=512, noise=0.1, symbols=8)`: every document has a period, and repeats itself after it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from poscli.data.known_limit import DOCUMENT_TOKENS, MOST_SYMBOLS, SOURCES, Draw, KnownLimit, as_bytes, as_symbols
from poscli.data.tokenizers.bytes import END

LEAST_SHARE = 1e-300  # of a symbol that is no repetition, where the noise is 0: its logarithm is a number
LONGEST_PERIOD = DOCUMENT_TOKENS // 4
CHUNK_WEIGHTS = 1 << 16  # of windows and periods that are held at once


class Step(NamedTuple):
    """What is known of each period before a target of B windows, and which of them the target agrees with."""

    weights: NDArray[np.float64]  # [B, periods], the posterior
    seen: NDArray[np.int64]  # [B, 1], tokens of the document that the window shows before the target
    is_seen: NDArray[np.bool_]  # [B, periods], whether the token a period before the target is among them
    is_repeat: NDArray[np.bool_]  # [B, periods], whether it also equals the target


@SOURCES.register("period")
class Period(KnownLimit):
    """x_t = x_(t-P) with probability 1 - noise, else a symbol drawn evenly, as the first P symbols of a document are.

    Every document draws its period P from the whole numbers from `low` to `high`, with probabilities proportional to
    1 / P, so that each octave is about equally likely. The optimum is the mixture of the predictions of all periods,
    each weighted by its posterior given the window. A period whose x_(t-P) lies before the window predicts evenly:
    tokens a multiple of P apart are a stationary Markov chain of their own, whose first visible token is even. So the
    optimum is exact wherever a window begins.

    The position-blind limit is a bound: the loss of a reader that is told more than one without positions can know. A
    document with period P is P chains, each of which goes on with its own last symbol unless noise replaces it. The
    reader is told P, the token before the target, and the last symbols of the k chains that are still due before the
    present period ends, but not in which order they are due. The target goes on with any of them, with equal
    probability: if s_x of them end with x, then p(x) = (1 - noise) s_x / k + noise / symbols. A reader that only counts
    symbols sees nothing in which these chains differ, so it cannot do better. On average, with each of the k symbols
    drawn evenly, its loss is

        b(k) = symbols E[-p log p],    p = (1 - noise) s / k + noise / symbols,    s ~ Binomial(k, 1 / symbols).

    After n tokens, k = P - max(n mod P, 1), since the token before the target ends a chain that is not due; while
    n < P nothing repeats, and the loss is log(symbols). The loss returned is the mean of b over the posterior of P,
    given the tokens before the target in their order. It depends on periods alone, so its mean over a text is the
    bound, and its value on a single token says nothing about that token.
    """

    summary = "every document repeats itself after a period of its own"

    def __init__(self, *, low: int = 8, high: int = 512, noise: float = 0.1, symbols: int = 8) -> None:
        if low < 2:
            raise ValueError(f"low must be 2 or more, got {low}")
        if not low <= high <= LONGEST_PERIOD:
            raise ValueError(f"high must be from low = {low} to {LONGEST_PERIOD}, got {high}")
        if not 0 <= noise < 1:
            raise ValueError(f"noise must be 0 or more and below 1, got {noise:g}")
        if not 2 <= symbols <= MOST_SYMBOLS:
            raise ValueError(f"symbols must be from 2 to {MOST_SYMBOLS}, got {symbols}")
        self.noise, self.symbols = noise, symbols
        self.repeated, self.other = 1 - noise + noise / symbols, max(noise / symbols, LEAST_SHARE)
        self.periods = np.arange(low, high + 1)
        self.below = np.cumsum(1 / self.periods)  # cumsum adds in order, hence to the same bits everywhere

    def period(self, draw: Draw) -> int:
        """The period of a document, which is made of the first random number of `draw`."""
        return int(self.periods[np.searchsorted(self.below, draw.units(1)[0] * self.below[-1])])

    def document(self, draw: Draw) -> bytes:
        period = self.period(draw)
        is_drawn = draw.units(DOCUMENT_TOKENS) < self.noise
        is_drawn[:period] = True
        rows = -(-DOCUMENT_TOKENS // period)
        places = np.where(is_drawn, np.arange(DOCUMENT_TOKENS), 0)
        chains = np.pad(places, (0, rows * period - DOCUMENT_TOKENS)).reshape(rows, period)
        latest = np.maximum.accumulate(chains, axis=0).reshape(-1)[:DOCUMENT_TOKENS]
        return as_bytes(draw.below(self.symbols, DOCUMENT_TOKENS)[latest])

    def optimum(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.optimum_at_end(tokens, tokens.shape[1] - 1)

    def blind(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.blind_at_end(tokens, tokens.shape[1] - 1)

    def optimum_at_end(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
        return self.in_chunks(partial(self._optimum, scored=scored), tokens, scored, CHUNK_WEIGHTS // len(self.periods))

    def blind_at_end(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
        return self.in_chunks(partial(self._blind, scored=scored), tokens, scored, CHUNK_WEIGHTS // len(self.periods))

    def _optimum(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
        losses = []
        for t, each in self._steps(tokens, scored):
            shares = np.where(each.is_repeat, self.repeated, np.where(each.is_seen, self.other, 1 / self.symbols))
            shares = (each.weights * shares).sum(axis=1)
            losses.append(np.where(tokens[:, t] == END, np.nan, -np.log(shares)))
        return np.stack(losses, axis=1)

    def _blind(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
        losses = []
        for t, each in self._steps(tokens, scored):
            bounds = self._bounds[self.periods - np.maximum(each.seen % self.periods, 1)]
            bounds = np.where(each.is_seen, bounds, math.log(self.symbols))
            losses.append(np.where(tokens[:, t] == END, np.nan, (each.weights * bounds).sum(axis=1)))
        return np.stack(losses, axis=1)

    def _steps(self, tokens: NDArray[np.int64], scored: int) -> Iterator[tuple[int, Step]]:
        """Each of the last `scored` targets of a few windows, with what is known of the periods before it."""
        symbols = as_symbols(tokens).astype(np.int16)
        shortest, longest = int(self.periods[0]), int(self.periods[-1])
        earlier = np.pad(symbols, ((0, 0), (longest, 0)))  # of t - P at t - P + longest
        prior = np.log(self.periods)
        repeat, other = math.log(self.repeated * self.symbols), math.log(self.other * self.symbols)
        first, place = tokens.shape[1] - scored, np.arange(tokens.shape[1])
        start = np.where(tokens[:, :first] == END, place[:first] + 1, 0).max(axis=1, keepdims=True)  # of the document
        logs = np.tile(-prior, (len(tokens), 1))  # of a number that is proportional to the posterior
        for n, period in enumerate(self.periods[self.periods < first]):
            is_same = symbols[:, period:first] == symbols[:, : first - period]
            repeats = (is_same & (place[: first - period] >= start)).sum(axis=1)
            logs[:, n] += other * np.maximum(first - period - start[:, 0], 0) + (repeat - other) * repeats
        for t in range(first, tokens.shape[1]):
            weights = np.exp(logs - logs.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            is_seen = t - start >= self.periods
            is_repeat = is_seen & (earlier[:, t : t + longest - shortest + 1][:, ::-1] == symbols[:, t : t + 1])
            yield t, Step(weights, t - start, is_seen, is_repeat)
            logs += other * is_seen + (repeat - other) * is_repeat
            is_end = tokens[:, t] == END
            logs[is_end], start[is_end] = -prior, t + 1

    @cached_property
    def _bounds(self) -> NDArray[np.float64]:
        """b(k) of the class docstring for k from 0 to the longest period; that of 0 is not used."""
        most = int(self.periods[-1])
        bounds, binomial = np.zeros(most + 1), np.zeros(most + 1)
        binomial[0] = 1
        for k in range(1, most + 1):
            binomial[1:] = binomial[1:] * (1 - 1 / self.symbols) + binomial[:-1] / self.symbols
            binomial[0] *= 1 - 1 / self.symbols
            p = (1 - self.noise) * np.arange(k + 1) / k + self.noise / self.symbols
            bounds[k] = -self.symbols * (binomial[: k + 1] * p * np.log(p, out=np.zeros(k + 1), where=p > 0)).sum()
        return bounds
