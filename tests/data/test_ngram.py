"""What a longer window is worth to an n-gram with a cache, and how far back a text repeats itself."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poscli.data import Corpus, load_corpus, ngram
from poscli.data.ngram import Targets, cached_ngram, window_gains
from poscli.data.profile import distance_profile
from poscli.system.errors import DataError

VOCAB, WINDOWS = 3, (4, 12)


def targets(seed: int, documents: int = 3) -> Targets:
    """The last ten tokens of random documents of tokens that repeat themselves."""
    draw = np.random.default_rng(seed)
    texts = [np.resize(draw.integers(0, VOCAB, 7), 30) ^ (draw.random(30) < 0.1) for _ in range(documents)]
    tokens = np.concatenate(texts) % VOCAB
    places = np.concatenate([30 * n + np.arange(20, 30) for n in range(documents)])
    return Targets(tokens, places, np.repeat(np.arange(documents), 10))


def class_of(count: int) -> int:
    return 0 if count == 0 else min(ngram.CLASSES - 1, math.ceil(math.log2(count)) + 1)


class Plain:
    """The predictor of the docstring of ngram.py, in plain Python."""

    def __init__(self, train: Sequence[int], tuning: Targets, orders: Sequence[int]) -> None:
        self.orders = orders
        self.train: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for at, token in enumerate(train):
            for order in range(min(at, ngram.TRAINING_ORDER) + 1):
                self.train[tuple(train[at - order : at])][token] += 1
        self.weights: dict[tuple[object, ...], float] = {}
        self.nats(tuning, fit=True)

    def nats(self, data: Targets, fit: bool = False) -> list[list[float]]:
        tokens = data.tokens.tolist()
        p, known, by_order = [1 / VOCAB] * len(data.places), [0] * len(data.places), []
        for order in range(ngram.TRAINING_ORDER + 1):
            followers = [self.train.get(tuple(tokens[at - order : at]), Counter()) for at in data.places]
            cells = [(class_of(each.total()), class_of(len(each))) for each in followers]
            p = self.mixed((order,), p, followers, cells, data, fit)
            known = [order if each else before for each, before in zip(followers, known, strict=True)]
            by_order.append(p)
        losses = []
        for window in WINDOWS:
            mixed = by_order[min(window, ngram.TRAINING_ORDER)]
            for order in self.orders:
                followers = [self.shown(tokens, at, order, window) for at in data.places]
                longest = [min(order_known, window) for order_known in known]
                cells = [(class_of(each.total()), at_most) for each, at_most in zip(followers, longest, strict=True)]
                mixed = self.mixed((window, order), mixed, followers, cells, data, fit)
            losses.append([-math.log(each) for each in mixed])
        return losses

    @staticmethod
    def shown(tokens: list[int], at: int, order: int, window: int) -> Counter[int]:
        """What followed the tokens before a place in its window."""
        context, begin = tokens[at - order : at], at - window
        return Counter(tokens[n] for n in range(begin + order, at) if tokens[n - order : n] == context)

    def mixed(
        self,
        key: tuple[object, ...],
        p: list[float],
        followers: list[Counter[int]],
        cells: list[tuple[int, int]],
        data: Targets,
        fit: bool,
    ) -> list[float]:
        q = [each[data.tokens[at]] / max(1, each.total()) for each, at in zip(followers, data.places, strict=True)]
        if fit:
            for cell in set(cells):
                pairs = [(a, b) for a, b, of in zip(p, q, cells, strict=True) if of == cell]
                w = 0.5
                for _ in range(ngram.STEPS):
                    w = sum(w * b / ((1 - w) * a + w * b) for a, b in pairs) / (len(pairs) + 2)
                self.weights[(*key, cell)] = w
        weights = [self.weights.get((*key, cell), 0.0) for cell in cells]
        return [(1 - w) * a + w * b for w, a, b in zip(weights, p, q, strict=True)]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Corpus]:
    """Makes a corpus of 150 documents from their size, the number of letters to draw from, and a prefix of the spec."""
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "cache"))

    def make(size: int, letters: int, prefix: str = "") -> Corpus:
        draw = np.random.default_rng(1)
        folder = tmp_path / f"{size}-{letters}"
        folder.mkdir()
        for n in range(150):
            text = draw.integers(65, 65 + letters, size).astype(np.uint8)
            (folder / f"{n}.txt").write_bytes(text.tobytes())
        return load_corpus(f"{prefix}text:{folder}")

    return make


def test_the_losses_are_those_of_a_plain_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "CACHE_ORDERS", (0, 1, 2, 3))
    train, tuning, held = targets(0, 8).tokens, targets(1), targets(2)
    plain = Plain(train.tolist(), tuning, (0, 1, 2, 3)).nats(held)
    np.testing.assert_allclose(cached_ngram(train, tuning, held, VOCAB, WINDOWS), plain, rtol=1e-9)


def test_large_vocabularies_are_counted_alike() -> None:
    """The numbers of n-grams of large tokens do not fit into 64 bits."""
    train, tuning, held = targets(0, 8), targets(1), targets(2)
    vocab = 2**17

    def far(data: Targets) -> Targets:
        return data._replace(tokens=data.tokens * 50_000)

    small = cached_ngram(train.tokens, tuning, held, vocab, WINDOWS)
    large = cached_ngram(far(train).tokens, far(tuning), far(held), vocab, WINDOWS)
    np.testing.assert_allclose(large, small, rtol=1e-12)


def test_a_token_that_always_comes_gets_the_weight_computed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where q = 1 and p = 1/2 at n targets, w = n / (n + 2) w / ((1 - w) / 2 + w): p becomes n / (n + 2)."""
    monkeypatch.setattr(ngram, "CACHE_ORDERS", ())
    same = Targets(np.zeros(40, np.int64), np.arange(10, 40), np.zeros(30, np.int64))
    np.testing.assert_allclose(cached_ngram(np.zeros(1, np.int64), same, same, 2, (4,)), math.log(32 / 30))


def test_the_probabilities_of_all_tokens_add_up_to_1() -> None:
    train, tuning, held = targets(0, 8).tokens, targets(1), targets(2)
    for place in held.places[::3]:
        shares = []
        for token in range(VOCAB):
            tokens = held.tokens.copy()
            tokens[place] = token
            one = Targets(tokens, np.array([place]), np.array([0]))
            shares.append(np.exp(-cached_ngram(train, tuning, one, VOCAB, WINDOWS)))
        np.testing.assert_allclose(np.sum(shares, axis=0), 1, rtol=1e-12)


def test_no_window_wins_anything_on_random_bytes(written: Callable[..., Corpus]) -> None:
    rows = window_gains(written(3000, 16), 64)
    assert [row.window for row in rows] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert abs(rows[3].bpb - 4) < 0.02  # 16 letters, each as likely as any other
    for row in rows:
        assert row.low <= 0 <= row.high
        assert row.high - row.low < 0.02


def test_windows_win_where_passages_are_repeated(written: Callable[..., Corpus]) -> None:
    rows = window_gains(written(3000, 16, "echo:"), 64)
    assert all(row.low > 0 for row in rows[4:])
    assert rows[-1].low > 0.3
    assert [row.won for row in rows[3:]] == sorted(row.won for row in rows[3:])
    assert [row.bpb + row.won for row in rows] == pytest.approx([rows[3].bpb] * len(rows))


def test_a_text_without_a_document_of_16_training_lengths_is_refused(written: Callable[..., Corpus]) -> None:
    message = "no held-out document of more than 16 times the length 256, 4096 tokens: give a --length of 187 or less"
    with pytest.raises(DataError, match=message):
        window_gains(written(3000, 16), 256)


# --- the distance profile


def test_copies_are_counted_in_the_octave_of_their_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "cache"))
    passage = "abcdefghijklmnopqrst"
    for n in range(12):
        (tmp_path / f"{n}.txt").write_text(f"{n:02}".rjust(300, "-") + passage + "0123456789" * 2 + "~" + passage)
    corpus = load_corpus(f"text:{tmp_path}")
    profile = distance_profile(corpus, (1, 32, 64, 128, 256))
    held_out = corpus.valid.documents
    assert profile.octaves == ((1, 31), (32, 63), (64, 127), (128, 255))
    assert profile.ngram == 6
    assert profile.counts[1] == held_out * (len(passage) - 6)  # its first six letters are not known before
    assert profile.counts[0] >= held_out * (10 - 6)  # of the digits
    assert not any(profile.counts[2:])


def test_log_uniform_copies_have_the_exponent_1(written: Callable[..., Corpus]) -> None:
    profile = distance_profile(written(6000, 26, "echo:"), (128, 256, 512, 1024, 2048))
    exponent, low, high = profile.exponent
    assert low < exponent < high
    assert 0.8 < exponent < 1.4
    assert abs(profile.density[0] / profile.density[2] - 4**exponent) < 4


def test_an_interval_of_the_exponent_needs_five_documents(written: Callable[..., Corpus]) -> None:
    corpus = written(6000, 26, "echo:")
    few = replace(corpus.valid, starts=corpus.valid.starts[:5])
    for valid, made in ((corpus.valid, True), (few, False)):
        profile = distance_profile(replace(corpus, valid=valid), (128, 256, 512, 1024, 2048))
        assert np.isfinite(profile.exponent).tolist() == [True, made, made]


def test_a_text_without_repetitions_has_no_exponent(written: Callable[..., Corpus]) -> None:
    profile = distance_profile(written(1000, 60), (32, 64, 128))
    assert sum(profile.counts) == 0
    assert np.isnan(profile.exponent).all()
