"""Documents of pairs: a cue, drawn evenly, and an answer that depends on it.

A document is `cue answer cue answer ...`. Every answer is one byte for its cue and a value, such as `a3`, so that

- a single step of attention, from a cue to the answers that belong to it, finds everything a prediction needs: a model
  of one layer can learn that from a few hundred thousand tokens;
- a window may begin anywhere. If its first token is a cue, it tells nothing about the values, because cues do not
  depend on them. If it is an answer, it tells its cue. So what a window shows are whole answers, and the best
  prediction follows from these answers alone, whatever lies before the window.

Shapes: B windows, T targets of a window, N tokens of a window (T + 1).
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from poscli.data.known_limit import DOCUMENT_TOKENS, MOST_SYMBOLS, Draw, KnownLimit, as_bytes, as_symbols
from poscli.data.tokenizers.bytes import END

PAIRS = DOCUMENT_TOKENS // 2
CHUNK_TOKENS = 1 << 20  # of windows handled at a time; each needs about 100 bytes


class Pairs(KnownLimit):
    """A source whose documents are pairs of cue and answer: the answer with cue c and value v is c * values + v.

    The best prediction follows from the cue before the target and from how often each answer was shown: positions are
    of no use, and a position-blind reader reaches the optimum.
    """

    def __init__(self, cues: int, values: int) -> None:
        symbols = cues + cues * values
        if symbols > MOST_SYMBOLS:
            raise ValueError(
                f"{cues} cues with {values} values each need {symbols} bytes, one for each cue and each answer, and "
                f"there are {MOST_SYMBOLS}; ask for fewer"
            )
        self.cues, self.values, self.symbols = cues, values, symbols

    @abstractmethod
    def reply(self, cues: NDArray[np.int64], draw: Draw) -> NDArray[np.int64]:
        """The values of the answers `[PAIRS]` of a document whose cues `[PAIRS]` are given."""

    @abstractmethod
    def costs(self, uses_BN: NDArray[np.int64], repeats_BN: NDArray[np.int64]) -> NDArray[np.float64]:
        """The best possible loss in nats of answers whose cues are known, `[B, N]`.

        `uses_BN` says how many answers to this cue the window shows before the answer, in the same document, and
        `repeats_BN` how many of those have the value of this one.
        """

    def document(self, draw: Draw) -> bytes:
        cues = draw.below(self.cues, PAIRS)
        answers = self.cues + cues * self.values + self.reply(cues, draw)
        return as_bytes(np.stack([cues, answers], axis=1))

    def optimum(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        width = tokens.shape[1]
        return self.in_chunks(self._optimum, tokens, width - 1, CHUNK_TOKENS // width)

    def blind(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.optimum(tokens)

    def _optimum(self, tokens_BN: NDArray[np.int64]) -> NDArray[np.float64]:
        """The best possible losses of a few windows, `[B, T]`."""
        symbols_BN = as_symbols(tokens_BN)
        is_cue = (symbols_BN >= 0) & (symbols_BN < self.cues)
        is_answer = (symbols_BN >= self.cues) & (symbols_BN < self.symbols)
        # What was seen in one document tells nothing about the next, so that the keys of answers count documents.
        keys_BN = np.cumsum(tokens_BN == END, axis=1) * self.cues * self.values + symbols_BN - self.cues
        uses_BN = seen_before(np.where(is_answer, keys_BN // self.values, -1))
        repeats_BN = seen_before(np.where(is_answer, keys_BN, -1))
        answer_costs_BN = self.costs(uses_BN, repeats_BN)
        return np.where(is_cue, math.log(self.cues), np.where(is_answer, answer_costs_BN, np.nan))[:, 1:]


def seen_before(keys_BN: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens before each one, in its own window, have its key: `[B, N]`.

    >>> seen_before(np.array([[7, 5, 7, 7, 5]])).tolist()
    [[0, 0, 1, 2, 1]]
    """
    order = np.argsort(keys_BN, axis=1, kind="stable")
    ordered = np.take_along_axis(keys_BN, order, axis=1)
    place = np.broadcast_to(np.arange(keys_BN.shape[1]), keys_BN.shape)
    is_first = np.ones(keys_BN.shape, dtype=bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.maximum.accumulate(np.where(is_first, place, 0), axis=1)
    counts = np.empty_like(keys_BN)
    np.put_along_axis(counts, order, place - first, axis=1)
    return counts
