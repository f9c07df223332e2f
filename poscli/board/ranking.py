"""Who is shown to be better than whom, over documents and seeds, and the ranks that this leaves open.

Every encoding has one number, a weighted sum of its losses on the documents of several texts, mean over seeds. The
texts are fixed: documents are drawn within each, and seeds are drawn for all encodings alike, which have equal seeds.
The variance of a difference of two encodings is that of crossed.py: what other documents would change for all seeds
alike, and what other seeds would change.

Two to ten seeds say little about their spread. The spread of a pair is therefore drawn towards that of encodings with
similar numbers, as far as the spreads of all encodings are alike: an empirical Bayes estimate of variances (Smyth,
2004, doi:10.2202/1544-6115.1027), with as many degrees of freedom as it is worth. Fewer than FEWEST encodings do not
say how far theirs are apart, and each pair has its own. All pairs are tested at once, with Holm's correction. An
encoding's rank is then at least one more than the number of those that are shown to be better, and at most the number
of encodings less those that are shown to be worse: with a probability of 95 %, all of these intervals hold at the same
time (as Mogstad, Romano, Shaikh and Wilhelm, 2024, doi:10.1093/restud/rdad006, read tests of pairs). The top group are
those whose interval begins at 1.

A table is looked at when it has 3, 5 and 10 seeds, and each look spends a part of the 5 %. With two seeds nobody is
ranked: one difference says next to nothing about a spread.

Shapes: E encodings, S seeds, D documents of all texts.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass

import numpy as np
import scipy  # whose parts are loaded when they are used
from numpy.typing import NDArray

from poscli.statistics import UPPER
from poscli.statistics.comparison import SIGNIFICANT
from poscli.statistics.intervals import holm

Array = NDArray[np.float64]
# The part of SIGNIFICANT that is spent at each number of seeds: most of it where most tables will be read.
SPENT = {3: 0.5, 5: 0.3, 10: 0.2}
NEIGHBOURS = 15  # encodings with similar numbers, whose spreads are averaged
FEWEST = 6  # encodings that say how far their spreads are apart
MOST_DEGREES = 100.0  # of freedom that neighbours are worth


class NumbersOfEncodings:
    """The numbers of E encodings, with what other documents and other seeds would change of them.

    `estimates` `[E]`. `means` `[E, D]` are what documents change, mean over seeds. `documents` and `seeds` `[E, E]` are
    covariances of the estimates, and `interaction` is what the spread of seeds adds to that of documents.
    """

    def __init__(self, values: Array, shares: Array, texts: NDArray[np.int64]) -> None:
        """`values` `[E, S, D]` are what each document adds to the number of an encoding, for each seed.

        `texts` `[D]` says which text a document is of, and `shares` `[D]` which part of that text it is, so that they
        add up to 1 within each.
        """
        _, self.seeds_count, _ = values.shape
        self.has_others = len(values) > 2
        self.estimates = values.sum(axis=2).mean(axis=1)
        of_text = np.zeros((int(texts.max()) + 1, len(texts)))
        of_text[texts, np.arange(len(texts))] = 1.0
        sizes = of_text.sum(axis=1)
        weights = np.sqrt(sizes / np.maximum(sizes - 1, 1))[texts]  # documents of a text lose a degree to its mean
        # What is left of a document when its share of its text's sum is taken away.
        apart = (values - (values @ of_text.T)[:, :, texts] * shares) * weights
        self.means = means = apart.mean(axis=1)
        self.documents = means @ means.T
        totals = values.sum(axis=2)
        totals = totals - totals.mean(axis=1, keepdims=True)
        count = self.seeds_count
        if count > 1:
            within = (apart - means[:, None]).reshape(len(values), -1)
            self.interaction = within @ within.T / (count * (count - 1))
            self.seeds = totals @ totals.T / (count * (count - 1))
        else:
            self.interaction, self.seeds = np.zeros_like(self.documents), np.full_like(self.documents, math.nan)
        self.prior, self.prior_degrees = np.zeros(len(values)), 0.0
        if count > 1:
            self.prior, self.prior_degrees = _spread_of_neighbours(self.estimates, totals)

    def differences(self) -> tuple[Array, Array, Array]:
        """For every pair, `[E, E]`: the first minus the second, its standard error, and its degrees of freedom."""
        documents = np.maximum(_of_pairs(self.documents) - _of_pairs(self.interaction), 0.0)
        prior = (self.prior[:, None] + self.prior[None, :]) / self.seeds_count
        own = self.seeds_count - 1
        degrees = own + self.prior_degrees
        seeds = (own * np.maximum(_of_pairs(self.seeds), 0.0) + self.prior_degrees * prior) / degrees
        error = np.sqrt(documents + seeds)
        if not self.prior_degrees:
            # A spread that is small by chance would leave all to the documents, which have many degrees, so that of
            # others counts here, too. Two encodings have no others, and get the degrees of their seeds.
            seeds = np.maximum(seeds, prior)
            documents = documents if self.has_others else np.zeros_like(documents)
        welch = _welch((seeds, degrees), (documents, MOST_DEGREES))
        return self.estimates[:, None] - self.estimates[None, :], error, welch

    def apart(self) -> tuple[Array, Array]:
        """For every pair, `[E, E]`: the first minus the second, and how far the 95 % interval of that reaches."""
        difference, error, degrees = self.differences()
        return difference, scipy.special.stdtrit(degrees, UPPER) * error

    def first(self, count: int) -> NumbersOfEncodings:
        """The numbers of the first encodings alone, with what all of them say of spreads."""
        part, own = copy(self), slice(count)
        part.estimates, part.prior, part.means = self.estimates[own], self.prior[own], self.means[own]
        part.documents, part.interaction, part.seeds = (
            each[own, own] for each in (self.documents, self.interaction, self.seeds)
        )
        return part

    def reach(self) -> Array:
        """How far the 95 % interval of every number by itself reaches, `[E]`; NaN for a single seed."""
        if self.seeds_count < 2:
            return np.full(len(self.estimates), math.nan)
        documents = np.maximum(np.diag(self.documents) - np.diag(self.interaction), 0.0)
        own = self.seeds_count - 1
        degrees = own + self.prior_degrees
        seeds = (own * np.diag(self.seeds) + self.prior_degrees * self.prior / self.seeds_count) / degrees
        welch = _welch((seeds, degrees), (documents, MOST_DEGREES))
        return scipy.special.stdtrit(welch, UPPER) * np.sqrt(documents + seeds)

    def reach_from(self, others: NumbersOfEncodings) -> Array:
        """How far the 95 % interval of the difference between each number and the same row of `others` reaches, `[E]`.

        Both were scored on the same documents. Their seeds may differ in number: they count as drawn for each alone.
        """
        both = (self, others)
        documents = ((self.means - others.means) ** 2).sum(axis=1) - sum(np.diag(each.interaction) for each in both)
        documents = np.maximum(documents, 0.0)
        seeds = [(np.diag(each.seeds), each.seeds_count - 1.0) for each in both]
        error = np.sqrt(documents + sum(variance for variance, _ in seeds))
        return scipy.special.stdtrit(_welch(*seeds, (documents, MOST_DEGREES)), UPPER) * error


def _of_pairs(covariance: Array) -> Array:
    """The variance of the difference of every pair."""
    own = np.diag(covariance)
    return own[:, None] + own[None, :] - 2 * covariance


def _welch(*parts: tuple[Array, float]) -> Array:
    """The degrees of freedom of a sum of variances, each with its own degrees, after Welch and Satterthwaite."""
    whole, below = sum(variance for variance, _ in parts), sum(variance**2 / degrees for variance, degrees in parts)
    return np.divide(whole**2, below, out=np.full_like(whole, parts[0][1]), where=below > 0)


def _spread_of_neighbours(estimates: Array, totals: Array) -> tuple[Array, float]:
    """The variance over seeds that encodings with similar numbers have, `[E]`, and what it is worth in degrees.

    `totals` `[E, S]` are the numbers of every seed minus their mean. What a seed does to all encodings alike counts in
    no difference, and is taken away. The degrees follow from how far the variances of encodings are apart, beyond what
    so few seeds make of equal ones. They are at most what that many encodings of equal variance would have, and none
    where these are too few to tell.
    """
    count, degrees = len(totals), totals.shape[1] - 1
    if count < 2:
        return np.zeros(count), 0.0
    own = ((totals - np.median(totals, axis=0)) ** 2).sum(axis=1) / (degrees * (1 - 1 / count))
    own = np.maximum(own, 1e-6 * max(float(np.median(own)), 1e-300))
    order = np.argsort(estimates, kind="stable")
    smooth = np.empty_like(own)
    for place, at in enumerate(order):
        first = min(max(0, place - NEIGHBOURS // 2), max(0, count - NEIGHBOURS))
        smooth[at] = own[order[first : first + NEIGHBOURS]].mean()
    if count < FEWEST:
        return smooth, 0.0
    beyond = float(np.log(own / smooth).var(ddof=1)) - float(scipy.special.polygamma(1, degrees / 2))
    return smooth, min(_degrees_of_variance(beyond), (min(count, NEIGHBOURS) - 2.0) * degrees)


def _degrees_of_variance(variance: float) -> float:
    """The degrees of freedom of chi square whose logarithm has this variance, trigamma(degrees / 2); at most 100."""
    if variance <= float(scipy.special.polygamma(1, MOST_DEGREES / 2)):
        return MOST_DEGREES
    low, high = 1e-3, MOST_DEGREES
    for _ in range(60):
        middle = (low + high) / 2
        above = float(scipy.special.polygamma(1, middle / 2)) > variance
        low, high = (middle, high) if above else (low, middle)
    return low


@dataclass(frozen=True, eq=False)
class RankIntervals:
    """The ranks that encodings may have: `better[a, b]` says that encoding a is shown to be better than b."""

    better: NDArray[np.bool_]

    @property
    def first(self) -> NDArray[np.int64]:
        """The best rank that each encoding may have."""
        return 1 + self.better.sum(axis=0)

    @property
    def last(self) -> NDArray[np.int64]:
        """The worst rank that each encoding may have."""
        return len(self.better) - self.better.sum(axis=1)

    @property
    def top(self) -> NDArray[np.bool_]:
        """Which encodings are in the top group: no other one is shown to be better."""
        return self.first == 1


def rank(sample: NumbersOfEncodings) -> RankIntervals:
    """The ranks that a sample of 3, 5 or 10 seeds leaves open; small numbers are good."""
    difference, error, degrees = sample.differences()
    count = len(difference)
    upper = np.triu_indices(count, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(difference == 0, 0.0, np.abs(difference) / error)[upper]
    p = 2 * scipy.special.stdtr(degrees[upper], -t)
    corrected = np.ones((count, count))
    corrected[upper] = holm(p)
    corrected = np.minimum(corrected, corrected.T)
    better = (corrected <= SIGNIFICANT * SPENT[sample.seeds_count]) & (difference < 0)
    return RankIntervals(better)
