"""The random numbers of one document."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray


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
