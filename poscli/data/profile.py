"""The distance profile p(d) of a text: of all tokens that could be copied, how far back is what they would copy?

A token can be copied if the last earlier occurrence of the n tokens before it, in its document and without overlap, was
followed by the same token. Its distance d is the number of tokens back to that one. All tokens have 16 L tokens of
their document before them, and distances are from L/8 to 16 L, so that every distance can be seen at every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from poscli.data.corpus import Corpus, Split
from poscli.statistics import FEWEST_DOCUMENTS
from poscli.statistics.intervals import ratio_interval

MOST_DOCUMENTS, MOST_TOKENS = 64, 16_384  # documents that are read, and tokens of each, after the longest window
STEEPEST = 8.0  # exponents are looked for between -8 and 8
HALVINGS = 50


def far_documents(split: Split, reach: int) -> list[NDArray[np.int64]]:
    """The tokens of up to 64 documents of more than `reach` tokens, in the order of their hashes.

    Each is cut `reach` + 16,384 tokens after its beginning.
    """
    chosen = np.flatnonzero(np.diff(split.starts) > reach + 1)[:MOST_DOCUMENTS]
    ends = np.minimum(split.starts[chosen + 1], split.starts[chosen] + reach + 1 + MOST_TOKENS)
    bounds = zip(split.starts[chosen], ends, strict=True)
    return [np.asarray(split.tokens[first:stop], np.int64) for first, stop in bounds]


@dataclass(frozen=True)
class DistanceProfile:
    """How far back tokens could be copied from, by octave of the distance."""

    ngram: int
    tokens: int  # that were looked at
    documents: int  # that they are from
    octaves: tuple[tuple[int, int], ...]  # first and last distance in tokens
    counts: tuple[int, ...]  # tokens that could be copied, by octave
    density: tuple[float, ...]  # p(d) in each octave: of these tokens, the share per token of distance
    exponent: tuple[float, ...]  # p(d) falls as d ** -exponent, with the ends of its 95 % interval


def distance_profile(corpus: Corpus, windows: Sequence[int]) -> DistanceProfile:
    """The profile of held-out documents (`far_documents`), whose octaves lie between the lengths `windows`, ascending.

    n is 6 for bytes, and 3 for tokens of two bytes and more. The exponent is the likeliest one of a power law between
    the first and the last length. Its interval is over the documents in which a token could be copied, and NaN if they
    are fewer than five; all three are NaN if no token could be copied.
    """
    low, high, split = windows[0], windows[-1], corpus.valid
    ngram = max(3, round(6 * len(split.tokens) / max(1, split.bytes)))
    distances, tokens = [np.empty(0, np.int64)], 0
    for content in far_documents(split, high):
        targets = np.arange(high + 1, len(content))
        begins = targets - ngram
        earlier = last_apart(last_equal(gram_numbers(content, ngram)), begins, ngram)
        back = np.where(earlier >= 0, begins - earlier, 0)
        same = (back > 0) & (content[targets - back] == content[targets])
        distances.append(back[same & (back >= low) & (back < high)])
        tokens += len(targets)
    counts = np.histogram(np.concatenate(distances), windows)[0]
    logs, found = np.array([(np.log(each).sum(), len(each)) for each in distances]).T
    exponent: tuple[float, ...] = (np.nan,) * 3
    if counts.any():
        enough = np.count_nonzero(found) >= FEWEST_DOCUMENTS
        steep, flat = ratio_interval(logs, found) if enough else (np.nan, np.nan)  # far copies make a flat law
        exponent = tuple(_exponent(mean, low, high) for mean in (logs.sum() / found.sum(), flat, steep))
    octaves = tuple((first, stop - 1) for first, stop in pairwise(windows))
    density = counts / np.diff(windows) / max(1, counts.sum())
    return DistanceProfile(
        ngram, tokens, len(distances) - 1, octaves, tuple(counts.tolist()), tuple(density.tolist()), exponent
    )


def _exponent(mean: float, low: int, high: int) -> float:
    """The exponent a with which distances have this mean of ln d under p(d) ~ d^-a, low <= d < high.

    It is the likeliest one (Clauset, Shalizi and Newman 2009, for a law with an upper end).
    """
    if not np.isfinite(mean):
        return np.nan
    logs = np.log(np.arange(low, high))
    least, most = -STEEPEST, STEEPEST
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        weights = np.exp(-middle * (logs - logs[0]) - max(0, -middle * (logs[-1] - logs[0])))
        if (weights * logs).sum() / weights.sum() > mean:
            least = middle
        else:
            most = middle
    return (least + most) / 2


def gram_numbers(tokens: NDArray[np.int64], ngram: int) -> NDArray[np.int64]:
    """A number for the n-gram that begins at each token; two numbers are equal if and only if the n-grams are."""
    count = max(0, len(tokens) - ngram + 1)
    numbers, kinds, vocab = np.zeros(count, np.int64), 1, int(tokens.max()) + 1
    for n in range(ngram):
        if kinds * vocab > np.iinfo(np.int64).max:  # number the shorter n-grams anew, without gaps
            numbers = np.unique(numbers, return_inverse=True)[1]
            kinds = count
        numbers, kinds = numbers * vocab + tokens[n : n + count], kinds * vocab
    return numbers


def last_equal(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The index of the last earlier element that equals each element; -1 if there is none."""
    order = np.argsort(numbers, kind="stable")
    equal = numbers[order[1:]] == numbers[order[:-1]]
    last = np.full(len(numbers), -1)
    last[order[1:][equal]] = order[:-1][equal]
    return last


def last_apart(last: NDArray[np.int64], begins: NDArray[np.int64], ngram: int) -> NDArray[np.int64]:
    """Where the last earlier occurrence of the n-grams that begin at `begins` begins, if they do not overlap; else -1.

    `last` is the last occurrence of every n-gram, which may overlap it: `aaaa` occurs in `aaaaa` twice.
    """
    # An n-gram that would begin before the document is looked up as the first one, which has no earlier occurrence.
    earlier = last[np.maximum(begins, 0)] if len(last) else np.full_like(begins, -1)
    for _ in range(ngram - 1):  # each step goes back by at least one token
        overlaps = (earlier >= 0) & (begins - earlier < ngram)
        if not overlaps.any():
            break
        earlier = np.where(overlaps, last[earlier], earlier)
    return earlier
