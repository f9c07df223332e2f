"""Language modelling: predict every next token of a corpus."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.data import (
    Corpus,
    Tokenizer,
    TrainedTokenizer,
    batch,
    check_trainable,
    check_tunable,
    limit_of,
    load_corpus,
)
from poscli.data.known_limit import KnownLimit
from poscli.data.tokenizers import TRAINED
from poscli.system.errors import DataError
from poscli.tasks.task import TASKS, Batch, Task, Text

CHUNK_TOKENS = 1 << 22  # read at a time where the tokens of a corpus are counted


@TASKS.register("language")
class Language(Task):
    """Every token but the first of a document is a target. Evaluation reads the corpus' held-out documents.

    If the tokenizer opens every text with a token, every window begins with it, in training and in evaluation.
    """

    summary = "predict the next token of a corpus"
    protocols = ("nonoverlapping", "sliding", "fixed")

    def __init__(self, data: Corpus) -> None:
        self.data = data
        self.corpus, self.fingerprint, self.vocab = data.spec, data.fingerprint, data.vocab
        if isinstance(data.tokenizer, TrainedTokenizer):
            self.files = {TRAINED: data.tokenizer.content}
        if not data.known.documents:
            raise DataError(
                f"the corpus {data.spec} has only text to score: nothing is left to count frequencies by; add documents"
            )
        self.bytes_per_token = data.known.bytes / (len(data.known.tokens) - data.known.documents)

    @classmethod
    def open(cls, corpus: str, tokenizer: str | Tokenizer) -> Language:
        return cls(load_corpus(corpus, tokenizer=tokenizer))

    def batch(self, *, size: int, length: int, seed: int, step: int, segments: int = 1) -> Batch:
        tokens = batch(self.data.train, length=length, size=size, seed=seed, step=step, segments=segments)
        if self.data.tokenizer.opens and step % segments == 0:  # other windows continue those of the step before
            tokens[:, 0] = self.data.tokenizer.end
        return Batch(tokens)

    def text(self, length: int) -> Text:
        return self._text

    def tuning(self) -> Language:
        check_tunable(self.data)
        return Language(replace(self.data, train=self.data.known, valid=self.data.tune))

    def describe(self) -> dict[str, Any]:
        return self.data.describe()

    def check(self, length: int) -> None:
        check_trainable(self.data, length)

    def segments(self, length: int) -> int:
        return (len(self.data.train.tokens) - 1) // length

    def token_bytes(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.data.tokenizer.token_bytes[tokens]

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._surprise[tokens]

    def optimum(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64] | None:
        return self._limit.optimum_at_end(tokens, scored) if self._limit else None

    def blind(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64] | None:
        return self._limit.blind_at_end(tokens, scored) if self._limit else None

    @cached_property
    def _limit(self) -> KnownLimit | None:
        # A corpus knows the best possible loss of every byte, and not of other tokens.
        return None if self.data.tokenizer.fingerprint else limit_of(self.corpus)

    @cached_property
    def _text(self) -> Text:
        coder = self.data.tokenizer
        return Text(self.data.valid, opening=coder.end if coder.opens else None)

    @cached_property
    def _surprise(self) -> NDArray[np.float64]:
        """-log of the frequency of each token in text that is not scored, `[vocab]`; one is added to every count."""
        counts, tokens = np.ones(self.vocab), self.data.known.tokens
        for first in range(0, len(tokens), CHUNK_TOKENS):  # the text may be larger than the memory
            counts += np.bincount(tokens[first : first + CHUNK_TOKENS], minlength=self.vocab)
        return np.log(counts.sum()) - np.log(counts)
