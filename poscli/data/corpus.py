"""A built corpus: for each split, a memory-mapped array of tokens and where its documents begin; batches of a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poscli.data.tokenizers import Tokenizer
from poscli.system.console import warn_once
from poscli.system.errors import DataError

FEW_HELD_OUT_BYTES = 10_000
SHORTEST_WINDOW = 8  # the smallest --length


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
    """Documents to train on, to score, and to choose recipes by. Equal fingerprints mean equal arrays."""

    spec: str  # canonical: equal corpora have equal specs
    fingerprint: str  # 16 hex digits of a SHA-256 over the documents, their split and the tokenizer
    tokenizer: Tokenizer
    train: Split
    valid: Split
    tune: Split  # never scored; it may have no documents
    origin: Mapping[str, str] = field(default_factory=dict)  # what identifies the version: python, revision

    @property
    def known(self) -> Split:
        """The text by which frequencies are counted: that for training, or where nothing is trained, for tuning."""
        return self.train if self.train.bytes else self.tune

    @property
    def vocab(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.tokenizer.vocab

    def describe(self) -> dict[str, Any]:
        """The corpus in env.json and in `--json`; only a tokenizer with a fingerprint is named, so not `bytes`."""
        name, mark = self.tokenizer.name, self.tokenizer.fingerprint
        tokenizer = {"tokenizer": name, "tokenizer_fingerprint": mark} if mark else {}
        splits = {"train": self.train, "valid": self.valid, "tune": self.tune}
        sizes = {name: {"documents": split.documents, "bytes": split.bytes} for name, split in splits.items()}
        named = {"spec": self.spec, "fingerprint": self.fingerprint, **tokenizer, "vocab": self.vocab}
        return {**named, **sizes, **self.origin}


def check_tunable(corpus: Corpus) -> None:
    """Raise DataError if no document is kept for tuning."""
    if not corpus.tune.documents:
        raise DataError(
            f"the corpus {corpus.spec} has no document for tuning, as only one could be held out; add documents"
        )


def check_trainable(corpus: Corpus, length: int) -> None:
    """Raise DataError if a split cannot fill one window of `length` tokens and the target after it.

    Says so on stderr if the held-out part is so small that a loss on it is mostly chance.
    """
    for split, purpose in ((corpus.train, "for training"), (corpus.valid, "held out")):
        tokens = len(split.tokens)
        if tokens < length + 1:
            largest = min(len(corpus.train.tokens), len(corpus.valid.tokens)) - 1
            fix = f"the largest --length that fits is {largest}" if largest >= SHORTEST_WINDOW else "add text to it"
            if corpus.spec.startswith("whole:"):
                fix = "nothing of it is set aside for training; name it without `whole:`"
            raise DataError(
                f"the corpus {corpus.spec} has {split.bytes} bytes {purpose} ({tokens} tokens), and a window of "
                f"{length} needs {length + 1} tokens: {fix}"
            )
    if corpus.valid.bytes < FEW_HELD_OUT_BYTES:
        warn_once(
            f"the corpus {corpus.spec} holds out {corpus.valid.bytes} bytes: a loss on fewer than "
            f"{FEW_HELD_OUT_BYTES} is mostly chance; add documents, of which about a quarter is held out"
        )


def batch(split: Split, *, length: int, size: int, seed: int, step: int, segments: int = 1) -> np.ndarray:
    """Windows drawn uniformly from a split: int64 `[size, length + 1]`, the inputs and the target after the last one.

    With `segments` above 1, the windows of that many consecutive steps continue each other; then new starts are drawn.
    A window may run into the next document, which its `end` token marks. `check_trainable` checks that a window fits.
    """
    step, segment = divmod(step, segments)
    # Each seed is a key of Philox and each step has a block of 2^192 counters, so streams never overlap. Raw words are
    # used because numpy does not promise that the methods of Generator stay the same between releases. The bias of the
    # modulo is below 2^-20 for every corpus under 2^44 tokens.
    words = np.random.Philox(key=seed, counter=step << 192).random_raw(size)
    starts = (words % np.uint64(len(split.tokens) - segments * length)).astype(np.int64) + segment * length
    return split.tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
