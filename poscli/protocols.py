"""Evaluation protocols: (window length l, stride S, which tokens count), all read off one table of losses per token.

    nonoverlapping   windows of l, stride l, all l tokens scored
    sliding          windows of l, stride S, the last S tokens of each scored
    fixed            the same, on the same tokens at every length: those at least the longest length into
                     their document. Only here are lengths comparable token by token.

A document is END, byte 1, ..., byte n. A window is named by its document and the byte it ends at, e: it reads the l
tokens before byte e and predicts bytes e - l + 1 to e. Budgets are met by taking windows in an order drawn once, those
first that every length can take: every run, encoding and seed scores the same tokens, and so does every length until
a budget exceeds what documents offer beyond the longest length. Drawn apart, 3072 tokens would let a perplexity differ
by 8 % between two lengths for the text alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poscli.errors import DataError, UsageError

FEWEST_WINDOWS = 4  # of the nonoverlapping protocol, however long they are

Spans = NDArray[np.int64]  # [n, 2]: document, end


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides which tokens are scored."""

    train_length: int
    max_len: int
    tokens: int  # scored per length, in each protocol
    stride: int

    def __post_init__(self) -> None:
        if self.max_len < self.train_length:
            raise UsageError(f"--max-len {self.max_len} is below the training length {self.train_length}; give more")
        if not 1 <= self.stride <= self.train_length:
            raise UsageError(f"--stride {self.stride} must be between 1 and the training length {self.train_length}")
        if self.tokens < self.stride:
            raise UsageError(f"--tokens {self.tokens} is less than one stride of {self.stride} tokens; give more")

    @property
    def lengths(self) -> list[int]:
        """1, 2, 4, ... times the training length, up to max_len."""
        doublings = (self.max_len // self.train_length).bit_length()
        return [self.train_length << n for n in range(doublings)]

    def scored(self, protocol: str, length: int) -> int:
        """Tokens scored at the end of each window."""
        return length if protocol == "nonoverlapping" else self.stride


class Plan:
    """Which windows each protocol and length takes, for documents of given sizes in bytes."""

    def __init__(self, sizes: NDArray[np.int64], settings: Settings) -> None:
        self.sizes, self.settings = sizes, settings
        self.longest = settings.lengths[-1]
        anchors = _grid(sizes, settings.stride)
        anchors = anchors[np.random.default_rng(0).permutation(len(anchors))]
        self.common = anchors[:, 1] - settings.stride >= self.longest
        order = np.argsort(~self.common, kind="stable")
        self.anchors, self.common = anchors[order], self.common[order]
        if len(self.spans("fixed", self.longest)) == 0:
            raise DataError(
                f"length {self.longest} with stride {settings.stride} needs a held-out document of "
                f"{self.longest + settings.stride} bytes, and the longest has {sizes.max(initial=0)}; "
                f"give a smaller --max-len or --stride"
            )

    def spans(self, protocol: str, length: int) -> Spans:
        """The windows of a protocol at a length, sorted."""
        count = self.settings.tokens // self.settings.stride
        if protocol == "fixed":
            chosen = self.anchors[self.common][:count]
        elif protocol == "sliding":
            chosen = self.anchors[self.anchors[:, 1] >= length][:count]
        else:
            windows = _grid(self.sizes, length)
            order = np.random.default_rng(1).permutation(len(windows))
            chosen = windows[order][: max(FEWEST_WINDOWS, self.settings.tokens // length)]
        return np.unique(chosen, axis=0)

    def windows(self, length: int, variant: str) -> Spans:
        """Every window of a length, for the model itself (`full`) or under an attention window (`window`)."""
        needed = [self.spans("sliding", length), self.spans("fixed", length)]
        if variant == "full":
            needed.append(self.spans("nonoverlapping", length))
            if length == self.settings.train_length:  # what longer windows score is cropped to this length
                needed += [self.spans("sliding", longer) for longer in self.settings.lengths]
        return np.unique(np.concatenate(needed), axis=0)


def _grid(sizes: NDArray[np.int64], step: int) -> Spans:
    """Every (document, end) with end a multiple of `step`."""
    ends = [np.arange(step, size + 1, step) for size in sizes]
    documents = np.repeat(np.arange(len(sizes)), [len(e) for e in ends])
    return np.stack([documents, np.concatenate(ends)], axis=1)


@dataclass(frozen=True)
class Losses:
    """The primitive: nats of each token `[windows, length]` under each window, sorted by document and end."""

    spans: Spans
    nll: NDArray[np.float32]

    @property
    def length(self) -> int:
        """Tokens in a window."""
        return self.nll.shape[1]

    def at(self, spans: Spans, scored: int) -> NDArray[np.float64]:
        """The last `scored` tokens of some of the windows, `[spans, scored]`, in the order of the spans."""
        row = np.searchsorted(_keys(self.spans), _keys(spans))
        assert (self.spans[row] == spans).all()
        return self.nll[row, self.length - scored :].astype(np.float64)


def _keys(spans: Spans) -> NDArray[np.int64]:
    return spans[:, 0] << 40 | spans[:, 1]


@dataclass(frozen=True)
class Bin:
    """Mean loss at positions `start` to `stop` of the window, both included; 1 is the first token predicted."""

    start: int
    stop: int
    tokens: int
    nll: float


def position_curve(losses: Losses) -> list[Bin]:
    """Loss by position in the window, in bins of half an octave, over every window of the length."""
    length = losses.length
    edges = np.unique(np.floor(2.0 ** np.arange(0, np.log2(length), 0.5)).astype(int))
    by_position = losses.nll.mean(axis=0, dtype=np.float64)
    bounds = zip(edges, [*edges[1:], length + 1], strict=True)
    windows = len(losses.nll)
    return [Bin(int(a), int(b) - 1, int(b - a) * windows, float(by_position[a - 1 : b - 1].mean())) for a, b in bounds]


def tail_slope(losses: Losses) -> float:
    """Change of loss per doubling of the position over the last two octaves of the window (least squares)."""
    start = losses.length // 4
    octave = np.log2(np.arange(start + 1, losses.length + 1))
    return float(np.polyfit(octave, losses.nll[:, start:].mean(axis=0, dtype=np.float64), 1)[0])
