"""Documents to evaluate on, and the windows that can be read in them.

Shapes: B windows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from poscli.data import Split

Spans = NDArray[np.int64]  # [windows, 2]: the document of each window, and the number of its last target, from 1


class HeldOut(ABC):
    """Documents to evaluate on. The targets of each are numbered from 1.

    A window of l tokens is given by its document and the number of its last target. It is stored as l + 1 tokens, of
    which the first l are the inputs and the last l the targets.
    """

    @property
    @abstractmethod
    def sizes(self) -> NDArray[np.int64]:
        """The number of targets of each document, counted or not."""

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
        """The windows of `length` tokens that a window visits which moves through each document by `step` targets."""

    @abstractmethod
    def inside(self, spans: Spans, length: int, margin: int) -> NDArray[np.bool_]:
        """Which of these windows of `length` tokens begin at least `margin` targets after their document does."""

    @abstractmethod
    def tiles(self, length: int) -> Spans:
        """Windows of `length` tokens that do not overlap, from the beginning of each document on."""

    @abstractmethod
    def parts(self, spans: Spans, longest: int, length: int) -> Spans:
        """Windows of `length` tokens that do not overlap, in these windows of `longest` tokens.

        The last one ends where the window does that is cut. What does not fill a window is left out at its beginning.
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

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.split.starts) - 1

    def windows(self, spans: Spans, length: int) -> NDArray[np.int64]:
        return self.split.tokens[self._places(spans, length + 1)].astype(np.int64)

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
        return (
            f"length {length} with stride {stride} needs a held-out document of {length + stride} tokens, and the "
            f"longest has {self.sizes.max(initial=0)}; give a smaller --max-len or --stride"
        )

    def _places(self, spans: Spans, count: int) -> NDArray[np.int64]:
        """The indices in the split of the last `count` tokens of each window, its last target included."""
        last = self.split.starts[spans[:, 0]] + spans[:, 1]
        return last[:, None] + np.arange(1 - count, 1)


@dataclass(frozen=True, eq=False)
class OpenedText(Text):
    """Text in which every window begins with one token, wherever in a document it begins.

    The token, with which the tokenizer opens every text, takes the place of the window's first input; the targets stay
    as they are. A model that was trained with it in front of everything predicts badly without it: short windows, most
    of which begin inside a document, would suffer more than long ones, which would look better than they are.
    """

    opening: int = field(kw_only=True)

    def windows(self, spans: Spans, length: int) -> NDArray[np.int64]:
        tokens = super().windows(spans, length)
        tokens[:, 0] = self.opening
        return tokens
