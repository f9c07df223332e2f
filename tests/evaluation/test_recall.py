"""Recall by distance on texts so short that every earlier occurrence, hit and miss can be counted by hand."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from pieces_task import Pieces

from poscli.data import Split
from poscli.evaluation import recall
from poscli.evaluation.recall import octaves, recall_by_distance, recurrences
from poscli.runs.schema import RECALL_COLUMNS, frame
from poscli.tasks import Text

LETTERS = " abcdefxyz"


def text_of(*documents: str, uncounted: tuple[tuple[int, int], ...] = ()) -> Text:
    """Documents of letters; the first token of a document, number 0, stands before its first letter."""
    numbers = [[LETTERS.index(letter) for letter in document] for document in documents]
    return Pieces(numbers, uncounted=uncounted).text(0)


def found(document: str, ngram: int, longest: int = 100) -> list[int]:
    """For every target of a document the distance of a hit, minus that of a miss, or 0."""
    text = text_of("zz", document, "yy")
    spans = np.array([[1, len(document)]])
    got = recurrences(text, spans, len(document), ngram, longest)
    return np.where(got.same, got.distance, -got.distance)[0].tolist()


@pytest.mark.parametrize(
    ("document", "ngram", "expected"),
    [
        # ab occurs at 1 and 4: what follows it is c, then d, then c again after the d
        ("abcabd", 2, [0, 0, 0, 0, 0, -3]),
        ("abcabcx", 2, [0, 0, 0, 0, 0, 3, -3]),
        ("abcabdabd", 2, [0, 0, 0, 0, 0, -3, 0, 0, 3]),  # the last occurrence counts, not the first
        ("abcdxabcdxabcdy", 4, [0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5, 5, -5]),
        ("aaaaaaa", 2, [0, 0, 0, 0, 2, 2, 2]),  # an occurrence that overlaps the n-gram does not count
        ("aaaaaaaa", 3, [0, 0, 0, 0, 0, 0, 3, 3]),
        ("ababab", 3, [0, 0, 0, 0, 0, 0]),  # aba at 1 and 3 overlap
        ("abababab", 3, [0, 0, 0, 0, 0, 0, 0, 4]),
        ("abc", 3, [0, 0, 0]),
        ("ab", 4, [0, 0]),  # shorter than an n-gram
    ],
)
def test_the_last_earlier_occurrence(document: str, ngram: int, expected: list[int]) -> None:
    assert found(document, ngram) == expected


@pytest.mark.parametrize(("longest", "seen"), [(5, 0), (6, 0), (7, 5), (8, 5)])
def test_an_occurrence_must_lie_in_the_window(longest: int, seen: int) -> None:
    """In `abcxyabc`, ab occurs 5 tokens back: 7 tokens are needed to see it, from the first a to the last b."""
    assert found("abcxyabc", 2, longest)[-1] == seen


def test_a_window_that_ends_after_the_target_shows_less_before_it() -> None:
    text = text_of("abcxyabcd")
    for end, longest, seen in ((8, 7, 5), (9, 7, 0), (9, 8, 5)):
        distance = recurrences(text, np.array([[0, end]]), 2, 2, longest).distance[0]
        assert distance[1 if end == 8 else 0] == seen


def test_an_occurrence_in_another_document_does_not_count() -> None:
    text = text_of("abcabc", "abc", "xabc")
    distance = recurrences(text, np.array([[1, 3], [2, 4]]), 3, 2, 100).distance
    assert not distance.any()


@pytest.mark.parametrize("symbols", [(1, 3), (0, 2)])
def test_every_pair_of_occurrences_by_a_slow_search(symbols: tuple[int, int]) -> None:
    """Random text of two letters, also of the token with number 0, against a search through all earlier n-grams."""
    tokens = np.random.default_rng(0).integers(*symbols, 200)
    text = Text(Split(np.array([0, *tokens]), np.array([0, 201])))
    for ngram, longest in ((4, 60), (6, 200), (8, 150)):
        for end in (200, 130):
            got = recurrences(text, np.array([[0, end]]), 30, ngram, longest)
            for column, target in enumerate(range(end - 29, end + 1)):
                assert got.distance[0, column] == slow_distance([0, *tokens], target, ngram, end - longest)


def slow_distance(tokens: list[int], target: int, ngram: int, first_shown: int) -> int:
    gram = list(tokens[target - ngram : target])
    for begin in range(target - 2 * ngram, max(0, first_shown) - 1, -1):
        if list(tokens[begin : begin + ngram]) == gram:
            return target - ngram - begin
    return 0


def test_large_vocabularies_are_numbered_exactly() -> None:
    """Eight tokens of a vocabulary of 2^31 do not fit one number of 64 bits."""
    tokens = np.random.default_rng(0).integers(2**31 - 2, 2**31, 300)
    for ngram in (4, 8):
        numbers = recall._gram_numbers(tokens, ngram)
        grams = [tuple(tokens[n : n + ngram]) for n in range(300 - ngram + 1)]
        equal = np.array([[a == b for b in grams] for a in grams])
        assert ((numbers[:, None] == numbers) == equal).all()


@pytest.mark.parametrize(
    ("length", "longest", "bins"),
    [
        (8, 32, [(2, 3), (4, 7), (8, 15), (16, 31)]),
        (8, 8, [(2, 3), (4, 7)]),
        (10, 40, [(3, 4), (5, 9), (10, 19), (20, 39)]),  # 2.5 to 5: the whole distances in it
        (8, 20, [(2, 3), (4, 7), (8, 15), (16, 19)]),
    ],
)
def test_octaves_of_the_distance(length: int, longest: int, bins: list[tuple[int, int]]) -> None:
    assert octaves(length, longest) == bins


def rows_of(text: Text, spans: list[tuple[int, int]], scored: int, **options) -> dict[tuple[str, int], dict]:
    """Rows by kind and first distance; target t costs t nats with the whole window and 3 t with the short one."""
    ends = np.array(spans)
    nats = (ends[:, 1:] + np.arange(1 - scored, 1)).astype(float)
    rows = recall_by_distance(
        text, ends, scored, nats, 3 * nats, **{"ngram": 2, "train_length": 8, "longest": 32} | options
    )
    frame(rows, RECALL_COLUMNS)
    return {(row["kind"], row["from"]): row for row in rows}


def numbers(row: dict) -> dict:
    """A row without the bounds of its interval, which one document does not have."""
    return {name: value for name, value in row.items() if value == value}


def test_the_rows_of_a_text() -> None:
    """`abcabdabd`: target 6 is a miss and target 9 a hit, both 3 back; all others are new."""
    rows = rows_of(text_of("abcabdabd"), [(0, 9)], 5)
    assert list(rows) == [(kind, start) for kind in ("hit", "miss") for start in (2, 4, 8, 16)] + [("new", 0)]
    hit = {"ngram": 2, "kind": "hit", "from": 2, "to": 3, "tokens": 1, "documents": 1}
    assert numbers(rows["hit", 2]) == hit | {"nll": 9, "nll_crop": 27, "gain": 18}
    assert numbers(rows["miss", 2]) == hit | {"kind": "miss", "nll": 6, "nll_crop": 18, "gain": 12}
    new = {"ngram": 2, "kind": "new", "from": 0, "to": 0, "tokens": 3, "documents": 1}
    assert numbers(rows["new", 0]) == new | {"nll": 20 / 3, "nll_crop": 20, "gain": 40 / 3}  # targets 5, 7 and 8
    empty = {"ngram": 2, "kind": "hit", "from": 8, "to": 15, "tokens": 0, "documents": 0}
    assert rows["hit", 8] == empty


def test_a_bin_takes_the_distances_between_its_bounds() -> None:
    """Targets whose n-gram occurred 3, 4, 7 and 8 tokens back, of which 4 and 7 share a bin."""
    text = text_of("abcabc", "abcxabc", "abcxyzxabc", "abcxyzxxabc")
    rows = rows_of(text, [(0, 6), (1, 7), (2, 10), (3, 11)], 1)
    assert {key: row["tokens"] for key, row in rows.items() if row["tokens"]} == {
        ("hit", 2): 1,
        ("hit", 4): 2,
        ("hit", 8): 1,
    }
    assert rows["hit", 4]["nll"] == (7 + 10) / 2
    assert rows["hit", 4]["documents"] == 2


def test_distances_below_a_quarter_of_L_have_no_row() -> None:
    rows = rows_of(text_of("abcabc"), [(0, 6)], 1, train_length=16)
    assert all(row["tokens"] == 0 for row in rows.values())


def test_targets_that_do_not_count_are_left_out() -> None:
    rows = rows_of(text_of("abcabdabd", uncounted=((0, 9), (0, 5))), [(0, 9)], 5)
    assert {key: row["tokens"] for key, row in rows.items() if row["tokens"]} == {("miss", 2): 1, ("new", 0): 2}
    assert rows["new", 0]["nll"] == (7 + 8) / 2


def test_five_documents_have_an_interval_and_four_have_none() -> None:
    text = text_of(*["xabcabc"[n % 2 :] for n in range(5)])
    spans = [(n, 7 - n % 2) for n in range(5)]
    row = rows_of(text, spans, 1)["hit", 2]
    assert (row["tokens"], row["documents"]) == (5, 5)
    assert row["gain"] == pytest.approx(2 * (7 * 3 + 6 * 2) / 5)
    assert 11 < row["gain_low"] < 12 < row["gain"] < 14 < row["gain_high"] < 15.5  # wider than the five values
    four = rows_of(text, spans[:4], 1)["hit", 2]
    assert four["documents"] == 4
    assert math.isnan(four["gain_low"])
    assert math.isnan(four["gain_high"])


def test_a_document_of_a_megabyte_takes_about_a_second() -> None:
    tokens = np.random.default_rng(0).integers(97, 123, 1_000_000).astype(np.uint16)
    text = Text(Split(tokens, np.array([0, len(tokens)])))
    spans = np.stack([np.zeros(80, int), np.arange(80) * 10_000 + 100_000], axis=1)
    began = time.process_time()
    assert recurrences(text, spans, 128, 6, 65536).distance.any()
    assert time.process_time() - began < 5  # 0.4 s on a Xeon; the limit only catches a search that is quadratic
