"""`overwrite(cues=16, values=4, rate=0.2)`: a cue has a value, which is drawn anew now and then; the latest counts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy  # whose parts are loaded when they are used
from numpy.typing import NDArray

from poscli.data.known_limit import DOCUMENT_TOKENS, MOST_SYMBOLS, SOURCES, Draw, KnownLimit, as_bytes, as_symbols
from poscli.data.tokenizers.bytes import END

CHUNK_COUNTS = 1 << 22  # counts of values that are held at once
CHUNK_NODES = 1 << 20  # products at the nodes of an integral that are held at once
NEAREST_RATE = 1e-12  # rates of 0 and 1, where the integral below has no value, are taken to be this far away


class Uses(NamedTuple):
    """What the targets `[B, T]` of windows are."""

    is_cue: NDArray[np.bool_]
    is_value: NDArray[np.bool_]  # of a cue that the window shows
    keys: NDArray[np.int64]  # a number for the cue of a value and its document; -1 for other targets
    values: NDArray[np.int64]  # from 0, where is_value


@SOURCES.register("overwrite")
class Overwrite(KnownLimit):
    """p(x | c) = 1 - rate + rate / values for the latest value x of the cue c, rate / values for every other value.

    A document is `cue value cue value ...`, each one byte. Cues are drawn evenly. The first value of a cue is drawn
    evenly; at each later use the value is drawn anew, evenly, with probability `rate` before it is shown, and otherwise
    it is the one that was shown last.

    A window that begins with a value does not show its cue. Each cue that is then used for the first time may be that
    one: the optimum weighs this by Bayes' rule.

    The position-blind limit is that of a reader of the pairs that the window shows whole: of the cue before the target
    it knows how often each value was shown, n_x, and not in which order. Its prediction is (1 - rate) q_x + rate /
    values, where q_x is the probability that x was the latest, given the counts. Draws cut the values of a cue into
    runs, each of one value drawn evenly. For j_x runs of each value x, j in all, there are j! / prod_x j_x! orders of
    the runs, of which the share j_x / j ends with x, and prod_x C(n_x - 1, j_x - 1) ways to choose their lengths; each
    of these sequences has the probability (1 - rate)^n b^j / rate, b = rate / (values (1 - rate)). With
    j! = int_0^inf t^j e^-t dt the sum over all j_x becomes an integral,

        q_x ~ int e^-t f'(n_x, bt) prod_(y != x) f(n_y, bt) dt,    f(n, z) = sum_j C(n - 1, j - 1) z^j / j!,

    where f(n, z) is the Laguerre polynomial L_n^(-1)(-z) (Abramowitz and Stegun, 1964, 22.3.9) and f' = df / dz. A
    reader that cannot tell which value belongs to which cue, as one layer of attention without an encoding, does worse.
    """

    summary = "a cue has a value, which is drawn anew now and then; the latest counts"

    def __init__(self, *, cues: int = 16, values: int = 4, rate: float = 0.2) -> None:
        for name, value in (("cues", cues), ("values", values)):
            if value < 2:
                raise ValueError(f"{name} must be 2 or more, got {value}")
        if cues + values > MOST_SYMBOLS:
            raise ValueError(
                f"{cues} cues and {values} values need {cues + values} bytes, and there are {MOST_SYMBOLS}; "
                "ask for fewer"
            )
        if not 0 <= rate <= 1:
            raise ValueError(f"rate must be from 0 to 1, got {rate:g}")
        self.cues, self.values, self.rate = cues, values, rate

    def document(self, draw: Draw) -> bytes:
        pairs = np.arange(DOCUMENT_TOKENS // 2)
        cues = draw.below(self.cues, len(pairs))
        by_cue = np.argsort(cues, kind="stable")
        is_drawn = draw.units(len(pairs)) < self.rate
        is_drawn[np.searchsorted(cues[by_cue], np.unique(cues))] = True  # the first use of each cue
        latest = np.maximum.accumulate(np.where(is_drawn, pairs, 0))
        values = np.empty_like(cues)
        values[by_cue] = draw.below(self.values, len(pairs))[latest]
        return as_bytes(np.stack([cues, self.cues + values], axis=1))

    def optimum(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        uses = self._uses(tokens)
        order = np.argsort(uses.keys, axis=1, kind="stable")
        keys, values = (np.take_along_axis(each, order, axis=1) for each in (uses.keys, uses.values))
        before = np.full_like(values, -1)
        before[:, 1:] = np.where(keys[:, 1:] == keys[:, :-1], values[:, :-1], -1)
        latest = np.empty_like(values)
        np.put_along_axis(latest, order, before, axis=1)

        # A window's first token may be the value of a cue that is not shown, called the hidden cue.
        hidden = as_symbols(tokens[:, :1]) - self.cues
        has_hidden = (hidden >= 0) & (hidden < self.values) & (np.cumsum(tokens == END, axis=1)[:, 1:] == 0)
        is_first = uses.is_value & (latest < 0)
        if_hidden = self._repeats(uses.values == hidden)
        odds = np.where(is_first & has_hidden, self.values * if_hidden, 0)  # of having been the hidden cue
        unused = self.cues - np.cumsum(is_first, axis=1) + is_first  # cues not yet used, with odds of 1
        with np.errstate(divide="ignore", invalid="ignore"):  # in other documents, and where rate is 0 or 1
            is_hidden = np.where(has_hidden, 1 / (np.cumsum(odds, axis=1) - odds + unused), 0)
            first = is_hidden * if_hidden + (1 - is_hidden) / self.values
            return self._losses(uses, np.where(is_first, first, self._repeats(uses.values == latest)))

    def blind(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        width = tokens.shape[1]
        return self.in_chunks(self._blind, tokens, width - 1, CHUNK_COUNTS // (width * self.values))

    def _blind(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        uses = self._uses(tokens)
        window, _ = np.nonzero(uses.is_value)
        keys, values = uses.keys[uses.is_value], uses.values[uses.is_value]
        order = np.lexsort((keys, window))  # stable
        is_shown = values[order, None] == np.arange(self.values)
        counts = np.cumsum(is_shown, axis=0) - is_shown
        cue = np.stack([window, keys])[:, order]
        is_first = np.append(True, (cue[:, 1:] != cue[:, :-1]).any(axis=0))[: len(order)]
        counts -= counts[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))]
        distinct, which = np.unique(counts, axis=0, return_inverse=True)
        latest = np.empty(len(values))
        latest[order] = self.latest(distinct)[which.reshape(-1), values[order]]
        shares = np.full(uses.values.shape, np.nan)
        shares[uses.is_value] = (1 - self.rate) * latest + self.rate / self.values
        return self._losses(uses, shares)

    def latest(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probability that each value of a cue was the latest, given how often each was shown, `[N, values]`.

        This is q of the class docstring, for counts `[N, values]`; even where nothing was shown. The integral is taken
        by Gauss and Legendre's rule up to where nothing is left: its parts are gamma densities of order at most n + 1,
        n the largest sum of counts.
        """
        most = int(counts.sum(axis=1).max(initial=0))
        end = most + 12 * math.sqrt(most) + 60
        nodes, weights = scipy.special.roots_legendre(int((end + most) / 2) + 40)
        t = (nodes + 1) * end / 2
        rate = min(max(self.rate, NEAREST_RATE), 1 - NEAREST_RATE)
        z = t * rate / (self.values * (1 - rate))
        # f(n + 1) / f(n) and f'(n) / f(n) have recurrences of positive terms.
        logs, slopes = np.zeros((most + 2, len(z))), np.zeros((most + 2, len(z)))
        growth = z
        for n in range(most + 1):
            logs[n + 1] = logs[n] + np.log(growth)
            slopes[n + 1] = ((slopes[n] if n else 0) + 1) / growth
            growth = (2 * (n + 1) + z - n / growth) / (n + 2)
        result, rows = np.empty(counts.shape), max(1, CHUNK_NODES // len(z))
        for first in range(0, len(counts), rows):
            part = counts[first : first + rows]
            log_weights = np.log(weights) - t + sum(logs[part[:, x]] for x in range(self.values))
            at_nodes = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
            ends = np.stack([(at_nodes * slopes[part[:, x]]).sum(axis=1) for x in range(self.values)], axis=1)
            total = ends.sum(axis=1, keepdims=True)
            result[first : first + rows] = np.divide(ends, total, np.full_like(ends, 1 / self.values), where=total > 0)
        return result

    def _repeats(self, is_repeat: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.where(is_repeat, 1 - self.rate + self.rate / self.values, self.rate / self.values)

    def _uses(self, tokens: NDArray[np.int64]) -> Uses:
        symbols = as_symbols(tokens)
        is_cue = (symbols >= 0) & (symbols < self.cues)
        is_value = (symbols >= self.cues) & (symbols < self.cues + self.values)
        of_cue = is_value[:, 1:] & is_cue[:, :-1]
        keys = np.cumsum(tokens == END, axis=1)[:, 1:] * self.cues + symbols[:, :-1]
        return Uses(is_cue[:, 1:], of_cue, np.where(of_cue, keys, -1), symbols[:, 1:] - self.cues)

    def _losses(self, uses: Uses, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """The losses of targets whose values are predicted with the probabilities `shares`."""
        with np.errstate(divide="ignore"):  # a rate of 0 makes some texts impossible
            return np.where(uses.is_cue, math.log(self.cues), np.where(uses.is_value, -np.log(shares), np.nan))
