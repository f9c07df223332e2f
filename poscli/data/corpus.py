"""A built corpus: for each split, a memory-mapped array of tokens and where its documents begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poscli.data.tokenizers import Tokenizer
from poscli.system.errors import DataError


@dataclass(frozen=True, eq=False)
class Split:
    """Documents end to end. Each is stored as the tokenizer's `end` token followed by the document's own tokens."""

    tokens: np.ndarray  # uint16 or uint32 [tokens], memory-mapped
    starts: np.ndarray  # int64 [documents + 1]: document n is tokens[starts[n]:starts[n + 1]]
    bytes: int = 0  # of all documents; 0 for tokens that stand for no text

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.starts) - 1


@dataclass(frozen=True, eq=False)
class Corpus:
    """Training and validation documents. Equal fingerprints mean equal arrays, token for token."""

    spec: str  # canonical: equal corpora have equal specs
    fingerprint: str  # 16 hex digits of a SHA-256 over the documents, their split and the tokenizer
    tokenizer: Tokenizer
    train: Split
    valid: Split
    origin: Mapping[str, str] = field(default_factory=dict)  # what identifies the version: python, revision

    @property
    def vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.tokenizer.vocab

    def describe(self) -> dict[str, Any]:
        """The corpus in env.json and in `--json`; only a tokenizer with a fingerprint is named, so not `bytes`."""
        tokenizer = {"tokenizer": self.tokenizer.name} if self.tokenizer.fingerprint else {}
        splits = {"train": self.train, "valid": self.valid}
        sizes = {name: {"documents": split.documents, "bytes": split.bytes} for name, split in splits.items()}
        named = {"spec": self.spec, "fingerprint": self.fingerprint, **tokenizer, "vocab": self.vocab}
        return {**named, **sizes, **self.origin}


def check_trainable(corpus: Corpus, length: int) -> None:
    """Raise DataError if the training split cannot fill one window of `length` tokens and the target after it."""
    tokens = len(corpus.train.tokens)
    if tokens < length + 1:
        raise DataError(
            f"the corpus {corpus.spec} has {corpus.train.bytes} bytes for training ({tokens} tokens), and a window of "
            f"{length} needs {length + 1} tokens: the largest --length that fits is {tokens - 1}"
        )
