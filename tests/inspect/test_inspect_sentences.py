"""The sentences and numbers that `poscli inspect` prints, each worked out by hand from a few values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from poscli.grids.views import CellMaps
from poscli.inspect import absolute
from poscli.inspect.absolute import Frequencies, Gram, Products, ShiftMap, Wavelengths, period
from poscli.inspect.probe import Curves, ScoreCurves, WeightCurves, effective_keys, half_distance, share_beyond
from poscli.inspect.rotary import Decay, SpeedRatio, Turning
from poscli.inspect.terms import Bias, BiasAlone, ByOrder, Terms

HEADS = ("head 1", "head 2")
TURN = 2 * math.pi


# ---- the map from one position to another


def test_the_error_of_a_map_is_that_on_rows_that_were_not_fitted() -> None:
    """Even rows are fitted: noise on the odd ones is the error, whole; and noise on the even ones makes a wrong map."""
    draw = np.random.default_rng(0)
    before, noise = draw.standard_normal((40, 3)), draw.standard_normal((40, 3))
    made = draw.standard_normal((3, 3))
    after = before @ made
    odd, even = (np.arange(40) % 2 == kind for kind in (1, 0))
    found = absolute.fitted(before, after + 0.1 * noise * odd[:, None], 4)
    np.testing.assert_allclose(found.map, made, atol=1e-12)
    wrong = 0.1 * noise[odd]
    expected = math.sqrt((wrong**2).mean() / ((after[odd] + wrong) ** 2).mean())
    assert found.error == pytest.approx(expected, rel=1e-12)
    assert found.finding == f"No linear map takes P[i] to P[i+4]: error {100 * expected:.2f} % on rows not fitted"
    other = absolute.fitted(before, after + noise * even[:, None], 4)
    by_numpy = np.linalg.lstsq(before[even], (after + noise)[even], rcond=None)[0]
    np.testing.assert_allclose(other.map, by_numpy, atol=1e-12)
    left = after[odd] - before[odd] @ by_numpy
    assert other.error == pytest.approx(math.sqrt((left**2).mean() / (after[odd] ** 2).mean()), rel=1e-12)


@pytest.mark.parametrize(
    ("map_", "off_blocks"),
    [
        (np.diag([1.0, 1, 1, 1]), 0),
        (np.diag([2.0, 1, 1, 1]), 0),
        ([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]], 0),  # neighbours are pairs
        ([[0, 0, 1, 0], [0, 0, 0, 1], [-1, 0, 0, 0], [0, -1, 0, 0]], 0),  # halves are pairs
        ([[0, 0, 0, 1], [0, 0, 1, 0], [0, -1, 0, 0], [-1, 0, 0, 0]], 1),  # neither
        ([[1, 0.25, 0.5, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], 0.25),  # halves leave 0.25 outside
    ],
)
def test_how_far_a_map_is_from_a_rotation_and_from_blocks(map_, off_blocks: float) -> None:
    made = np.array(map_, dtype=float)
    before = np.random.default_rng(1).standard_normal((40, 4))
    found = absolute.fitted(before, before @ made, 1)
    stretched = np.linalg.norm(made.T @ made - np.eye(4), 2)
    assert stretched / 4 - 1e-9 <= found.from_rotation <= stretched + 1e-9  # an entry of 4 x 4 in some basis
    assert found.off_blocks == pytest.approx(off_blocks, abs=1e-9)
    assert (found.rank, found.k) == (4, 1)
    assert found.record() == {
        "k": 1, "error": found.error, "from_rotation": found.from_rotation, "off_blocks": found.off_blocks, "rank": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "finding"),
    [
        ((0.25, 0, 0), "No linear map takes P[i] to P[i+3]: error 25.0 % on rows not fitted"),
        ((1e-9, 0.5, 0), "P[i+3] = P[i] M for all i; M is linear, but no rotation"),
        ((2e-9, 1e-9, 0.5), "P[i+3] = P[i] M for all i; M is a rotation, to 2e-09"),
        ((1e-9, 3e-9, 0), "P[i+3] = P[i] M for all i; M is a rotation of pairs of channels, to 3e-09"),
    ],
)
def test_what_is_said_of_a_map(numbers: tuple[float, float, float], finding: str) -> None:
    error, from_rotation, off_blocks = numbers
    assert ShiftMap(np.eye(4), 3, error, from_rotation, off_blocks, 4).finding == finding


# ---- tables of positions


def test_what_is_said_of_products_and_waves() -> None:
    at = np.array([0.0, 1, 2, 4])
    mean = np.array([1.0, 0.7, 0.4, 0.6])
    alone = Products(at, mean, mean, mean, 16)
    assert alone.finding == "P[i] . P[i+d] depends on the distance alone, and falls to a half 2 tokens away"
    varied = Products(at, mean + 0.2, mean, mean + np.array([0, 0.25, 0.1, 0]), 16)
    assert varied.finding == "P[i] . P[i+d] varies with the place by up to 0.25, and stays above half"
    waves = Frequencies(np.array([TURN / 100, 1.0, TURN / 8, 0.0]), np.array([1.0, 0.5, 1.0, 1.0]))
    assert waves.wavelengths.tolist() == pytest.approx([8, 100, math.inf])
    said = Wavelengths(waves, None, 256, 64)
    assert (
        said.finding
        == "Wavelengths from 8.00 tokens on without end, 2 of 3 longer than training windows; no row repeats within 256"
    )
    assert said.record()["wavelengths"] == [pytest.approx(8), pytest.approx(100), None]
    assert Wavelengths(Frequencies(np.ones(1), np.zeros(1)), 12, 256, 64).finding == (
        "No channel has a wavelength, and rows repeat every 12"
    )
    rows = np.tile(np.array([[1.0], [2], [1], [3]]), (4, 1))
    assert period(rows) == 4  # row 2 equals row 0, and the rows after it do not


def test_what_is_said_of_columns() -> None:
    cosines = np.array([[1, 0.8, 0.1], [0.8, 1, -0.2], [0.1, -0.2, 1]])
    assert Gram(cosines).finding == "Columns overlap over a training window: |cos| above 0.5 for 33 % of pairs"
    assert Gram(cosines).record() == {
        "mean": pytest.approx(1.1 / 3), "largest": 0.8, "above_half": pytest.approx(1 / 3),
    }  # fmt: skip
    cosines[0, 1] = cosines[1, 0] = 0.3
    assert Gram(cosines).finding.endswith("nearly orthogonal over a training window: |cos| 0.20 on average")


# ---- queries and keys


def test_what_is_said_of_turning_channels() -> None:
    omega = np.array([TURN / 8, TURN / 100, TURN / 1000])
    found = Turning(omega, omega, 2, 64, 1024)
    assert found.turns.tolist() == pytest.approx([8, 0.64, 0.064])
    assert found.new_angles().tolist() == [False, True, True]
    assert found.finding == "2 of 3 pairs meet new angles beyond 64 tokens; wavelengths 8.00 to 1000"
    assert Turning(omega, omega, 2, 64, 64).finding.startswith("No pair meets a new angle beyond 64 tokens")
    assert found.record()["channels_that_do_not_turn"] == 2
    assert found.record()["radians_per_token"] == omega.tolist()
    assert Turning(omega, omega, 0, 64, 1024, clipped=True).new_angles().tolist() == [False] * 3


def test_what_is_said_of_decay_and_scaling() -> None:
    ones = np.array([1, 0.7, 0.3, 0.6, -0.2, 0.45])
    decay = Decay(ones, ones, ones, ones, 4)
    assert decay.finding == "q . R q falls to a half 2 tokens away, and beyond 4 tokens reaches 0.45 again"
    assert Decay(ones + 1, ones, ones, ones, 4).finding == "q . R q never falls to a half"
    assert Decay(ones, ones, ones, ones, 6).finding == "q . R q falls to a half 2 tokens away"
    omega = np.array([TURN / 8, TURN / 128, TURN / 512])
    scaled = SpeedRatio(omega, np.array([1, 0.5, 0.25]), "rope", 64)
    # Pairs 2 and 3 have not turned once in 64 tokens; the faster of them reaches its largest angle at 64 / 0.5.
    assert scaled.new_from == 128
    assert (
        scaled.finding
        == "2 of 3 pairs turn 0.25 to 0.5 times as fast as in rope; angles new to rope begin at 128 tokens"
    )
    assert SpeedRatio(omega[:1], np.array([0.5]), "rope", 64).finding == "All pairs turn 0.5 times as fast as in rope"


# ---- by distance


def test_what_is_said_of_biases() -> None:
    slopes = np.array([[0.5], [0.125]]) * -np.arange(5)
    assert Bias(Curves(HEADS, slopes), 4).finding == "A line per head: 0.5 to 0.125 less per token"
    assert Bias(Curves(HEADS, slopes[[0, 0]]), 4).finding == "A line: -0.5 d"
    steps = np.array([[0.0, -1, -2, -2, -2, -2, -2], [0, -1, -1, -1, -1, -1, -1]])
    assert Bias(Curves(HEADS, steps), 4).flat_from() == 2
    assert Bias(Curves(HEADS, steps), 4).finding == "Steps or curves, level from 2 tokens on"
    late = np.array([[0.0, -1, -3, -1, -1.5]])
    assert Bias(Curves(("all heads",), late), 4).finding == "Between 0 and 4 tokens the bias changes by up to 3"
    assert Bias(Curves(HEADS, np.ones((2, 5))), 4).finding == "The bias is the same at every distance"


def test_weights_by_hand() -> None:
    """0.5 0.25 0.125 0.125: half on the first, a quarter from two tokens on, and 1.75 bits of entropy."""
    weights = np.array([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]])
    assert half_distance(weights).tolist() == [1, 2]
    assert share_beyond(weights, 2).tolist() == [0.25, 0.5]
    assert effective_keys(weights).tolist() == pytest.approx([2**1.75, 4])
    alone = BiasAlone(Curves(HEADS, weights), 2)
    assert (
        alone.finding
        == "By itself it puts half of the weight on the last 1 (head 1) to 2 keys (head 2), and 25 to 50 % beyond 2"
    )
    near = Curves(HEADS, weights[:, :2] / weights[:, :2].sum(axis=1, keepdims=True))
    assert WeightCurves(near, Curves(HEADS, weights), 2, 4).finding == (
        "Half of the weight lies on the last 1 of 2 keys, 1 to 2 of 4"
    )
    assert WeightCurves(near, None, 2, 4, "no row").finding == "Half of the weight lies on the last 1 key"
    equal = Curves(HEADS, np.full((2, 4), 0.25))
    assert WeightCurves(equal, equal, 2, 4).finding == "Every one of 4 keys gets the same weight"
    record = WeightCurves(near, Curves(HEADS, weights), 2, 4).record()
    assert record["keys"] == 4
    assert record["weight_beyond_training_length"] == [0.25, 0.5]
    assert record["values"] == {"head 1": [0.5, 0.25, 0.125, 0.125], "head 2": [0.25] * 4}


def test_what_is_said_of_scores() -> None:
    scores = np.array([[0.0, -1, -2, -math.inf], [0, 1, 0.5, -math.inf]])
    found = ScoreCurves(Curves(HEADS, scores[:, :2]), Curves(HEADS, scores))
    assert found.finding == "2 tokens back, the score differs by -2 (head 1) to +0.5 (head 2)"
    many = Curves(("head 1", "head 2", "head 3"), np.array([[0.0, 3], [0, -4], [0, 1]]))
    assert ScoreCurves(many, None).finding == "1 token back, the score differs by -4 (head 2) to +3 (head 1)"
    assert ScoreCurves(Curves(HEADS, np.zeros((2, 3))), None).finding == "The score does not change with the distance"


def test_what_is_said_of_the_four_terms() -> None:
    terms = Terms(np.zeros((4, 3)), np.array([0.5, 0.05, 0.1, 0.35]), 0.0)
    assert terms.finding == "Scores of layer 1 tell keys apart by c-c 50 %, p-p 35 %, p-c 10 %, c-p 5 %"
    shares = terms.record()["shares_of_variance"]
    assert shares == {
        "content-content": 0.5, "content-position": 0.05, "position-content": 0.1, "position-position": 0.35,
    }  # fmt: skip


def test_what_is_said_of_a_map_of_cells() -> None:
    """The query predicts cell (2, 2): above it stand -1 and -2, to its left -1 and -3, and in the corner -9."""
    cells = np.array([[[-9, 0, -2, 0], [0, 0, -1, 0], [-3, -1, np.nan, np.nan]]])
    found = CellMaps(cells, ("head 1",), 2, (2, 2))
    assert found.finding == "Different upwards and to the left; head 1: cell above -1, far corner -9"
    cells = cells.copy()
    cells[0, 2, 0] = -2
    same = CellMaps(cells, ("head 1",), 2, (2, 2))
    assert same.finding == "The same upwards as to the left; head 1: cell above -1, far corner -9"
    record = same.record()
    assert (record["rows"], record["columns"], record["column_of_query"]) == (3, 4, 2)
    assert record["maps"]["head 1"][2] == [-2, -1, 0, 0]


def test_numbers_by_order_are_written_at_a_few_places() -> None:
    found = ByOrder(np.arange(3), np.array([[0.0, 1, 2], [0, np.nan, 4]]), HEADS, 2, "said")
    assert (found.finding, found.record()["at"]) == ("said", [0, 1, 2])
    assert found.record()["values"] == {"head 1": [0, 1, 2], "head 2": [0, None, 4]}


# ---- the four terms, from queries and keys


def test_shares_of_the_variance_are_covariances_along_each_row() -> None:
    from poscli.config.run import ModelConfig
    from poscli.inspect.subject import constant_operands, fresh_subjects
    from poscli.inspect.terms import split_scores

    (subject,) = fresh_subjects("none", ModelConfig(layers=1, width=8, heads=2, mlp=8), 16, 16)
    x = constant_operands(subject.encoding, 6, queries=3)
    terms = torch.rand(4, 1, 2, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = split_scores(terms, x)
    above, below = np.zeros(4), 0.0
    for head in range(2):
        for t in range(3):
            row = terms[:, 0, head, t, : 4 + t].numpy()  # query 3 + t sees keys 0 to 3 + t
            centred = row - row.mean(axis=1, keepdims=True)
            whole = centred.sum(axis=0)
            above += centred @ whole
            below += whole @ whole
    np.testing.assert_allclose(found.shares, above / below, atol=1e-12)
    for d in range(4):
        each = [terms[:, 0, head, t, 3 + t - d].numpy() for head in range(2) for t in range(3)]
        np.testing.assert_allclose(found.by_distance[:, d], np.mean(each, axis=0), atol=1e-12)
    assert found.by_distance.shape == (4, 4)
