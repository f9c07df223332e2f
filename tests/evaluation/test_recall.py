"""Recall by distance on texts so short that every earlier occurrence, hit and miss can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from pieces_task import Pieces

from poscli.data import Split
from poscli.evaluation.recall import octaves, recall_by_distance, recurrences
from poscli.runs.schema import RECALL_COLUMNS, frame
from poscli.tasks import Text

LETTERS = " abcdefxyz"


def text_of(*documents: str) -> Text:
    """Documents of letters; the first token of a document, number 0, stands before its first letter."""
    return Pieces([[LETTERS.index(letter) for letter in document] for document in documents]).text(0)


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


def test_an_occurrence_in_another_document_does_not_count() -> None:
    text = text_of("abcabc", "abc", "xabc")
    distance = recurrences(text, np.array([[1, 3], [2, 4]]), 3, 2, 100).distance
    assert not distance.any()


@pytest.mark.parametrize("symbols", [(1, 3), (0, 2), (2**31 - 2, 2**31)])
def test_every_pair_of_occurrences_by_a_slow_search(symbols: tuple[int, int]) -> None:
    """Random text of two letters against a search through all earlier n-grams.

    Also of the token with number 0, and of a vocabulary of which eight tokens do not fit one number of 64 bits.
    """
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


def numbers(row: dict) -> dict:
    """A row without the bounds of its interval, which one document does not have."""
    return {name: value for name, value in row.items() if value == value}


def test_the_rows_of_a_text() -> None:
    """`abcabdabd`: target 6 is a miss and target 9 a hit, both 3 back; all others are new."""
    targets = np.arange(5.0, 10)[None]  # target t costs t nats with the whole window and 3 t with the short one
    sizes = {"ngram": 2, "train_length": 8, "longest": 32}
    text = text_of("abcabdabd")
    found = recall_by_distance(text, np.array([[0, 9]]), 5, targets, 3 * targets, **sizes)
    frame(found, RECALL_COLUMNS)
    rows = {(row["kind"], row["from"]): row for row in found}
    assert list(rows) == [(kind, start) for kind in ("hit", "miss") for start in (2, 4, 8, 16)] + [("new", 0)]
    hit = {"ngram": 2, "kind": "hit", "from": 2, "to": 3, "tokens": 1, "documents": 1}
    assert numbers(rows["hit", 2]) == hit | {"nll": 9, "nll_crop": 27, "gain": 18}
    assert numbers(rows["miss", 2]) == hit | {"kind": "miss", "nll": 6, "nll_crop": 18, "gain": 12}
    new = {"ngram": 2, "kind": "new", "from": 0, "to": 0, "tokens": 3, "documents": 1}
    assert numbers(rows["new", 0]) == new | {"nll": 20 / 3, "nll_crop": 20, "gain": 40 / 3}  # targets 5, 7 and 8
    empty = {"ngram": 2, "kind": "hit", "from": 8, "to": 15, "tokens": 0, "documents": 0}
    assert rows["hit", 8] == empty
