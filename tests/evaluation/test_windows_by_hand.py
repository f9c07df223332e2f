"""The windows of every protocol on three small documents, written out by hand, and the tokens in them.

L = 4 and the stride is 2. The documents have 11, 5 and 8 targets; a window is (document, number of its last target).
"""

from __future__ import annotations

import numpy as np
import pytest
from pieces_task import Pieces

from poscli.evaluation.baseline import baseline
from poscli.evaluation.plan import Measurement, Plan
from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, pieces
from poscli.tasks.copy import Copy

DOCUMENTS = ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4], [3, 3, 5, 3, 3], [7, 6, 5, 4, 3, 2, 1, 7])
SIZES = np.array([11, 5, 8])

SPANS = {
    ("nonoverlapping", 4): [(0, 4), (0, 8), (2, 4), (2, 8)],  # document 1 has no segment of the longest length, 8
    ("nonoverlapping", 8): [(0, 8), (2, 8)],
    ("sliding", 4): [(0, 8), (0, 10), (2, 8)],
    ("sliding", 8): [(0, 8), (0, 10), (2, 8)],
    ("fixed", 4): [(0, 10)],  # targets 9 and 10 lie beyond the longest length, 8
    ("fixed", 8): [(0, 10)],
}
SCORED = {("nonoverlapping", 4): 4, ("nonoverlapping", 8): 8} | {
    (p, n): 2 for p in ("sliding", "fixed") for n in (4, 8)
}


def settings(**changes) -> EvaluationSettings:
    return EvaluationSettings(**{"train_length": 4, "max_len": 8, "tokens": 1000, "stride": 2} | changes)


def plan(**changes) -> Plan:
    return Plan(Pieces(DOCUMENTS), settings(**changes))


def pairs(spans: np.ndarray) -> list[tuple[int, int]]:
    return [(int(document), int(end)) for document, end in spans]


@pytest.mark.parametrize(("protocol", "length"), SPANS)
def test_the_windows_of_a_protocol(protocol: str, length: int) -> None:
    assert pairs(plan().spans(protocol, length)) == SPANS[protocol, length]
    assert PROTOCOLS.get(protocol)().scored(settings(), length) == SCORED[protocol, length]


def test_the_tokens_of_a_window_and_those_that_are_scored() -> None:
    """A window holds the l tokens before its last target and that target; a document opens with token 0."""
    text, spans = Pieces(DOCUMENTS).text(4), np.array([[0, 4], [0, 10], [2, 8]])
    assert text.sizes.tolist() == [11, 5, 8]
    assert text.windows(spans, 4).tolist() == [[0, 1, 2, 3, 4], [6, 7, 1, 2, 3], [4, 3, 2, 1, 7]]
    assert text.targets(spans, 2).tolist() == [[3, 4], [2, 3], [1, 7]]
    assert text.targets(spans, 4).tolist() == [[1, 2, 3, 4], [7, 1, 2, 3], [3, 2, 1, 7]]
    assert text.windows(np.array([[1, 5]]), 5).tolist() == [[0, 3, 3, 5, 3, 3]]
    assert text.counts(spans, 2).all()


def test_which_targets_count() -> None:
    text = Pieces(DOCUMENTS, uncounted=[(0, 3), (2, 8)]).text(4)
    assert text.counts(np.array([[0, 4], [0, 10], [2, 8]]), 2).tolist() == [[False, True], [True, True], [True, False]]


@pytest.mark.parametrize(
    ("tokens", "protocol", "length", "count"),
    [
        (2, "sliding", 4, 1),
        (5, "sliding", 4, 2),  # whole windows of 2 scored tokens that fit 5
        (16, "sliding", 4, 3),  # all there are
        (2, "fixed", 8, 1),
        (8, "nonoverlapping", 4, 4),  # up to five segments whatever the budget
        (2, "nonoverlapping", 8, 2),
    ],
)
def test_the_budget(tokens: int, protocol: str, length: int, count: int) -> None:
    chosen = pairs(plan(tokens=tokens).spans(protocol, length))
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= set(SPANS[protocol, length])


@pytest.mark.parametrize("length", [4, 8])
def test_the_budget_of_fixed(length: int) -> None:
    """16 windows of 2 tokens lie beyond target 8 of 40."""
    for tokens, count in ((2, 1), (7, 3), (10, 5), (1000, 16)):
        assert len(Plan(Pieces([[1] * 40]), settings(tokens=tokens)).spans("fixed", length)) == count


@pytest.mark.parametrize(("tokens", "segments"), [(2, 5), (40, 5), (48, 6), (79, 9), (1000, 9)])
def test_the_budget_of_nonoverlapping(tokens: int, segments: int) -> None:
    """A document of 76 targets has nine segments of 8; each is cut into the windows of every length."""
    made = Plan(Pieces([[1] * 76]), settings(tokens=tokens))
    long, short = pairs(made.spans("nonoverlapping", 8)), pairs(made.spans("nonoverlapping", 4))
    assert len(long) == segments
    assert short == sorted((0, end - back) for _, end in long for back in (0, 4))


def test_a_length_that_does_not_divide_the_longest_leaves_the_start_of_a_segment_out() -> None:
    made = Plan(Pieces([[1] * 16]), settings(ratios=(1, 1.5, 2)))
    assert pairs(made.spans("nonoverlapping", 8)) == [(0, 8), (0, 16)]
    assert pairs(made.spans("nonoverlapping", 6)) == [(0, 8), (0, 16)]
    assert pairs(made.spans("nonoverlapping", 4)) == [(0, 4), (0, 8), (0, 12), (0, 16)]


def test_documents_take_turns() -> None:
    """A long document with many windows and two short ones: every budget of three windows reads all of them."""
    made = Plan(Pieces([[1] * 400, [1] * 10, [1] * 12]), settings(tokens=6))
    for length in (4, 8):
        assert made.spans("sliding", length)[:, 0].tolist() == [0, 1, 2]
    two = Plan(Pieces([[1] * 400, [1] * 10, [1] * 12]), settings(tokens=20)).spans("sliding", 4)
    assert np.bincount(two[:, 0]).tolist() == [5, 2, 3]


def test_fixed_leaves_out_windows_whose_first_scored_token_lies_within_the_longest_length() -> None:
    """Stride 3: the window that ends at 9 scores targets 7, 8 and 9; only 9 lies beyond the longest length, 8."""
    made = Plan(Pieces([[1] * 20]), settings(stride=3))
    assert pairs(made.spans("fixed", 4)) == pairs(made.spans("fixed", 8)) == [(0, 12), (0, 15), (0, 18)]
    assert pairs(made.spans("sliding", 8)) == [(0, 9), (0, 12), (0, 15), (0, 18)]


def test_windows_are_chosen_at_random_and_not_from_the_first_documents() -> None:
    """Of 100 documents of 40 targets, budgets of 20 windows take many documents, in no order of their numbers."""
    task = Pieces([[1] * 40] * 100)
    chosen = Plan(task, settings(tokens=80, max_len=4))
    for protocol, scored in (("sliding", 2), ("nonoverlapping", 4)):
        spans = chosen.spans(protocol, 4)
        assert len(spans) == 80 // scored
        assert len(set(spans[:, 0].tolist())) > 15
        assert spans[:, 0].max() > 60
        assert np.array_equal(spans, Plan(task, settings(tokens=80, max_len=4)).spans(protocol, 4))


def test_the_measurements_of_a_plan() -> None:
    """Rows share measurements: crop at 8 is the model at 4, and a window of L hides nothing at 4.

    The 2 tokens that sliding scores at the end of a window are read one by one, because a piece is at most 1/8 of it.
    """
    made = plan()
    found = {one: pairs(spans) for one, spans in made.measurements().items()}
    assert found == {
        Measurement(4, 0, "full"): [(0, 4), (0, 7), (0, 8), (0, 9), (0, 10), (2, 4), (2, 7), (2, 8)],
        Measurement(8, 0, "full"): [(0, 7), (0, 8), (0, 9), (0, 10), (2, 7), (2, 8)],
        Measurement(8, 0, "window"): [(0, 7), (0, 8), (0, 9), (0, 10), (2, 7), (2, 8)],
    }
    assert [one.file for one in found] == ["4.parquet", "8.parquet", "8-window.parquet"]
    assert made.measurement(8, "crop") == made.measurement(4, "crop") == made.measurement(4, "full")
    assert made.measurement(4, "window") == Measurement(4, 0, "full")
    assert made.variants("nonoverlapping") == ["full"]
    assert made.variants("sliding") == made.variants("fixed") == ["full", "crop", "window"]


@pytest.mark.parametrize(
    ("stride", "window", "piece"),
    [(128, 256, 32), (128, 1024, 128), (128, 512, 64), (12, 40, 4), (7, 40, 1), (16, 8, 1)],
)
def test_what_is_scored_at_the_end_of_a_window_is_at_most_an_eighth_of_it(stride: int, window: int, piece: int) -> None:
    at = EvaluationSettings(train_length=256, max_len=1024, tokens=1000, stride=stride)
    for protocol in ("sliding", "fixed"):
        assert PROTOCOLS.get(protocol)().piece(at, window) == piece
        assert PROTOCOLS.get(protocol)().scored(at, window) == stride
    assert PROTOCOLS.get("nonoverlapping")().piece(at, window) == window


def test_pieces_of_windows() -> None:
    """Two windows of which 4 tokens are scored, read 2 at a time."""
    assert pairs(pieces(np.array([[0, 8], [3, 12]]), 4, 2)) == [(0, 6), (0, 8), (3, 10), (3, 12)]
    assert pairs(pieces(np.array([[0, 8], [3, 12]]), 4, 4)) == [(0, 8), (3, 12)]


def test_baselines_by_hand() -> None:
    crop, window, narrow = baseline("crop"), baseline("window"), baseline("window(3)")
    for length in (4, 8, 64):
        assert (crop.window(length, 4), window.window(length, 4), narrow.window(length, 4)) == (4, length, length)
        assert not crop.changes_model(length, 4)
        assert window.changes_model(length, 4) == (length > 4)
        assert narrow.changes_model(length, 4)


def test_the_answer_protocol_reads_one_whole_episode_and_scores_half_of_L() -> None:
    """Episodes of l + 1 tokens have one window each, which ends with the episode."""
    answer, at = PROTOCOLS.get("answer")(), EvaluationSettings(train_length=8, max_len=16, tokens=12, stride=4)
    documents = Documents(Pieces([[1] * 16] * 5).text(16), at, 16)
    assert answer.scored(at, 16) == answer.scored(at, 8) == 4
    assert pairs(answer.spans(documents, 16)) == [(0, 16), (1, 16), (2, 16)]  # 3 windows of 4 tokens make 12
    made = Plan(Copy(), at)
    assert pairs(made.spans("answer", 16)) == [(0, 16), (1, 16), (2, 16)]
    assert pairs(made.spans("answer", 8)) == [(0, 8), (1, 8), (2, 8)]
    assert made.measurement(16, "crop") == Measurement(8, 16, "full")  # the last 8 tokens of the text of 16
    assert made.measurement(16, "full") == Measurement(16, 16, "full")


@pytest.mark.parametrize(
    ("train", "longest", "lengths"),
    [
        (4, 4, [4]),
        (4, 7, [4]),
        (4, 8, [4, 8]),
        (4, 31, [4, 8, 16]),
        (4, 64, [4, 8, 16, 32, 64]),
        (6, 100, [6, 12, 24, 48, 96]),
    ],
)
def test_lengths_are_doublings(train: int, longest: int, lengths: list[int]) -> None:
    assert settings(train_length=train, max_len=longest).lengths == lengths
