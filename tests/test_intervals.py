"""Confidence intervals: compared with all resamples of three documents, with values worked by hand, and by coverage."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from poscli.data import Split
from poscli.evaluation import scores as scores_module
from poscli.evaluation.intervals import ratio_interval
from poscli.evaluation.losses import NLL, Losses
from poscli.evaluation.scores import FEWEST_DOCUMENTS, Scores
from poscli.report.pooling import LN2, pool
from poscli.tasks import Text

# Three documents: the sum of the losses of their tokens, and the number of these tokens.
TOTALS, COUNTS = np.array([85.0, 24.0, 400.0]), np.array([50.0, 20.0, 200.0])


def resamples(totals: NDArray, counts: NDArray) -> NDArray:
    """The ratio of sums of every resample of the documents, 27 for three, in ascending order."""
    drawn = np.array(list(product(range(len(totals)), repeat=len(totals))))
    return np.sort(totals[drawn].sum(1) / counts[drawn].sum(1))


def exact_bca(totals: NDArray, counts: NDArray) -> tuple[float, float]:
    """The 95 % BCa interval by Efron's formulas (1987) over all resamples, none of them drawn at random."""
    atoms, estimate = resamples(totals, counts), totals.sum() / counts.sum()
    bias = ndtri(((atoms < estimate - 1e-12).mean() + (atoms <= estimate + 1e-12).mean()) / 2)
    left_out = (totals.sum() - totals) / (counts.sum() - counts)
    from_mean = left_out.mean() - left_out
    acceleration = (from_mean**3).sum() / (6 * (from_mean**2).sum() ** 1.5)
    levels = [ndtr(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in (ndtri(0.025), ndtri(0.975))]
    steps = np.arange(1, len(atoms)) / len(atoms)
    assert all(np.abs(steps - level)[np.diff(atoms) > 1e-9].min() > 0.012 for level in levels)  # 2 standard errors
    low, high = (float(atoms[math.ceil(level * len(atoms)) - 1]) for level in levels)
    return low, high


def test_the_interval_is_that_of_all_27_resamples() -> None:
    assert ratio_interval(TOTALS, COUNTS) == pytest.approx(exact_bca(TOTALS, COUNTS))


def test_a_resample_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    low, _ = ratio_interval(TOTALS, COUNTS)
    means = [np.mean(each) for each in product(TOTALS / COUNTS, repeat=3)]
    assert np.abs(resamples(TOTALS, COUNTS) - low).min() < 1e-12
    assert np.abs(np.array(means) - low).min() > 1e-3


def test_a_paired_interval_resamples_differences() -> None:
    noise = np.array([900.0, -300.0, 500.0])  # a difference between documents that both variants share
    gain = (TOTALS + noise) - noise
    assert ratio_interval(gain, COUNTS) == pytest.approx(exact_bca(TOTALS, COUNTS))


def test_the_seed_is_fixed_and_the_order_of_the_tokens_is_not_random() -> None:
    draw = np.random.default_rng(3)
    counts = draw.integers(10, 90, 30).astype(float)
    totals = counts * draw.normal(1.4, 0.3, 30)
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    assert ratio_interval(totals, counts) == ratio_interval(totals.copy(), counts.copy())
    assert (np.random.get_state()[1] == state).all()  # type: ignore[index]
    assert ratio_interval(totals, counts) != ratio_interval(totals, counts, seed=1)


def test_intervals_that_are_not_defined() -> None:
    assert np.isnan(ratio_interval(np.array([3.0]), np.array([2.0]))).all()
    assert ratio_interval(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0])) == (2.0, 2.0)
    assert ratio_interval(np.zeros(4), np.arange(1.0, 5)) == (0.0, 0.0)


def test_an_interval_of_95_percent_holds_the_truth_in_about_95_percent() -> None:
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        counts = draw.integers(50, 400, 40).astype(float)
        losses = counts * draw.normal(1.4, 0.3, 40)
        low, high = ratio_interval(losses, counts)
        held += low <= 1.4 <= high
    assert 0.88 * 200 <= held <= 0.99 * 200


# ---- which units the rows of eval.csv resample


def scores(documents: list[int], losses: list[float]) -> tuple[Scores, Losses]:
    """The scores of windows of one token, given the document of each window and its loss."""
    windows = len(documents)
    number = [documents[:at].count(document) + 1 for at, document in enumerate(documents)]
    spans = np.stack([np.array(documents), np.array(number)], axis=1)
    starts = np.arange(max(documents) + 2) * (windows + 1)
    text = Text(Split(np.zeros(starts[-1], np.uint16), starts))
    task: Any = SimpleNamespace(
        text=lambda length: text,
        token_bytes=np.ones_like,
        columns={},
        unigram=lambda t: np.full(t.shape, 3.0),
        vocab=9,
        optimum=lambda t: None,
    )
    values = np.array(losses, np.float32)[:, None]
    return Scores(task, 1, spans, 1), Losses(spans, {NLL: values})


def test_documents_are_resampled_whole() -> None:
    """Each document agrees with itself: only the choice of documents varies, whatever the number of windows."""
    sizes, means = [40, 1, 9, 20, 5], [1.0, 2.0, 1.5, 1.25, 3.0]
    documents = [document for document, size in enumerate(sizes) for _ in range(size)]
    made, losses = scores(documents, [means[document] for document in documents])
    row = made.numbers(losses)
    assert (row["resampled"], row["documents"], row["tokens"]) == ("documents", 5, 75)
    assert row["nll"] == pytest.approx(np.dot(sizes, means) / 75)
    expected = ratio_interval(np.multiply(sizes, means), np.array(sizes, float))
    assert (row["nll_low"], row["nll_high"]) == pytest.approx(expected)
    windows = ratio_interval(losses.nll.astype(float).ravel(), np.ones(75))
    assert expected[1] - expected[0] > 2 * (windows[1] - windows[0])  # the spread that windows would hide


@pytest.mark.parametrize(("vocab", "guess"), [(9, math.log(9)), (100, 3.0)])
def test_the_gain_over_a_guess_is_paired(vocab: int, guess: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is resampled are the differences of each document; the guess is the better of chance and the unigrams."""
    seen: list[tuple[Any, Any]] = []
    monkeypatch.setattr(scores_module, "ratio_interval", lambda *pair: seen.append(pair) or (-1.5, 1.5))
    made, losses = scores([0, 1, 1, 2, 3, 4], [1.0, 2.0, 4.0, 1.5, 1.25, 3.0])
    made.task.vocab = vocab
    assert made.numbers(losses)["guess_gain_low"] == -1.5
    totals, counts = seen[-1]
    assert totals == pytest.approx(np.array([guess - 1, 2 * guess - 6, guess - 1.5, guess - 1.25, guess - 3]))
    assert list(counts) == [1, 2, 1, 1, 1]


def test_with_few_documents_windows_are_resampled_and_the_row_says_so() -> None:
    documents = [0, 0, 0, 1, 1, 2, 2, 3]
    assert len(set(documents)) < FEWEST_DOCUMENTS
    values = [1.0, 2.0, 3.0, 1.5, 2.5, 1.25, 2.25, 4.0]
    made, losses = scores(documents, values)
    row = made.numbers(losses)
    assert (row["resampled"], row["documents"]) == ("spans", 4)
    assert (row["nll_low"], row["nll_high"]) == pytest.approx(ratio_interval(np.array(values), np.ones(8)))


# ---- over seeds


def seeds(gains: list[float], halves: list[float], bytes_per_token: int = 1) -> pd.Series:
    """The pooled point of runs with these gains and half widths of their intervals, in nats per token."""
    rows = pd.DataFrame(
        {
            "run_id": [f"r{seed}" for seed in range(len(gains))],
            "encoding": "e", "seed": range(len(gains)), "protocol": "fixed", "variant": "full", "length": 64,
            "train_length": 16, "status": "ok", "reason": "", "tokens": 100, "bytes": 100 * bytes_per_token,
            "documents": 9, "parameters": 5, "nll": 1.0, "nll_low": 0.9, "nll_high": 1.1, "bpb": 1.0 / LN2,
            "unigram": 3.0, "chance": 5.0, "guess_gain_low": 1.9,
            "gain": gains,
            "gain_low": [gain - half for gain, half in zip(gains, halves, strict=True)],
            "gain_high": [gain + 2 * half for gain, half in zip(gains, halves, strict=True)],
        }
    )  # fmt: skip
    return pool(rows, "fixed").iloc[0]


def test_the_interval_over_seeds_is_students_t_beside_that_over_documents() -> None:
    point = seeds([0.1, 0.2, 0.6], [0.03, 0.05, 0.04], bytes_per_token=2)
    mean, deviation = 0.3, math.sqrt((0.2**2 + 0.1**2 + 0.3**2) / 2)
    of_seeds = 4.302652729911275 * deviation / math.sqrt(3)  # the 97.5 % quantile of t with two degrees of freedom
    bits = 1 / (2 * LN2)
    assert point["gain"] == pytest.approx(mean * bits)
    assert point["gain_low"] == pytest.approx((mean - math.hypot(0.04, of_seeds)) * bits)
    assert point["gain_high"] == pytest.approx((mean + math.hypot(0.08, of_seeds)) * bits)


def test_one_seed_keeps_its_interval_over_documents() -> None:
    point = seeds([0.3], [0.04])
    assert [point[name] * LN2 for name in ("gain", "gain_low", "gain_high")] == pytest.approx([0.3, 0.26, 0.38])


def test_seeds_do_not_replace_an_interval_over_documents_that_is_not_defined() -> None:
    point = seeds([0.1, 0.2, 0.6], [math.nan, 0.05, 0.04])
    assert point["gain"] == pytest.approx(0.3 / LN2)
    assert np.isnan([point["gain_low"], point["gain_high"]]).all()


def test_a_seed_without_a_gain_does_not_count_as_one() -> None:
    point, two = seeds([0.1, math.nan, 0.6], [0.03, math.nan, 0.05]), seeds([0.1, 0.6], [0.03, 0.05])
    for name in ("gain", "gain_low", "gain_high"):
        assert point[name] == pytest.approx(two[name])
