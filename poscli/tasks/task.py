"""What is asked of a model: its text, the targets that count, the score of a prediction, and windows to evaluate on.

Shapes: B windows, T tokens of a window, V vocabulary. A window is stored as T + 1 tokens: the first T are the inputs,
and the last T the targets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from poscli.data import Split, Tokenizer
from poscli.system.errors import UsageError
from poscli.system.registry import Registry, subclass_of

Spans = NDArray[np.int64]  # [windows, 2]: the document of each window, and the number of its last target, from 1


class HeldOut(ABC):
    """Documents to evaluate on. The targets of each are numbered from 1.

    A window of l tokens is given by its document and the number of its last target. It is stored as l + 1 tokens, of
    which the first l are the inputs and the last l the targets.
    """

    @abstractmethod
    def windows(self, spans: Spans, length: int) -> NDArray[np.int64]:
        """The tokens `[B, length + 1]` of these windows, the last target included."""

    @abstractmethod
    def targets(self, spans: Spans, scored: int) -> NDArray[np.int64]:
        """The last `scored` targets of each window, `[B, scored]`."""

    @abstractmethod
    def counts(self, spans: Spans, scored: int) -> NDArray[np.bool_]:
        """Which of the last `scored` targets of each window count, `[B, scored]`."""

    @abstractmethod
    def ends(self, step: int, length: int) -> Spans:
        """The places of a window of `length` tokens that moves through each document in steps of `step` targets."""

    @abstractmethod
    def inside(self, spans: Spans, length: int, margin: int) -> NDArray[np.bool_]:
        """Which of these windows of `length` tokens begin at least `margin` targets after their document does."""

    @abstractmethod
    def tiles(self, length: int) -> Spans:
        """Windows of `length` tokens that do not overlap, from the beginning of each document on."""

    @abstractmethod
    def parts(self, spans: Spans, longest: int, length: int) -> Spans:
        """Windows of `length` tokens that do not overlap, cut from these windows of `longest` tokens.

        In each long window, the last short one ends where the long one does, and targets at the beginning that fill no
        short window are left out.
        """

    @abstractmethod
    def shortage(self, length: int, stride: int) -> str:
        """An error message: no document is long enough for windows of `length` tokens that move by `stride`."""


@dataclass(frozen=True, eq=False)
class Text(HeldOut):
    """Documents that are lines of tokens. A document's first token is never a target.

    A window reads the l tokens before its last target, e, and predicts targets e - l + 1 to e.
    """

    split: Split
    counted: NDArray[np.bool_] | None = None  # parallel to the tokens of the split; None: every token is a target
    # The token with which the tokenizer opens every text. It takes the place of the first input of every window,
    # wherever in a document the window begins; the targets stay as they are. A model that was trained with it in front
    # of everything predicts badly without it: short windows, most of which begin inside a document, would suffer more
    # than long ones, which would look better than they are.
    opening: int | None = field(default=None, kw_only=True)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of targets of each document, counted or not."""
        return np.diff(self.split.starts) - 1

    def windows(self, spans: Spans, length: int) -> NDArray[np.int64]:
        tokens = self.split.tokens[self._places(spans, length + 1)].astype(np.int64)
        if self.opening is not None:
            tokens[:, 0] = self.opening
        return tokens

    def targets(self, spans: Spans, scored: int) -> NDArray[np.int64]:
        return self.split.tokens[self._places(spans, scored)].astype(np.int64)

    def counts(self, spans: Spans, scored: int) -> NDArray[np.bool_]:
        if self.counted is None:
            return np.ones((len(spans), scored), dtype=bool)
        return self.counted[self._places(spans, scored)]

    def ends(self, step: int, length: int) -> Spans:
        """The windows whose last target is a multiple of `step`."""
        ends = self.tiles(step)
        return ends[self.inside(ends, length, 0)]

    def inside(self, spans: Spans, length: int, margin: int) -> NDArray[np.bool_]:
        return spans[:, 1] >= length + margin

    def tiles(self, length: int) -> Spans:
        ends = [np.arange(length, size + 1, length) for size in self.sizes]
        documents = np.repeat(np.arange(len(ends)), [len(each) for each in ends])
        return np.stack([documents, np.concatenate(ends)], axis=1)

    def parts(self, spans: Spans, longest: int, length: int) -> Spans:
        back = np.arange(longest // length) * length
        return np.stack([np.repeat(spans[:, 0], len(back)), (spans[:, 1:] - back).ravel()], axis=1)

    def shortage(self, length: int, stride: int) -> str:
        needed = (-(-length // stride) + 1) * stride
        return (
            f"length {length} with stride {stride} needs a held-out document of {needed} tokens, and the longest has "
            f"{self.sizes.max(initial=0)}; give a corpus with longer ones, or shorter windows"
        )

    def _places(self, spans: Spans, count: int) -> NDArray[np.int64]:
        """The indices in the split of the last `count` tokens of each window, its last target included."""
        last = self.split.starts[spans[:, 0]] + spans[:, 1]
        return last[:, None] + np.arange(1 - count, 1)


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
    def open(cls, corpus: str, tokenizer: str | Tokenizer) -> Task:
        """The task on a corpus; UsageError if the task takes no corpus, DataError if the corpus cannot be read."""

    @abstractmethod
    def batch(self, *, size: int, length: int, seed: int, step: int, segments: int = 1) -> Batch:
        """The `size` windows of `length` tokens that training reads at a step: a pure function of seed and step.

        With `segments` above 1, each of that many consecutive steps continues the windows of the step before.
        """

    @abstractmethod
    def text(self, length: int) -> HeldOut:
        """The documents on which windows of `length` tokens are evaluated."""

    def tuning(self) -> Task:
        """The same task, but with the documents for choosing recipes as its `text`, which no evaluation scores.

        They are also what its batches read if nothing is for training.

        DataError if there are none, UsageError if the task keeps none.
        """
        raise UsageError(f"the task {self.name} keeps no text for tuning; tune on another task")

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What env.json says about the text: at least `spec`, `fingerprint` and `vocab`."""

    @abstractmethod
    def check(self, length: int) -> None:
        """Refuse training windows of `length` tokens that the task cannot fill: UsageError or DataError."""

    @classmethod
    def strides(cls, length: int) -> tuple[int, int]:
        """The default and the largest number of tokens between sliding windows, for a training length."""
        return min(64, length // 2), length

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

    def optimum(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64] | None:
        """The best possible loss in nats of the last `scored` targets of windows `[B, T + 1]`, as `[B, scored]`.

        It is the loss of a predictor that knows how the text is made, and sees of it what the window shows before the
        target. No model has a lower loss on average; on single tokens it may. None where it is not known.
        """
        return None

    def blind(self, tokens: NDArray[np.int64], scored: int) -> NDArray[np.float64] | None:
        """The best possible loss of a reader that ignores positions, as `optimum`; None, or NaN, where not known.

        What ignoring positions means is said in poscli/data/known_limit/__init__.py.
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
