"""Ranks from samples of seeds and documents: how often something false is shown, and how often something true."""

import numpy as np
import pytest

from poscli.board.simulation import seasons_of_copy, simulate


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
