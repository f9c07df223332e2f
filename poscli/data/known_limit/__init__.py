"""Texts of random processes that are known exactly, so that the best possible loss of every token can be computed.

Each file that registers a class is one source; the corpus `bayes:NAME(options)` is its text. Other packages offer
theirs through the entry-point group `poscli.data.known_limit`. Read in this order: this file (what a source is, and its
random numbers), pairs.py (documents of cues and answers), bigram.py and recall.py (sources that need no position),
overwrite.py, period.py and tree.py (sources that need it), corpora/bayes.py (how a source and its options are written).

A position-blind reader sees the token before a target and a bag of the window: how often each token (in `overwrite`,
each pair of a cue and its value) stands before the target, in any order. It does not see where a token stands, which of
two came later, or how far back anything is. One layer of causal attention without an encoding can use no more than a
bag of tokens, or of neighbours if heads take their keys from the token before. Deeper models without an encoding can:
the causal mask shows them something of the order (Haviv et al., 2022, arXiv:2203.16634), so that `none` may have a
lower loss than the best position-blind reader.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from poscli.data.tokenizers.bytes import END
from poscli.system.registry import Registry, subclass_of

Option = int | float
Losses = Callable[[NDArray[np.int64]], NDArray[np.float64]]  # of windows

DOCUMENT_TOKENS = 16384  # twice as long as 16 windows of 512 tokens
FIRST_BYTE = ord("!")  # symbols are the bytes from here on, wrapping round at 256
MOST_SYMBOLS = 256
SMALLEST_ALPHA, LARGEST_ALPHA = 1e-3, 1e3  # of a Dirichlet distribution


def as_bytes(symbols: NDArray[np.int64]) -> bytes:
    """The text of symbols 0, 1, ... in the order of the array."""
    return ((FIRST_BYTE + symbols) % 256).astype(np.uint8).tobytes()


def as_symbols(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The symbols of tokens, in the same shape, from 0 to 255; -1 for `END`."""
    return np.where(tokens == END, -1, (tokens - FIRST_BYTE) % 256)


class Draw:
    """A stream of random numbers for one document of one text.

    Each text is a key of Philox and each document has a block of 2^192 counters, so streams never overlap. Numbers are
    made from raw words by integer arithmetic and exact float64 operations: numpy does not promise that the methods of
    Generator stay the same between releases, and functions such as log differ between platforms in the last bit.
    """

    def __init__(self, text: str, document: int) -> None:
        key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
        self._bits = np.random.Philox(key=key, counter=document << 192)

    def below(self, bound: int, count: int) -> NDArray[np.int64]:
        """`count` whole numbers, evenly from 0 to bound - 1. The bias of the modulo is below 2^-50 for small bounds."""
        return (self._bits.random_raw(count) % np.uint64(bound)).astype(np.int64)

    def units(self, count: int) -> NDArray[np.float64]:
        """`count` multiples of 2^-53, evenly from [0, 1)."""
        return (self._bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


class KnownLimit(ABC):
    """A random process that writes documents of bytes, and the best possible prediction of their tokens.

    The options of a spec are the keyword-only parameters of the constructor. Each has a default, whose type is the
    type of the option: int or float. A value out of range raises ValueError, which states the value and the rule.
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # a few words, such as "every document has its own table"
    version: ClassVar[int] = 1  # raise it when the documents of a spec change

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options of a spec with their defaults."""
        parameters = inspect.signature(cls).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}

    def period(self, draw: Draw) -> int | None:
        """After how many tokens the document of `draw` repeats itself; None in texts without a period."""
        return None

    @abstractmethod
    def document(self, draw: Draw) -> bytes:
        """One document: a pure function of the random numbers of `draw`."""

    @abstractmethod
    def optimum(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """The best possible loss in nats of the last T tokens of windows `[B, T + 1]`, as `[B, T]`.

        The best predictor knows the process, and of the document only the tokens of the window before the target. It
        knows that the document goes on. Tokens are bytes, and `END` opens a document. The loss is NaN for targets that
        are `END`.
        """

    def optimum_at_end(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
        """The last `scored` columns of `optimum`; sources override this where it is much less work."""
        return self.optimum(tokens)[:, tokens.shape[1] - 1 - scored :]

    def blind_at_end(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
        """The last `scored` columns of `blind`, likewise."""
        return self.blind(tokens)[:, tokens.shape[1] - 1 - scored :]

    def blind(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """The best possible loss of a position-blind reader, or a smaller number, in the shapes of `optimum`.

        The reader knows the process, as the best predictor does. `tokens` are windows of one document each. NaN where
        no number is known, which is what this method returns for sources that do not override it.
        """
        return np.full((len(tokens), tokens.shape[1] - 1), np.nan)

    @staticmethod
    def in_chunks(losses: Losses, tokens: NDArray[np.int64], targets: int, rows: int) -> NDArray[np.float64]:
        """The losses `[B, T]` of the last T = `targets` tokens of B windows, computed for `rows` windows at a time."""
        rows = max(1, rows)
        parts = (losses(tokens[first : first + rows]) for first in range(0, len(tokens), rows))
        return np.concatenate([np.empty((0, targets)), *parts])


SOURCES: Registry[type[KnownLimit]] = Registry("known-limit source", __name__, subclass_of(KnownLimit))
