"""Texts whose order counts: their limits against enumeration of documents, orders and trees, and against samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus_places import written
from scipy.special import gammaln
from toys import first

from poscli.data import load_corpus
from poscli.data.corpora import bayes, periods_of
from poscli.data.corpora.bayes import parse_process
from poscli.data.known_limit import Draw
from poscli.data.known_limit.overwrite import Overwrite
from poscli.data.known_limit.period import Period
from poscli.data.known_limit.tree import Tree
from poscli.data.tokenizers.bytes import END

FIRST = 33
Symbols = tuple[int, ...]


def tokens_of(symbols: Symbols) -> list[int]:
    return [FIRST + symbol for symbol in symbols]


def shares_of_windows(documents: dict[Symbols, float], start: int) -> dict[Symbols, list[float]]:
    """The probability of each token of the windows that show documents from `start` on, given those before it."""
    joint: Counter[Symbols] = Counter()
    for document, p in documents.items():
        for last in range(start + 1, len(document) + 1):
            joint[document[start:last]] += p
    windows = {document[start:] for document, p in documents.items() if p > 0}
    return {w: [joint[w[: n + 1]] / joint[w[:n]] for n in range(1, len(w))] for w in windows}


def blind_shares(
    documents: dict[Symbols, float], start: int, view: Callable[[Symbols], Any]
) -> Iterator[tuple[Symbols, int, float, float]]:
    """For windows and targets n: the window's probability, and that of the target for a reader who sees only a view."""
    joint: Counter[Any] = Counter()
    windows: Counter[Symbols] = Counter()
    for document, p in documents.items():
        windows[document[start:]] += p
        for last in range(start + 1, len(document)):
            seen = (last, view(document[start:last]))
            joint[seen] += p
            joint[seen, document[last]] += p
    for window, p in windows.items():
        for n in range(1, len(window)):
            seen = (start + n, view(window[:n]))
            yield window, n, p, joint[seen, window[n]] / joint[seen]


# --- overwrite


def pairs_of(size: int, values: int, rate: float, count: int) -> dict[Symbols, float]:
    """All documents of `count` pairs, with the probability of each, by the process itself."""
    documents = {}
    for cues in product(range(size), repeat=count):
        for shown in product(range(values), repeat=count):
            p, latest = float(size) ** -count, dict[int, int]()
            for cue, value in zip(cues, shown, strict=True):
                redrawn = 1 / values
                p *= (1 - rate) * (latest[cue] == value) + rate * redrawn if cue in latest else redrawn
                latest[cue] = value
            text = tuple(symbol for cue, value in zip(cues, shown, strict=True) for symbol in (cue, size + value))
            documents[text] = p
    return documents


@pytest.mark.parametrize(("cues", "values", "count"), [(2, 2, 5), (3, 2, 4), (2, 3, 4)])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7, 1.0])
def test_the_optimum_of_overwrite_is_the_posterior_wherever_a_window_begins(
    cues: int, values: int, count: int, rate: float
) -> None:
    documents = pairs_of(cues, values, rate, count)
    source = Overwrite(cues=cues, values=values, rate=rate)
    for start in range(5):
        shares = shares_of_windows(documents, start)
        expected = -np.log(np.array(list(shares.values())))
        assert source.optimum(np.array([tokens_of(w) for w in shares])) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
@pytest.mark.parametrize(("values", "rate"), [(2, 0.2), (2, 0.9), (3, 0.2)])
def test_the_blind_limit_of_overwrite_is_the_posterior_given_the_pairs_in_any_order(
    values: int, rate: float, start: int
) -> None:
    documents = pairs_of(2, values, rate, 5 if values == 2 else 4)

    def bag(window: Symbols) -> Any:
        shown = window[start % 2 :]  # without a value whose cue lies before the window
        whole = len(shown) // 2 * 2
        return tuple(sorted(zip(shown[:whole:2], shown[1:whole:2], strict=True))), shown[whole:]

    windows = list(dict.fromkeys(document[start:] for document in documents))
    limits = Overwrite(cues=2, values=values, rate=rate).blind(np.array([tokens_of(window) for window in windows]))
    rows = dict(zip(windows, limits.tolist(), strict=True))
    for window, n, _, share in blind_shares(documents, start, bag):
        assert rows[window][n - 1] == pytest.approx(-math.log(share), rel=1e-9)


def latest_by_sums(counts: Symbols, rate: Fraction) -> list[float]:
    """Which value was the latest, summed in rational numbers over the numbers of runs of each value."""
    shares = []
    for last, shown in enumerate(counts):
        orders = [Fraction(1)]  # by the number of runs: orders of the runs, divided by its factorial
        for x, n in enumerate(counts):
            runs = [
                Fraction(math.comb(n - 1, j - 1) * (j if x == last else 1), math.factorial(j)) for j in range(1, n + 1)
            ]
            factor = [Fraction(0), *runs] if n else [Fraction(1)]
            product_of = [Fraction(0)] * (len(orders) + len(factor) - 1)
            for a, left in enumerate(orders):
                for b, right in enumerate(factor):
                    product_of[a + b] += left * right
            orders = product_of
        ratio = rate / (len(counts) * (1 - rate))
        weights = (ratio**j * math.factorial(j - 1) * each for j, each in enumerate(orders) if j)
        shares.append(sum(weights, Fraction(0)) if shown else Fraction(0))
    return [float(share / sum(shares)) for share in shares]


@pytest.mark.parametrize("rate", [Fraction(1, 1000), Fraction(1, 5), Fraction(9, 10)])
@pytest.mark.parametrize("counts", [(1, 0, 0), (2, 2, 0), (7, 3, 1), (90, 31, 4)])
def test_the_integral_over_runs_equals_the_sum(counts: Symbols, rate: Fraction) -> None:
    source = Overwrite(values=3, rate=float(rate))
    assert source.latest(np.array([counts]))[0].tolist() == pytest.approx(latest_by_sums(counts, rate), rel=1e-9)


def test_the_integral_is_exact_for_as_many_uses_as_the_longest_window_shows() -> None:
    """Of two equal counts each value is the latest alike, and a rate of 1 leaves the counts alone."""
    source = Overwrite(cues=2, values=2, rate=0.2)
    assert source.latest(np.array([[1000, 1000], [0, 0], [5, 0]])).tolist() == [
        pytest.approx([0.5, 0.5]),
        [0.5, 0.5],
        [1.0, 0.0],
    ]
    assert Overwrite(values=2, rate=1.0).latest(np.array([[600, 200]]))[0].tolist() == pytest.approx([0.75, 0.25])


# --- period


def periodic(low: int, high: int, noise: float, symbols: int, count: int) -> tuple[dict[Symbols, float], ...]:
    """The joint probability of a period and each document of `count` tokens: a dictionary for each period."""
    total = sum(1 / period for period in range(low, high + 1))
    joints = []
    for period in range(low, high + 1):
        joint = {}
        for text in product(range(symbols), repeat=count):
            p = 1 / period / total
            for t, symbol in enumerate(text):
                fresh = 1 / symbols
                p *= (1 - noise) * (symbol == text[t - period]) + noise * fresh if t >= period else fresh
            joint[text] = p
        joints.append(joint)
    return tuple(joints)


@pytest.mark.parametrize(
    ("low", "high", "noise", "symbols", "count"), [(2, 4, 0.1, 2, 9), (2, 3, 0.0, 2, 8), (3, 3, 0.6, 3, 6)]
)
def test_the_optimum_of_period_is_the_posterior_wherever_a_window_begins(
    low: int, high: int, noise: float, symbols: int, count: int
) -> None:
    joints = periodic(low, high, noise, symbols, count)
    documents = {text: sum(joint[text] for joint in joints) for text in joints[0]}
    source = Period(low=low, high=high, noise=noise, symbols=symbols)
    for start in range(4):
        shares = shares_of_windows(documents, start)
        expected = -np.log(np.array(list(shares.values())))
        windows = np.array([tokens_of(w) for w in shares])
        assert source.optimum(windows) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        opened = np.insert(windows, 0, END, axis=1)
        assert source.optimum(opened)[:, 1:] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("low", "high", "noise", "symbols", "count"), [(2, 4, 0.1, 2, 9), (2, 3, 0.3, 3, 7)])
def test_no_position_blind_reader_of_period_is_better_than_its_bound(
    low: int, high: int, noise: float, symbols: int, count: int
) -> None:
    """The bound, in expectation: the loss of a reader told the period and the bag of the chains that are due."""
    joints = periodic(low, high, noise, symbols, count)
    documents = {text: sum(joint[text] for joint in joints) for text in joints[0]}
    source = Period(low=low, high=high, noise=noise, symbols=symbols)
    limits = source.blind(np.array([tokens_of(text) for text in documents]))
    weights = np.array(list(documents.values()))
    bound = weights @ limits

    told = np.zeros(count - 1)
    for period, joint in zip(range(low, high + 1), joints, strict=True):

        def due(seen: Symbols, period: int = period) -> Any:
            if len(seen) < period:
                return ()
            done = len(seen) // period * period  # the last whole period, of which its rest is still to be repeated
            return tuple(sorted(seen[len(seen) - period : done - (len(seen) == done)]))

        for _, n, p, share in blind_shares(joint, 0, due):
            told[n - 1] -= p * math.log(share)
    assert bound == pytest.approx(told, rel=1e-9)

    blind, optimum = np.zeros(count - 1), weights @ source.optimum(np.array([tokens_of(text) for text in documents]))
    for _, n, p, share in blind_shares(documents, 0, lambda seen: (tuple(sorted(seen)), seen[-1])):
        blind[n - 1] -= p * math.log(share)
    assert (bound <= blind + 1e-12).all()
    assert (optimum <= blind + 1e-12).all()
    assert blind[-1] > optimum[-1] + 0.01


def test_documents_of_period_repeat_themselves_after_their_period() -> None:
    source = Period(noise=0.1, symbols=8)
    octaves = Counter[int]()
    for number in range(200):
        period = source.period(Draw("test", number))
        octaves[int(math.log2(period))] += 1
        if number < 10:
            text = np.frombuffer(source.document(Draw("test", number)), np.uint8)
            repeated = (text[period:] == text[:-period]).mean()
            assert repeated == pytest.approx(0.9 + 0.1 / 8, abs=0.02)
            assert text.min() == FIRST
            assert text.max() == FIRST + 7
    assert set(octaves) <= {3, 4, 5, 6, 7, 8, 9}
    assert all(15 < octaves[octave] < 55 for octave in range(3, 9))  # of 33 expected


def test_the_periods_of_held_out_documents_are_known_in_their_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path))
    monkeypatch.setattr(bayes, "TRAINING_DOCUMENTS", 2)
    monkeypatch.setattr(bayes, "HELD_OUT_DOCUMENTS", 5)
    corpus = load_corpus("bayes:period(noise=0.05)")
    periods = periods_of("bayes:period(noise=0.05)")
    assert periods
    documents = np.array_split(corpus.valid.tokens, 5)
    for period, document in zip(periods, documents, strict=True):
        assert (document[1 + period :] == document[1:-period]).mean() == pytest.approx(0.95 + 0.05 / 8, abs=0.02)
    assert len(set(periods)) > 1
    assert periods_of("bayes:tree") is None
    assert periods_of("stdlib") is None


@pytest.mark.parametrize("corpus", ["bayes:coin(heads=0.5)", "bayes:period(no=1)", "elsewhere:x"])
def test_a_report_on_a_corpus_whose_plugin_is_gone_goes_without_periods(corpus: str) -> None:
    assert periods_of(corpus) is None


# --- tree


Branches = Any  # None for a leaf, else the subtree of each earlier symbol


def every_tree(depth: int, symbols: int) -> list[tuple[float, Branches]]:
    """Every tree of contexts with its prior probability."""
    if depth == 0:
        return [(1.0, None)]
    below = every_tree(depth - 1, symbols)
    split = [
        (0.5 * math.prod(p for p, _ in children), tuple(tree for _, tree in children))
        for children in product(below, repeat=symbols)
    ]
    return [(0.5, None), *split]


def by_tree(tree: Branches, text: Symbols, first: int, symbols: int, alpha: float) -> float:
    """The probability of a text from `first` on, given what stands before, the leaves integrated out."""
    counts: dict[Symbols, Counter[int]] = {}
    for t in range(first, len(text)):
        node, context = tree, t
        while node is not None:
            context -= 1
            node = node[text[context]]
        counts.setdefault(text[context:t], Counter())[text[t]] += 1
    log = 0.0
    for of_leaf in counts.values():
        log += gammaln(symbols * alpha) - gammaln(symbols * alpha + of_leaf.total())
        log += sum(gammaln(alpha + n) - gammaln(alpha) for n in of_leaf.values())
    return math.exp(log)


@pytest.mark.parametrize(
    ("depth", "symbols", "alpha", "count"),
    [(1, 2, 0.5, 8), (2, 2, 0.5, 8), (2, 2, 0.1, 7), (3, 2, 0.5, 6), (1, 3, 2.0, 5)],
)
def test_the_optimum_of_tree_is_the_mixture_of_all_trees(depth: int, symbols: int, alpha: float, count: int) -> None:
    trees = every_tree(depth, symbols)
    assert sum(p for p, _ in trees) == pytest.approx(1)
    source = Tree(depth=depth, symbols=symbols, alpha=alpha)
    before = (0,) * depth

    def probability(text: Symbols) -> float:
        return sum(p * by_tree(tree, text, depth, symbols, alpha) for p, tree in trees)

    joint = {text: probability(before + text) for n in range(count + 1) for text in product(range(symbols), repeat=n)}
    texts = [text for text in joint if len(text) == count]
    expected = -np.log([[joint[text[: n + 1]] / joint[text[:n]] for n in range(count)] for text in texts])
    opened = np.array([[END, *tokens_of(text)] for text in texts])
    assert source.optimum(opened) == pytest.approx(expected, rel=1e-9)

    inside = source.optimum(np.array([tokens_of(before + text) for text in texts]))
    assert inside[:, depth - 1 :] == pytest.approx(expected, rel=1e-9)
    assert inside[:, : depth - 1] == pytest.approx(math.log(symbols))


@pytest.mark.parametrize(
    ("depth", "symbols", "alpha", "count", "start"), [(1, 2, 0.5, 13, 5), (2, 2, 0.3, 13, 5), (1, 3, 0.5, 8, 3)]
)
def test_windows_inside_a_document_of_tree_lose_no_more_than_their_first_symbols_can_tell(
    depth: int, symbols: int, alpha: float, count: int, start: int
) -> None:
    """The posterior given all documents that have the window is better, by a sum over the window that is bounded."""
    before, trees = (0,) * depth, every_tree(depth, symbols)
    documents = {
        text: sum(p * by_tree(tree, before + text, depth, symbols, alpha) for p, tree in trees)
        for text in product(range(symbols), repeat=count)
    }
    shares = shares_of_windows(documents, start)
    weights: Counter[Symbols] = Counter()
    for text, p in documents.items():
        weights[text[start:]] += p
    source = Tree(depth=depth, symbols=symbols, alpha=alpha)
    worse = source.optimum(np.array([tokens_of(w) for w in shares])) + np.log(np.array(list(shares.values())))
    mean = np.array([weights[w] for w in shares]) @ worse
    assert (mean >= -1e-12).all()
    assert mean.sum() <= depth * math.log(symbols)
    assert mean[-1] < mean[depth:].max()


# --- samples


SPECS = [
    "overwrite",
    "overwrite(cues=2, values=5, rate=0.4)",
    "period",
    "period(low=4, high=20, noise=0.3, symbols=3)",
    "tree",
    "tree(depth=4, symbols=2, alpha=0.2)",
]


@pytest.mark.parametrize(
    ("spec", "length"),
    first(6, [*zip(SPECS, (61, 20, 61, 20, 61, 20), strict=True), *zip(SPECS, (20, 61, 20, 61, 20, 61), strict=True)]),
)
def test_the_loss_of_the_optimum_on_samples_is_the_entropy_of_its_predictions(spec: str, length: int) -> None:
    """Its probabilities sum to one, and a prediction that is too sure or not sure enough would show in the mean."""
    source = parse_process(spec)[1]
    documents = written(source, 50)
    differences = []
    for last in range(3000, 15000, 2999):  # cues have odd places, answers and values even ones
        windows, symbols = documents[:, last - length : last + 1], np.unique(documents[:, 2 - last % 2 :: 2])
        every = np.repeat(windows, len(symbols), axis=0)
        every[:, -1] = np.tile(symbols, len(windows))
        losses = source.optimum(every)[:, -1].reshape(len(windows), -1)
        shares = np.exp(-losses)
        assert shares.sum(axis=1) == pytest.approx(1)
        entropy = (shares * np.where(shares > 0, losses, 0)).sum(axis=1)
        differences.append(source.optimum(windows)[:, -1] - entropy)
    mean, spread = np.mean(differences, axis=0).mean(), np.mean(differences, axis=0).std(ddof=1)
    assert abs(mean) <= 4 * spread / math.sqrt(len(documents))
    assert spread > 0


@pytest.mark.parametrize(
    ("spec", "others"),
    [
        ("overwrite", ["overwrite(rate=0.1)", "overwrite(rate=0.4)"]),
        ("period", ["period(noise=0.2)", "period(low=64)", "period(high=64)"]),
        ("tree", ["tree(depth=2)", "tree(alpha=0.1)"]),
    ],
)
def test_predictors_that_know_another_process_and_blind_readers_are_worse(spec: str, others: list[str]) -> None:
    source = parse_process(spec)[1]
    windows = written(source, 40)[:, 4000:4301]
    best = source.optimum(windows)[:, 200:].mean(axis=1)
    losses = [parse_process(other)[1].optimum(windows)[:, 200:].mean(axis=1) for other in others]
    if spec != "tree":  # whose blind limit is not known
        losses.append(source.blind(windows)[:, 200:].mean(axis=1))
    for loss in losses:
        worse = loss - best
        assert worse.mean() > 3 * worse.std(ddof=1) / math.sqrt(len(worse))
