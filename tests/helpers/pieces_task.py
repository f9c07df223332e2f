"""A task whose tokens stand for several bytes: token 0 opens a document and stands for none, token n for 2n - 1.

And small models, runs and samples of windows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from poscli.config.run import SCHEMA, ModelConfig, RunConfig
from poscli.data import Split
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.runs.run import Run, create
from poscli.tasks import Batch, Task, Text
from poscli.verify.noise import perturbed
from poscli.why.sample import Sample

PIECES = 8  # in the vocabulary


def document(size: int, kind: int) -> list[int]:
    """A document in which most tokens are one more than the token before, and some texts come again."""
    return [1 + (n * (1 + (n // 5 + kind) % 3) + kind) % 7 for n in range(size)]


DOCUMENTS = [document(size, kind) for kind, size in enumerate((40, 37, 12, 50, 33, 61, 36, 35))]
# The document and the last target of eight windows of 32 tokens.
WINDOWS = np.array([[0, 36], [0, 40], [3, 36], [3, 48], [4, 32], [5, 40], [5, 60], [6, 36]])


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


def small(spec: str, *, layers: int = 2, length: int = 8, seed: int = 4, vocab: int = PIECES, memory: int = 0) -> Model:
    """A model of the pieces with perturbed weights."""
    config = ModelConfig(layers=layers, width=24, heads=3, mlp=32, memory=memory)
    made = build_model(config, spec, vocab=vocab, length=length, seed=seed)
    return perturbed(made).eval().requires_grad_(False)


def windows_of_pieces(task: Task | None = None, **changes: Any) -> Sample:
    """Eight windows of 32 tokens, of which the last four are scored, unless `changes` say otherwise."""
    task = task or Pieces(DOCUMENTS, uncounted=[(3, 48), (6, 33), (6, 34), (6, 35), (6, 36)])
    sizes = {"scored": 4, "train_length": 8, "length": 32, "stride": 2, "spans": WINDOWS}
    return Sample(**{"task": task, "text": task.text(32), "device": torch.device("cpu")} | sizes | changes)


def ended_run(folder: Path, task: Task, config: RunConfig, state: str = "complete", message: str = "") -> Run:
    """A run on disk whose training has ended."""
    corpus = {"fingerprint": task.fingerprint, "vocab": task.vocab, "tokenizer_fingerprint": "f1"}
    run = create(
        folder / config.run_id(task.fingerprint), config, {"corpus": corpus, "parameters": 77, "schema": SCHEMA}
    )
    run.set_status(state, run.steps, message)
    return run
