"""Protocols against a brute-force reading of their definitions, and intervals against known cases."""

import numpy as np
import pytest

from poscli.data import Corpus, Split
from poscli.data.tokenizers.bytes import Bytes
from poscli.evaluation.plan import Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.system.errors import DataError, UsageError
from poscli.tasks.copy import Copy
from poscli.tasks.language import Language

SIZES = np.array([5000, 900, 3100, 1500, 260])


def documents(sizes):
    """A corpus whose held-out documents have so many bytes each."""
    starts = np.cumsum([0, *(1 + size for size in sizes)])
    split = Split(np.zeros(starts[-1], dtype=np.uint16), starts)
    return Language(Corpus("sizes", "", Bytes(), split, split))


def settings(**changes):
    return EvaluationSettings(**{"train_length": 64, "max_len": 512, "tokens": 2048, "stride": 32} | changes)


@pytest.fixture
def plan():
    return Plan(documents(SIZES), settings())


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"max_len": 63}, "below the training length"), ({"stride": 65}, "--stride"), ({"tokens": 31}, "--tokens")],
)
def test_impossible_settings_say_what_is_wrong(changes, words):
    with pytest.raises(UsageError, match=words):
        settings(**changes)


@pytest.mark.parametrize("length", [64, 128, 256, 512])
@pytest.mark.parametrize("protocol", ["nonoverlapping", "sliding", "fixed"])
def test_every_window_lies_inside_its_document(plan, protocol, length):
    spans = plan.spans(protocol, length)
    assert len(spans) > 0
    assert (spans[:, 1] >= length).all()
    assert (spans[:, 1] <= SIZES[spans[:, 0]]).all()
    assert len(np.unique(spans, axis=0)) == len(spans)


def test_nonoverlapping_windows_tile_documents(plan):
    for length in (64, 512):
        assert (plan.spans("nonoverlapping", length)[:, 1] % length == 0).all()


def test_fixed_scores_the_same_tokens_at_every_length_all_beyond_the_longest(plan):
    first = plan.spans("fixed", 64)
    for length in (128, 256, 512):
        np.testing.assert_array_equal(plan.spans("fixed", length), first)
    assert (first[:, 1] - 32 >= 512).all()


def test_budget_is_met_where_documents_allow(plan):
    for length in (64, 128, 256, 512):
        assert len(plan.spans("sliding", length)) == 2048 // 32
    assert len(plan.spans("nonoverlapping", 64)) == 5 * 8  # five segments, more than the budget
    assert len(plan.spans("nonoverlapping", 512)) == 5


def test_sliding_scores_the_same_tokens_at_every_length():
    """`fixed` leaves out the window of each document that begins where the document does."""
    for tokens in (1024, 10**6):
        made = Plan(documents(SIZES), settings(tokens=tokens))
        for length in (128, 256, 512):
            np.testing.assert_array_equal(made.spans("sliding", length), made.spans("sliding", 64))
    assert len(made.spans("sliding", 64)) == sum(max(0, size // 32 - 15) for size in SIZES)
    assert len(made.spans("fixed", 64)) == sum(max(0, size // 32 - 16) for size in SIZES)


def test_lengths_can_be_any_multiples_of_the_training_length():
    assert settings(ratios=(1, 1.25, 1.5, 3, 8)).lengths == [64, 80, 96, 192, 512]
    assert settings(ratios=(1, 1.001, 9)).lengths == [64]  # 64.06 is 64, and 9 is beyond max_len
    with pytest.raises(UsageError, match=r"--lengths must begin with 1, the training length, and not with 1\.5"):
        settings(ratios=(1.5, 2))


def test_a_larger_budget_keeps_the_tokens_of_a_smaller_one():
    few, many = (Plan(documents(SIZES), settings(tokens=tokens)).spans("sliding", 128) for tokens in (512, 2048))
    assert {tuple(s) for s in few} < {tuple(s) for s in many}


def test_windows_hold_what_every_protocol_and_the_crop_baseline_need(plan):
    measured = {one: {tuple(s) for s in spans} for one, spans in plan.measurements().items()}
    for length in (64, 128, 256, 512):
        for protocol in ("nonoverlapping", "sliding", "fixed"):
            for variant in plan.variants(protocol):
                assert {tuple(s) for s in plan.spans(protocol, length)} <= measured[plan.measurement(length, variant)]
    assert plan.measurement(512, "crop") == plan.measurement(64, "full")
    assert [one.file for one in measured if one.window == 128] == ["128.parquet", "128-window.parquet"]


def test_documents_too_short_for_the_longest_window_are_refused():
    with pytest.raises(DataError, match=r"needs a held-out document of 544 tokens, and the longest has 500"):
        Plan(documents(np.array([500, 300])), settings())


def test_a_protocol_for_another_kind_of_text_is_refused():
    with pytest.raises(UsageError, match="--protocol answer is for tasks with a text of its own for every length"):
        Plan(documents(SIZES), settings(protocols=("answer",)))
    with pytest.raises(UsageError, match="--protocol fixed is for tasks with the same text at every length"):
        Plan(Copy(), settings(protocols=("fixed",)))
