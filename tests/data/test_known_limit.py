"""Texts whose best possible loss is known: the loss against enumeration, integration and gamma functions."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus_places import written
from scipy.special import gammaln, roots_jacobi

from poscli.cli import complete
from poscli.data import load_corpus
from poscli.data.corpora import bayes, source_of
from poscli.data.corpora.bayes import parse_process
from poscli.data.known_limit import SOURCES, Draw, overwrite, pairs, period, tree
from poscli.data.known_limit.bigram import Bigram
from poscli.data.known_limit.recall import Recall
from poscli.data.tokenizers.bytes import Bytes
from poscli.system.errors import UsageError
from poscli.tasks import open_task
from poscli.tasks.language import Language

END, FIRST = 256, 33
Pair = tuple[int, int]


def tokens_of(text: list[Pair], size: int) -> list[int]:
    """The tokens of some pairs of cue and value: cues are the bytes from "!" on, then come the answers of each cue."""
    return [token for cue, value in text for token in (FIRST + cue, FIRST + size + cue * size + value)]


def losses(source: Any, window: list[int]) -> list[float]:
    """The optimum of every target of one window."""
    return source.optimum(np.array([window], dtype=np.int64))[0].tolist()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets documents have another number of pairs."""
    return lambda count: monkeypatch.setattr(pairs, "PAIRS", count)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lets corpora have few documents, and be built anew: what an earlier run has kept would say nothing."""
    monkeypatch.setenv("POSCLI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bayes, "TRAINING_DOCUMENTS", 6)
    monkeypatch.setattr(bayes, "HELD_OUT_DOCUMENTS", 3)
    monkeypatch.setattr(bayes, "TUNING_DOCUMENTS", 1)


# --- bigram: brute force


@cache
def row_probability(counts: Pair, alpha: float) -> float:
    """The probability of some values after one cue, integrated over the row of the table by Gauss and Jacobi's rule.

    The rule of 12 nodes is exact for polynomials up to degree 23, and the likelihood is one.
    """
    nodes, weights = roots_jacobi(12, alpha - 1, alpha - 1)
    share = (nodes + 1) / 2
    return float((weights * share ** counts[0] * (1 - share) ** counts[1]).sum() / weights.sum())


def probability(text: list[Pair], alpha: float) -> float:
    """The probability of a text of two cues and two values."""
    counts = Counter(text)
    rows = [row_probability((counts[cue, 0], counts[cue, 1]), alpha) for cue in range(2)]
    return 2.0 ** -len(text) * rows[0] * rows[1]


def every_text(count: int) -> Iterator[list[Pair]]:
    """All texts of `count` pairs of two cues and two values."""
    return (list(text) for text in product(product(range(2), repeat=2), repeat=count))


@pytest.mark.parametrize("alpha", [0.1, 0.7, 3.0])
@pytest.mark.parametrize("start", range(5))
def test_the_optimum_of_bigram_is_the_posterior_whatever_lies_before_the_window(start: int, alpha: float) -> None:
    """All texts of 4 pairs, of which a window shows what comes after `start` tokens: the rest is summed out."""
    joint, windows = Counter[tuple[int, ...]](), []
    for text in every_text(4):
        tokens, p = tokens_of(text, 2), probability(text, alpha)
        windows.append(tokens[start:])
        for last in range(start + 1, 9):
            joint[tuple(tokens[start:last])] += p
    shares = [[joint[tuple(w[: n + 1])] / joint[tuple(w[:n])] for n in range(1, len(w))] for w in windows]
    assert Bigram(symbols=2, alpha=alpha).optimum(np.array(windows)) == pytest.approx(-np.log(shares), rel=1e-9)


def by_gamma_functions(text: list[Pair], symbols: int, alpha: float) -> float:
    """The log-probability of the values of a text, each row of the table integrated out in closed form."""
    result = 0.0
    for cue in {cue for cue, _ in text}:
        counts = Counter(value for c, value in text if c == cue)
        result += gammaln(symbols * alpha) - gammaln(symbols * alpha + counts.total())
        result += sum(gammaln(alpha + n) - gammaln(alpha) for n in counts.values())
    return float(result)


@pytest.mark.parametrize(("first", "last"), [(0, 60), (1, 80), (401, 460), (400, 460)])
def test_the_optimum_of_bigram_is_a_ratio_of_gamma_functions(first: int, last: int) -> None:
    symbols, alpha = 5, 0.3
    source = Bigram(symbols=symbols, alpha=alpha)
    document = written(source, 1)[0]
    got = losses(source, document[first : last + 1].tolist())
    seen: list[Pair] = []
    for index in range(max(first, 1), last + 1):
        if index % 2 == 0:  # after END, cues have odd indices
            before = by_gamma_functions(seen, symbols, alpha)
            seen.append(divmod(int(document[index]) - FIRST - symbols, symbols))
            expected = before - by_gamma_functions(seen, symbols, alpha)
        else:
            expected = math.log(symbols)
        if index > first:
            assert got[index - first - 1] == pytest.approx(expected, rel=1e-9)


def test_values_of_bigram_have_the_probabilities_of_a_table_that_is_drawn() -> None:
    """Four values after each of many cues, whose rows are independent."""
    alpha, count = 0.4, 40_000
    replies = Bigram(symbols=2, alpha=alpha).reply(np.tile(np.arange(count), 4), Draw("test", 0)).reshape(4, count)
    found = np.bincount(np.array([8, 4, 2, 1]) @ replies, minlength=16)
    every = list(product(range(2), repeat=4))
    expected = count * np.array([row_probability((4 - sum(values), sum(values)), alpha) for values in every])
    assert expected.sum() == pytest.approx(count)
    squares = ((found - expected) ** 2 / expected).sum()
    assert 2 < squares < 45  # chi-square with 15 degrees of freedom: both ends have a probability below 1e-4


# --- recall: brute force


@pytest.mark.parametrize("start", range(5))
def test_the_optimum_of_recall_is_that_of_all_its_documents(start: int) -> None:
    """Every key and every order of cues of 5 pairs, of which a window shows what comes after `start` tokens."""
    joint = Counter[tuple[int, ...]]()
    for key in product(range(2), repeat=2):
        for cues in product(range(2), repeat=5):
            tokens = tokens_of([(cue, key[cue]) for cue in cues], 2)
            for last in range(start + 1, 11):
                joint[tuple(tokens[start:last])] += 1
    for window in filter(lambda shown: len(shown) == 10 - start, list(joint)):
        shares = [joint[window[: n + 1]] / joint[window[:n]] for n in range(1, len(window))]
        assert losses(Recall(cues=2, values=2), list(window)) == pytest.approx(-np.log(shares))


def test_documents_of_recall_repeat_their_values_and_these_are_even(short: Callable[[int], None]) -> None:
    short(200)
    source, values = Recall(cues=5, values=3), Counter[Pair]()
    for row in written(source, 50)[:, 1:]:
        key = dict(zip((row[::2] - FIRST).tolist(), (row[1::2] - FIRST - 5).tolist(), strict=True))
        assert all(key[cue - FIRST] == answer - FIRST - 5 for cue, answer in row.reshape(-1, 2))
        assert all(answer // 3 == cue for cue, answer in key.items())
        values.update(key.items())
    assert len(values) == 15
    assert min(values.values()) > 5  # of 17 expected


# --- what every source promises


EVERY_SOURCE = [pytest.param(SOURCES.get(name), id=name) for name in SOURCES.names()]


@pytest.mark.parametrize("cls", EVERY_SOURCE)
def test_every_source_is_described_and_knows_its_own_text(cls: Any) -> None:
    source, tokens = cls(), written(cls(), 20)
    assert cls.summary
    assert tokens.shape[1] - 1 >= 2 * 16 * 512  # enough for windows of sixteen times 512 tokens
    means = []
    for length in (32, 64, 128):
        loss = source.optimum(tokens[:, -length - 1 :])
        assert loss.shape == (20, length)
        assert np.isfinite(loss).all()
        assert (loss >= 0).all()
        means.append(loss[:, -32:].mean())
    assert means[0] > means[1] > means[2]
    assert np.isfinite(source.optimum(tokens[:, :200])).all()  # END is an input there, not a target
    assert source.optimum(tokens[:0]).shape == (0, tokens.shape[1] - 1)


@pytest.mark.parametrize("cls", EVERY_SOURCE)
def test_what_was_seen_in_one_document_tells_nothing_about_the_next(cls: Any) -> None:
    one, other = written(cls(), 2)
    loss = np.array(losses(cls(), [*one[-100:], *other[:100]]))
    assert np.isnan(loss[99])
    assert loss[:99].tolist() == losses(cls(), one[-100:].tolist())
    assert loss[100:].tolist() == losses(cls(), other[:100].tolist())


@pytest.mark.parametrize("cls", EVERY_SOURCE)
def test_the_optimum_does_not_depend_on_the_memory(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = written(cls(), 7)[:, :301]
    whole, blind = cls().optimum(windows), cls().blind(windows)
    monkeypatch.setattr(pairs, "CHUNK_TOKENS", 700)
    monkeypatch.setattr(overwrite, "CHUNK_COUNTS", 3000)
    monkeypatch.setattr(overwrite, "CHUNK_NODES", 3000)
    monkeypatch.setattr(period, "CHUNK_WEIGHTS", 1500)
    monkeypatch.setattr(tree, "CHUNK_COUNTS", 700)
    assert np.array_equal(cls().optimum(windows), whole)
    assert cls().blind(windows) == pytest.approx(blind, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("cls", EVERY_SOURCE)
def test_a_position_blind_reader_is_not_better_than_the_optimum(cls: Any) -> None:
    source, tokens = cls(), written(cls(), 20)
    windows = tokens[:, 3000:3301]
    blind, optimum = source.blind(windows), source.optimum(windows)
    assert blind.shape == optimum.shape
    assert np.isfinite(blind).all() or np.isnan(blind).all()
    assert not blind.mean() < optimum.mean()
    assert source.blind(tokens[:0]).shape == (0, tokens.shape[1] - 1)


@pytest.mark.parametrize("cls", EVERY_SOURCE)
def test_the_last_losses_of_windows_are_those_of_all_their_tokens(cls: Any) -> None:
    source, documents = cls(), written(cls(), 6)
    windows = np.concatenate([documents[:, 900:1201], [[*documents[0, -200:], *documents[1, :101]]]])
    for scored in (1, 7, 300):
        ends, blind = source.optimum_at_end(windows, scored), source.blind_at_end(windows, scored)
        assert ends == pytest.approx(source.optimum(windows)[:, -scored:], rel=1e-9, nan_ok=True)
        assert blind == pytest.approx(source.blind(windows)[:, -scored:], rel=1e-9, nan_ok=True)
    assert source.optimum_at_end(windows[:0], 7).shape == (0, 7)


def test_bags_of_pairs_tell_all_that_there_is_to_know(short: Callable[[int], None]) -> None:
    short(100)
    for source in (Bigram(), Recall()):
        documents = written(source, 5)
        assert np.array_equal(source.blind(documents), source.optimum(documents))


DIGESTS = {
    "bigram(symbols=12, alpha=0.1)": "677c3606d0ae6fb4",
    "recall(cues=16, values=4)": "aa5858dd549a4395",
    "overwrite(cues=16, values=4, rate=0.2)": "6daf08a25fbf6e4d",
    "period(low=8, high=512, noise=0.1, symbols=8)": "39126baf6b538861",
    "tree(depth=3, symbols=4, alpha=0.5)": "e334a8918d611e99",
}


@pytest.mark.parametrize("spec", DIGESTS)
def test_documents_are_the_same_on_every_machine(spec: str) -> None:
    """After a change of the documents, raise the source's version and write the new digest here."""
    canonical, source = parse_process(spec)
    assert canonical == spec
    assert hashlib.sha256(source.document(Draw(spec, 0))).hexdigest()[:16] == DIGESTS[spec]


# --- the corpus and the task


def test_a_corpus_is_split_by_its_source_and_differs_by_its_options(few: None) -> None:
    specs = ("bigram", "bigram(symbols=9)", "bigram(alpha=0.2)", "recall", "recall(cues=4)")
    found = [load_corpus(f"bayes:{spec}") for spec in specs]
    assert len({corpus.fingerprint for corpus in found}) == len(specs)
    sizes = [tuple(split.documents for split in (each.train, each.valid, each.tune)) for each in found]
    assert set(sizes) == {(6, 3, 1)}
    again = load_corpus("bayes:bigram( alpha = 0.10, symbols=8 )")
    assert (again.spec, again.fingerprint) == (found[0].spec, found[0].fingerprint)
    assert again.spec == "bayes:bigram(symbols=8, alpha=0.1)"
    assert source_of(again.spec).stamp == source_of("bayes:bigram").stamp


def test_the_version_of_a_source_changes_its_stamp_and_its_text(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    old = source_of("bayes:recall"), load_corpus("bayes:recall")
    monkeypatch.setattr(Recall, "version", 2)
    assert source_of("bayes:recall").stamp != old[0].stamp
    new = load_corpus("bayes:recall")
    assert new.fingerprint != old[1].fingerprint
    assert new.origin == {"version": "2"}


def test_the_task_knows_the_optimum_of_windows_of_its_text(few: None) -> None:
    task = open_task("language", "bayes:recall(cues=4, values=2)", "bytes")
    windows = task.text(64).windows(np.array([[0, 5000], [2, 6000]]), 64)
    loss = task.optimum(windows, 64)
    assert loss is not None
    assert loss.shape == (2, 64)
    assert loss[:, ::2] == pytest.approx(math.log(4))  # a window that ends with an answer begins with one or with END
    assert set(loss[:, 1::2].ravel()) == {0.0, math.log(2)}


def test_the_optimum_is_unknown_for_other_texts_tokens_and_tasks(few: None) -> None:
    window = np.zeros((1, 9), np.int64)
    assert open_task("language", "stdlib", "bytes").optimum(window, 8) is None
    assert open_task("copy", "stdlib", "bytes").optimum(window, 8) is None
    corpus = load_corpus("bayes:recall(cues=4, values=2)")
    assert Language(corpus).optimum(window, 8) is not None
    other = Bytes()
    other.fingerprint = "other tokens"
    assert Language(dataclasses.replace(corpus, tokenizer=other)).optimum(window, 8) is None


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ("bigrm", "there is no known-limit source 'bigrm': did you mean bigram?"),
        ("bigram(symbls=3)", "bayes:bigram has no option 'symbls': did you mean symbols?"),
        ("bigram(symbols=1)", "symbols must be 2 or more, got 1"),
        ("bigram(symbols=16)", "16 cues with 16 values each need 272 bytes, one for each cue and each answer, and"),
        ("bigram(symbols=1000000)", "there are 256; ask for fewer"),
        (f"bigram(symbols={10**3000})", "bayes:bigram: symbols must be between -2^63 and 2^63, got"),
        *((f"bigram(alpha={wrong})", "alpha must be between -2^63 and 2^63, got") for wrong in ("nan", "inf", "-1e99")),
        ("bigram(symbols=2.5)", "bayes:bigram: symbols must be a whole number, got '2.5'"),
        ("bigram(symbols=)", "bayes:bigram: symbols must be a whole number, got ''"),
        ("bigram(alpha=much)", "bayes:bigram: alpha must be a number, got 'much'"),
        *((f"bigram(alpha={wrong})", "alpha must be from 0.001 to 1000, got") for wrong in ("0", "-1")),
        ("bigram(alpha=1e4)", "alpha must be from 0.001 to 1000, got 10000"),
        ("bigram(alpha=0.1, alpha=0.2)", "gives the option alpha twice; give it once"),
        ("bigram(9)", "cannot read '9' in the corpus 'bayes:bigram(9)'; a spec looks like bayes:bigram("),
        ("bigram(symbols=16,)", "cannot read '' in the corpus"),
        ("bigram(symbols=16", "cannot read the corpus 'bayes:bigram(symbols=16'; a spec looks like"),
        ("recall(cues=1)", "cues must be 2 or more, got 1"),
        ("recall(values=-3)", "values must be 2 or more, got -3"),
        ("recall(cues=32, values=8)", "32 cues with 8 values each need 288 bytes"),
        ("overwrite(cues=1)", "cues must be 2 or more, got 1"),
        ("overwrite(values=1)", "values must be 2 or more, got 1"),
        ("overwrite(cues=200, values=57)", "200 cues and 57 values need 257 bytes, and there are 256; ask for fewer"),
        *((f"overwrite(rate={wrong})", "rate must be from 0 to 1, got") for wrong in ("-0.1", "1.01")),
        ("period(low=1)", "low must be 2 or more, got 1"),
        ("period(low=9, high=8)", "high must be from low = 9 to 4096, got 8"),
        ("period(high=4097)", "high must be from low = 8 to 4096, got 4097"),
        *((f"period(noise={wrong})", "noise must be 0 or more and below 1, got") for wrong in ("-0.1", "1")),
        *((f"period(symbols={wrong})", "symbols must be from 2 to 256, got") for wrong in ("1", "257")),
        ("tree(depth=0)", "depth must be 1 or more, got 0"),
        ("tree(symbols=1)", "symbols must be from 2 to 256, got 1"),
        ("tree(depth=4, symbols=9)", "9 symbols at depth 4 have more than 4096 contexts; ask for fewer"),
        (f"tree(depth={10**12})", "have more than 4096 contexts; ask for fewer"),
        ("tree(alpha=0)", "alpha must be from 0.001 to 1000, got 0"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused_in_one_line(corpus: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_corpus(f"bayes:{corpus}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    ["overwrite(cues=128, values=128)", "period(low=4096, high=4096, symbols=256)", "tree(depth=1, symbols=256)"],
)
def test_the_largest_alphabet_and_period_can_be_used(spec: str) -> None:
    source: Any = parse_process(spec)[1]
    documents = written(source, 2, spec)
    assert len(set(documents.ravel().tolist()) - {END}) > 250
    assert np.isfinite(source.optimum(documents[:, -300:])).all()
    assert not (source.blind(documents[:, -300:]) < 0).any()


@pytest.mark.parametrize("spec", ["bigram(symbols=15)", "recall(cues=32, values=7)"])
def test_the_largest_alphabet_fits(spec: str, short: Callable[[int], None]) -> None:
    short(1000)
    source: Any = parse_process(spec)[1]
    documents = written(source, 80, spec)
    assert len(set(documents.ravel().tolist()) - {END}) == source.symbols
    assert np.isfinite(source.optimum(documents)).all()


def test_the_command_line_completes_the_kind() -> None:
    assert {f"bayes:{name}" for name in SOURCES.names()} <= set(complete.corpora())
