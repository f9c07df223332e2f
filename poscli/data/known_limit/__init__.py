"""Texts of random processes that are known exactly, so that the best possible loss of every token can be computed.

Each file that registers a class is one source; the corpus `bayes:NAME(options)` is its text. Other packages offer
theirs through the entry-point group `poscli.data.known_limit`. Read in this order: this file (what a source is, and its
random numbers), pairs.py (documents of cues and answers), bigram.py and recall.py (the sources), corpora/bayes.py (how
a source and its options are written).
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from poscli.system.registry import Registry, subclass_of

Option = int | float


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


SOURCES: Registry[type[KnownLimit]] = Registry("known-limit source", __name__, subclass_of(KnownLimit))
