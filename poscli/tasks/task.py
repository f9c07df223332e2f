"""What is asked of a model: its text, the targets that count, and the score of a prediction.

Shapes: B windows, T tokens of a window, V vocabulary. A window is stored as T + 1 tokens: the first T are the inputs,
and the last T the targets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from poscli.system.registry import Registry, subclass_of
from poscli.tasks.text import HeldOut

IGNORED = -100  # a target that does not count; torch's cross_entropy leaves it out of the mean


@dataclass(frozen=True, eq=False)
class Batch:
    """The windows of a training step: tokens `[B, T + 1]` and which targets count `[B, T]` (None: all of them)."""

    tokens: NDArray[np.int64]
    counted: NDArray[np.bool_] | None = None

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets `[B, T]` on a device; targets that do not count are IGNORED."""
        tokens = torch.from_numpy(self.tokens)
        if device.type == "cuda":
            tokens = tokens.pin_memory()  # a copy from pageable memory would wait for the device
        tokens = tokens.to(device, non_blocking=True)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if self.counted is not None:
            targets = targets.masked_fill(~torch.from_numpy(self.counted).to(device), IGNORED)
        return inputs, targets


class Task(ABC):
    """A task with its text. Subclasses register under a name: `@TASKS.register("copy")`."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `poscli ls tasks`
    protocols: ClassVar[tuple[str, ...]]  # names of the protocols of its evaluation
    columns: ClassVar[dict[str, tuple[str, str]]] = {}  # further columns of eval.csv: (dtype, meaning)
    measured: ClassVar[str] = "perplexity and context gain"  # by its evaluation, for `poscli ls tasks`
    chance: ClassVar[float | None] = None  # accuracy of a guess that knows the rule and not the text; None: no accuracy
    length: ClassVar[int] = 512  # tokens in a training window, unless another number is asked for
    axes: ClassVar[int] = 1  # of the tokens' positions: 1 for a line of text, 2 for the cells of a grid
    reads_text: ClassVar[bool] = True  # False: it makes its own tokens, or reads images
    same_text: ClassVar[bool] = True  # True: `text` is the same at every length, so that lengths share measurements

    corpus: str  # canonical name of the text, for the column `corpus` of results
    fingerprint: str  # equal fingerprints mean equal text, token for token
    vocab: int
    bytes_per_token: float = 1.0  # of the training text
    files: Mapping[str, bytes] = MappingProxyType({})  # by name, what a run keeps of the text in its own folder

    @classmethod
    @abstractmethod
    def open(cls, corpus: str, tokenizer: str) -> Task:
        """The task on a corpus; UsageError if the task takes no corpus, DataError if the corpus cannot be read."""

    @abstractmethod
    def batch(self, *, size: int, length: int, seed: int, step: int, segments: int = 1) -> Batch:
        """The `size` windows of `length` tokens that training reads at a step: a pure function of seed and step.

        With `segments` above 1, each of that many consecutive steps continues the windows of the step before.
        """

    @abstractmethod
    def text(self, length: int) -> HeldOut:
        """The documents on which windows of `length` tokens are evaluated."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What env.json says about the text: at least `spec`, `fingerprint` and `vocab`."""

    @abstractmethod
    def check(self, length: int) -> None:
        """Refuse training windows of `length` tokens that the task cannot fill: UsageError or DataError."""

    @classmethod
    def strides(cls, length: int) -> tuple[int, int]:
        """The default and the largest number of tokens between sliding windows, for a training length."""
        return min(128, length // 2), length

    def check_evaluation(self, lengths: Sequence[int]) -> None:
        """Refuse windows of lengths, ascending, that cannot be compared with each other: UsageError."""
        return

    def segments(self, length: int) -> int:
        """How many windows of `length` tokens can follow each other in one text, for models with a memory."""
        return 1

    def token_bytes(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many bytes of the original text each token stands for."""
        return np.ones_like(tokens)

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """The loss in nats of guessing each token without its context: -log of its frequency in the training text.

        A model that is not better than that has learned nothing from the context. Without a training text to count,
        all tokens of the vocabulary are equally frequent.
        """
        return np.full(tokens.shape, math.log(self.vocab))

    def optimum(self, tokens: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """The best possible loss in nats of every target `[B, T]` of windows `[B, T + 1]`; None where it is not known.

        It is the loss of a predictor that knows how the text is made, and sees of it what the window shows before the
        target. No model has a lower loss on average; on single tokens it may.
        """
        return None

    @classmethod
    def generator(cls) -> Callable[..., None] | None:
        """What `poscli generate` calls with a model of this task; None where the model continues a text.

        It is called as `continue_held_out` in poscli/grids/continuation.py.
        """
        return None

    def score(self, logits_BTV: Tensor, targets_BT: Tensor) -> dict[str, Tensor]:
        """Measurements of every target, `[B, T]` by name: `nll` in nats, and one for each of `columns`."""
        nll = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none")
        return {"nll": nll.view_as(targets_BT)}


TASKS: Registry[type[Task]] = Registry("task", "poscli.tasks", subclass_of(Task))
