"""R0: what a longer window is worth to a simple predictor, an n-gram with a cache of the window, in bits per byte.

A prediction starts evenly and is mixed with what followed longer and longer contexts c of the token x:

    p(x) <- (1 - w) p(x) + w n(c x) / n(c)

First n counts in the training split, for contexts of 0 to 6 tokens (Jelinek and Mercer 1980); then in the last l tokens
before x, for contexts of 0 to 16 tokens (a cache: Kuhn and De Mori 1990). Each mixture has weights w of its own, by
n(c), by how many different tokens followed c in training, and, for the cache, by the longest context that the training
split knows. They are fitted by expectation maximisation to the tuning split, for each l anew. Held-out documents
decide no number of the predictor. A longer window can lose a little, because near and far occurrences count alike: on
`spliced`, where only the same short piece tells anything, 16 L lose 0.02 bits per byte.

All windows predict the same tokens, each of which has the longest window before it in its document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from poscli.data.corpus import Corpus, Split
from poscli.data.profile import far_documents, gram_numbers
from poscli.statistics import FEWEST_DOCUMENTS
from poscli.statistics.intervals import ratio_interval
from poscli.system.errors import DataError

TRAINING_ORDER = 6  # the longest context in tokens whose followers are counted in training
CACHE_ORDERS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)
MOST_TRAINING_TOKENS = 4_000_000  # that are counted
MOST_TARGETS = 32_768  # tokens that are predicted, and that weights are fitted to
STEPS = 50  # of expectation maximisation
CLASSES = 9  # of counts: 0, 1, 2, 3 to 4, 5 to 8, ..., 65 or more

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class WindowGain(NamedTuple):
    """What the n-gram with a cache of the last `window` tokens reaches, in bits per byte."""

    window: int
    bpb: float
    won: float  # over a window of L tokens
    low: float  # end of the 95 % interval of `won` over documents, NaN for fewer than five
    high: float


class Targets(NamedTuple):
    """Tokens to be predicted: places `[n]` in the `tokens` of documents end to end, and the document of each."""

    tokens: Ints
    places: Ints
    documents: Ints


def window_lengths(length: int) -> tuple[int, ...]:
    """L/8 to 16 L in octaves.

    >>> window_lengths(64)
    (8, 16, 32, 64, 128, 256, 512, 1024)
    """
    return tuple(length * 2**octave // 8 for octave in range(8))


def window_gains(corpus: Corpus, length: int) -> list[WindowGain]:
    """What windows of L/8 to 16 L tokens win on held-out tokens of a corpus; `length` is L, 8 or more.

    Up to 4 million training tokens are counted, and up to 32,768 tokens of the `far_documents` are predicted. Raises
    DataError if there are no held-out or no tuning documents that are longer than the longest window.
    """
    windows = window_lengths(length)
    tune, held = (far_targets(split, windows[-1]) for split in (corpus.tune, corpus.valid))
    for targets, name, split in ((held, "held-out", corpus.valid), (tune, "tuning", corpus.tune)):
        if not len(targets.places):
            longest = int(np.diff(split.starts).max(initial=0))
            shorter = f"give a --length of {(longest - 2) // 16} or less, or " if longest >= 130 else ""
            raise DataError(
                f"{corpus.spec} has no {name} document of more than 16 times the length {length}, {windows[-1]} "
                f"tokens: {shorter}add longer documents"
            )
    train = np.asarray(corpus.train.tokens[:MOST_TRAINING_TOKENS], np.int64)
    bits = cached_ngram(train, tune, held, corpus.vocab, windows) / np.log(2)
    sizes = np.bincount(held.documents, corpus.tokenizer.token_bytes[held.tokens[held.places]])
    rows = []
    for window, here in zip(windows, bits, strict=True):
        won = np.bincount(held.documents, bits[windows.index(length)] - here)
        ends = ratio_interval(won, sizes) if len(sizes) >= FEWEST_DOCUMENTS else (np.nan, np.nan)
        rows.append(WindowGain(window, float(here.sum() / sizes.sum()), float(won.sum() / sizes.sum()), *ends))
    return rows


def far_targets(split: Split, reach: int) -> Targets:
    """Tokens of the `far_documents` of a split, drawn evenly from those that have `reach` tokens before them."""
    tokens, places, documents = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    contents = far_documents(split, reach)
    for number, content in enumerate(contents):
        # Even steps could fall in with a period of the text.
        draws = np.random.Philox(key=number).random_raw(MOST_TARGETS // len(contents))
        words = draws % np.uint64(len(content) - reach - 1)
        chosen = np.unique(reach + 1 + words.astype(np.int64))
        places.append(chosen + sum(map(len, tokens)))
        documents.append(np.full(len(chosen), number))
        tokens.append(content)
    return Targets(np.concatenate(tokens), np.concatenate(places), np.concatenate(documents))


def cached_ngram(train: Ints, tune: Targets, held: Targets, vocab: int, windows: Sequence[int]) -> Floats:
    """The loss in nats of each target of `held` with each window, `[windows, n]`.

    Contexts are counted in the tokens `train` `[t]`, and weights are fitted to `tune`. Token ids are below `vocab`.
    """
    fitted, offset = len(tune.places), len(tune.tokens)
    tokens, places = np.append(tune.tokens, held.tokens), np.append(tune.places, offset + held.places)

    def mix(p: Floats, seen: Ints, followed: Ints, cells: Ints) -> Floats:
        q = followed / np.maximum(seen, 1)
        w = _fitted(p[:fitted], q[:fitted], cells[:fitted])[cells]
        return (1 - w) * p + w * q

    p, known, by_order = np.full(len(places), 1 / vocab), np.zeros(len(places), np.int64), list[Floats]()
    counted = np.append(train, tokens)
    contexts = _Occurrences(counted, 0)
    for order in range(TRAINING_ORDER + 1):
        begins, stop = len(train) + places - order, max(0, len(train) - order)
        with_follower = _Occurrences(counted, order + 1)
        first, last = contexts.between(begins, 0, stop)
        pairs = np.append(0, np.cumsum(with_follower.new[contexts.places]))  # different ones of context and follower
        seen, different = last - first, pairs[last] - pairs[first]
        p = mix(p, seen, with_follower.count(begins, 0, stop), CLASSES * _class(seen) + _class(different))
        known[seen > 0] = order
        by_order.append(p)
        contexts = with_follower
    by_window = [by_order[min(window, TRAINING_ORDER)] for window in windows]  # of what the window shows
    for order in CACHE_ORDERS:
        contexts, with_follower = _Occurrences(tokens, order), _Occurrences(tokens, order + 1)
        begins = places - order
        for n, window in enumerate(windows):
            start = np.minimum(places - window, begins)
            seen = contexts.count(begins, start, begins)
            cells = CLASSES * _class(seen) + np.minimum(known, window)
            by_window[n] = mix(by_window[n], seen, with_follower.count(begins, start, begins), cells)
    return -np.log([each[fitted:] for each in by_window])


class _Occurrences:
    """Where the n-grams of `size` tokens begin in a text `[n]`."""

    def __init__(self, tokens: Ints, size: int) -> None:
        numbers = gram_numbers(tokens, size)
        self.places = np.argsort(numbers, kind="stable")  # equal n-grams after each other, in the order of the text
        ascending = numbers[self.places]
        changes = np.append(True, ascending[1:] != ascending[:-1])
        self.new = np.zeros(len(tokens) + 1, bool)  # whether the n-gram that begins here is the first of its kind
        self.new[self.places[changes]] = True
        self.kind = np.empty_like(numbers)
        self.kind[self.places] = np.cumsum(changes) * len(self.new)
        self.keys = self.kind[self.places] + self.places  # ascending

    def between(self, begins: Ints, start: Ints | int, stop: Ints | int) -> tuple[Ints, Ints]:
        """Which of `places` lie in [start, stop), of the n-gram that begins at each of `begins`: first and last + 1."""
        kind = self.kind[begins]
        order = np.argsort(kind)  # close ones are searched for after each other, which is several times as fast
        first, last = np.empty_like(kind), np.empty_like(kind)
        first[order] = np.searchsorted(self.keys, (kind + start)[order])
        last[order] = np.searchsorted(self.keys, (kind + stop)[order])
        return first, last

    def count(self, begins: Ints, start: Ints | int, stop: Ints | int) -> Ints:
        """How many of `places` these are."""
        first, last = self.between(begins, start, stop)
        return last - first


def _class(counts: Ints) -> Ints:
    """The class of each count: 0, 1, 2, 3 to 4, 5 to 8, ..., 65 or more."""
    classes = np.ceil(np.log2(np.maximum(counts, 0.5))) + 1
    return np.minimum(classes, CLASSES - 1).astype(np.int64)


def _fitted(p: Floats, q: Floats, cells: Ints) -> Floats:
    """The weight of q in (1 - w) p + w q for each of the cells that targets `[n]` are in, which makes them likeliest.

    Cells with few targets are drawn to 0, as if two more targets had nothing of q.
    """
    weights, counts = np.full(CLASSES**2, 0.5), np.bincount(cells, minlength=CLASSES**2)
    for _ in range(STEPS):
        w = weights[cells]
        share = w * q / ((1 - w) * p + w * q)
        weights = np.bincount(cells, share, minlength=CLASSES**2) / (counts + 2)
    return weights
