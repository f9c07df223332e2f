"""Ranks from samples of seeds and documents: how often something false is shown, and how often something true."""

import numpy as np
import pytest
from numpy.typing import NDArray

from poscli.board.ranking import NumbersOfEncodings, rank
from poscli.board.simulation import simulate


@pytest.mark.parametrize("seeds", [3, 5])
def test_ties_are_hardly_ever_separated(seeds):
    """Each look may separate ties on 2.5 or 1.5 % of boards: more than 6 of 60 would be chance of 1 in 1,000."""
    found = simulate(boards=60, encodings=20, seeds=seeds, apart=0.0, draw=seeds)
    assert found.false <= 6 / 60


@pytest.mark.parametrize("encodings", [2, 3, 6, 12])
def test_ties_of_few_encodings_are_hardly_ever_separated(encodings, monkeypatch):
    """Where seeds make most of the variance, as on the board; more than 18 of 300 would be chance of 1 in 2,000."""
    monkeypatch.setattr("poscli.board.simulation.DOCUMENT_SD", 0.1)
    monkeypatch.setattr("poscli.board.simulation.INTERACTION_SD", 0.05)
    assert simulate(boards=300, encodings=encodings, seeds=3, apart=0.0, draw=3).false <= 18 / 300


def test_boards_of_few_encodings_have_neighbours_too():
    assert simulate(boards=4, encodings=4, seeds=10, apart=1.0).power == 1


def test_planted_differences_are_found():
    found = simulate(boards=10, encodings=20, seeds=3, apart=0.2, groups=4, draw=1)
    assert found.power > 0.8
    assert found.false <= 0.2


def seasons_of_copy(values: NDArray, shares: NDArray, texts: NDArray, of: int, *, seasons: int, draw: int = 0) -> float:
    """In how many made-up seasons a copy of encoding `of` gets a rank interval that contains the rank of that encoding.

    `values` `[E, S, D]`, `shares` and `texts` are as in ranking.py, from cells. A season draws other documents of the
    texts for all, and for every encoding other luck of its seeds: normal, with the standard deviation of its own. The
    copy has luck of its own, as if its seeds were others. The rank is that of the numbers in `values`.
    """
    random = np.random.default_rng(draw)
    values = np.concatenate([values, values[of : of + 1]])
    count, seeds, _ = values.shape
    means, totals = values.mean(axis=1), values.sum(axis=2)
    sds = totals.std(axis=1, ddof=1)
    numbers = means.sum(axis=1)
    place = int((numbers[:-1] < numbers[of]).sum()) + 1
    of_texts = [np.flatnonzero(texts == text) for text in np.unique(texts)]
    held = 0
    for _ in range(seasons):
        drawn = np.concatenate([random.choice(documents, len(documents)) for documents in of_texts])
        whole = np.concatenate([np.full(len(at), shares[drawn][at].sum()) for at in of_texts])  # of each text
        luck = sds[:, None] * random.standard_normal((count, seeds)) / len(of_texts)  # moves all texts alike
        season = (means[:, None, drawn] + luck[:, :, None] * shares[drawn]) / whole
        ranks = rank(NumbersOfEncodings(season, shares[drawn] / whole, texts))
        held += int(ranks.first[-1] <= place <= ranks.last[-1])
    return held / seasons


@pytest.mark.parametrize("seeds", [3, 10])
def test_the_interval_of_a_difference_holds_it_whatever_seeds_either_side_has(seeds):
    """In 95 of 100 cases; less than 368 of 400 would be chance of 1 in 100. Seeds of one side make it narrower."""
    random = np.random.default_rng(seeds)
    texts, shares = np.zeros(40, int), np.full(40, 1 / 40)

    def numbers(count: int, sd: float, hard: NDArray) -> NumbersOfEncodings:
        luck, own = sd * random.standard_normal((count, 1)), 0.5 * random.standard_normal((count, 40))
        return NumbersOfEncodings((luck + own + hard)[None] / 40, shares, texts)

    held, reaches = 0, []
    for _ in range(400):
        hard, other = random.standard_normal((2, 40))  # what documents change for every seed: a part of it for both
        one, three = numbers(seeds, 0.5, hard), numbers(3, 0.1, hard + 0.3 * other)
        reaches.append(one.reach_from(three)[0])
        held += abs(one.estimates[0] - three.estimates[0]) <= reaches[-1]
    assert 368 <= held <= 396
    assert np.median(reaches) < (1.1 if seeds == 3 else 0.5)


def test_a_copy_of_an_encoding_gets_its_rank():
    """In 19 of 20 seasons or more; less than 54 of 60 would be chance of 1 in 100."""
    random = np.random.default_rng(0)
    texts = np.repeat(np.arange(4), 64)
    shares = np.full(256, 1 / 64)
    truth = np.repeat([0.0, 0.3, 0.6], 5)
    luck = 0.02 * random.standard_normal((15, 3, 1))
    values = (truth[:, None, None] + luck + random.standard_normal((15, 1, 256))) / 256
    assert seasons_of_copy(values, shares, texts, of=7, seasons=60) >= 54 / 60


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("apart", [0.0, 0.05])
def test_one_board_in_20_separates_something_falsely(seeds, apart):
    assert simulate(boards=1000, encodings=80, seeds=seeds, apart=apart, draw=seeds).false <= 0.05
