"""A task whose tokens stand for several bytes: token 0 opens a document and stands for none, token n for 2n - 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from poscli.data import Split
from poscli.tasks import Batch, Task, Text

PIECES = 8  # in the vocabulary


class Pieces(Task):
    """Language modelling on documents that a test writes out; training reads random tokens."""

    name = "pieces"
    summary = "a task of the tests"
    protocols = ("nonoverlapping", "sliding", "fixed")
    columns: ClassVar = {}

    def __init__(
        self,
        documents: Sequence[Sequence[int]] = ((1, 2, 3),),
        *,
        bytes_per_token: float = 2.5,
        uncounted: Sequence[tuple[int, int]] = (),
    ) -> None:
        """`uncounted` are the targets that do not count: (document, number of the target, from 1)."""
        self.corpus, self.fingerprint, self.vocab = "pieces", "5ca1ab1e", PIECES
        self.bytes_per_token = bytes_per_token
        tokens = np.array([token for document in documents for token in (0, *document)], dtype=np.uint16)
        starts = np.cumsum([0, *(1 + len(document) for document in documents)])
        counted = np.ones(len(tokens), dtype=bool)
        for document, target in uncounted:
            counted[starts[document] + target] = False
        self._text = Text(Split(tokens, starts), counted if uncounted else None)

    @classmethod
    def open(cls, corpus: str, tokenizer: str) -> Pieces:
        return cls()

    def batch(self, *, size: int, length: int, seed: int, step: int, segments: int = 1) -> Batch:
        return Batch(np.random.default_rng([seed, step]).integers(1, PIECES, (size, length + 1)))

    def text(self, length: int) -> Text:
        return self._text

    def describe(self) -> dict[str, Any]:
        return {"spec": self.corpus, "fingerprint": self.fingerprint, "vocab": self.vocab}

    def check(self, length: int) -> None:
        pass

    def token_bytes(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.maximum(2 * tokens - 1, 0)
