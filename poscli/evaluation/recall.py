"""Recall by distance: does a model use an earlier occurrence of what it has just read, and how far back?

A token's n-gram are the n tokens before it. If the n-gram occurred before, the token that followed it there suggests
what comes now. The token is a `hit` if it is that token again, so that it could be copied, and a `miss` if it is
another one, so that copying would mislead. It is `new` if the window shows no earlier occurrence. Where the loss of
distant hits is lower with the whole window than with the window cut to L, the model recalls text that it saw more than
L tokens ago.

In `abcd x abcd x abcd y`, with n = 4, the second x is a hit at distance 5, and y is a miss at distance 5.

Everything is computed from losses that an evaluation has stored; no model is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.data.profile import gram_numbers, last_apart, last_equal
from poscli.statistics.intervals import mean_interval
from poscli.tasks import Spans, Text

HIT, MISS, NEW = "hit", "miss", "new"


@dataclass(frozen=True, eq=False)
class Recurrences:
    """The last earlier occurrence of every scored token's n-gram; all arrays are `[n, scored]`."""

    distance: NDArray[np.int64]  # tokens back to that occurrence; 0 where the window shows none
    same: NDArray[np.bool_]  # whether the scored token followed there too

    def of_kind(self, kind: str) -> NDArray[np.bool_]:
        """Which tokens are hits, misses or new."""
        occurred = self.distance > 0
        return {HIT: occurred & self.same, MISS: occurred & ~self.same, NEW: ~occurred}[kind]


def recall_by_distance(
    text: Text,
    spans: Spans,
    scored: int,
    full: NDArray[np.float64],
    crop: NDArray[np.float64],
    *,
    ngram: int,
    train_length: int,
    longest: int,
) -> list[dict[str, Any]]:
    """Loss of hits and misses by octave of the distance, from L/4 to the longest window, and of new tokens.

    `full` and `crop` are the nats `[n, scored]` of the last `scored` targets of the windows `spans`, read with windows
    of `longest` and of `train_length` tokens. Targets that do not count are left out. Hits and misses nearer than L/4
    have no row. A bin without tokens has a row without numbers.
    """
    earlier, counts = recurrences(text, spans, scored, ngram, longest), text.counts(spans, scored)
    documents = np.broadcast_to(spans[:, :1], counts.shape)

    def row(kind: str, first: int, last: int) -> dict[str, Any]:
        chosen = counts & earlier.of_kind(kind) & (earlier.distance >= first) & (earlier.distance <= last)
        bounds = {"ngram": ngram, "kind": kind, "from": first, "to": last}
        return bounds | gain_numbers(full[chosen], crop[chosen], documents[chosen])

    bins = octaves(train_length, longest)
    return [row(kind, *bounds) for kind in (HIT, MISS) for bounds in bins] + [row(NEW, 0, 0)]


def octaves(train_length: int, longest: int) -> list[tuple[int, int]]:
    """Distances L/4 to L/2 - 1, L/2 to L - 1 and so on up to `longest`, as (first, last), both inclusive.

    >>> octaves(256, 1024)
    [(64, 127), (128, 255), (256, 511), (512, 1023)]
    """
    edges = [-(-train_length // 4)]  # L/4 rounded up: the first whole distance in the bin
    while edges[-1] < longest:
        edges.append(-(-(train_length << len(edges)) // 4))
    return [(first, min(stop, longest) - 1) for first, stop in pairwise(edges)]


def recurrences(text: Text, spans: Spans, scored: int, ngram: int, longest: int) -> Recurrences:
    """The last earlier occurrence of the n-gram before each scored target, within the document and the window.

    An occurrence counts if it ends before the n-gram begins, lies in the same document, and is shown whole by the
    window of `longest` tokens. The first tokens of a document, which have no n-gram before them, are new.
    """
    targets = spans[:, 1:] + np.arange(1 - scored, 1)  # numbers in the document, whose first token has number 0
    distance, same = np.zeros_like(targets), np.zeros(targets.shape, dtype=bool)
    for document in np.unique(spans[:, 0]):
        tokens = np.asarray(text.split.tokens[slice(*text.split.starts[document : document + 2])], dtype=np.int64)
        rows = spans[:, 0] == document
        begins = targets[rows] - ngram  # where the n-gram before each target begins
        earlier = last_apart(last_equal(gram_numbers(tokens, ngram)), begins, ngram)
        shown = earlier >= np.maximum(0, spans[rows, 1:] - longest)
        distance[rows] = np.where(shown, begins - earlier, 0)
        same[rows] = shown & (tokens[targets[rows] - distance[rows]] == tokens[targets[rows]])
    return Recurrences(distance, same)


def gain_numbers(
    full: NDArray[np.float64], crop: NDArray[np.float64], documents: NDArray[np.int64], *, fewest: int = 1
) -> dict[str, Any]:
    """What the text beyond L is worth to some tokens, from their losses `[n]` with the whole window and cropped to L.

    `documents` `[n]` says where each token comes from. The keys are `tokens`, the number n, and those of GAIN_COLUMNS
    in poscli/runs/schema.py; with fewer than `fewest` tokens, there are only the numbers of tokens and of documents.
    """
    counts = {"tokens": len(full), "documents": len(np.unique(documents))}
    if len(full) < fewest:
        return counts
    low, high = mean_interval(crop - full, documents)
    means = {"nll": float(full.mean()), "nll_crop": float(crop.mean()), "gain": float((crop - full).mean())}
    return counts | means | {"gain_low": low, "gain_high": high}
