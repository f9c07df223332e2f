"""The numbers behind pictures against closed forms and brute force that share no code with them; their sentences."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from toys import wide

from poscli.config.run import ModelConfig
from poscli.encodings import names
from poscli.equation import Unsupported
from poscli.equation.operands import grid_shape
from poscli.grids import views as grid
from poscli.inspect import absolute, probe, rotary, terms
from poscli.inspect.absolute import Frequencies
from poscli.inspect.figures import draw_scaling
from poscli.inspect.numbers import Missing, Record
from poscli.inspect.session import draw_sheet
from poscli.inspect.settings import InspectSettings
from poscli.inspect.subject import Subject, constant_operands, fresh_subjects
from poscli.inspect.views import Inspected, all_views, measure_views
from poscli.verify.noise import draw

LENGTH, LONGEST = 64, 1024
CONFIG = ModelConfig(layers=2, width=64, heads=4, mlp=64)  # heads of 16 channels
THETA = 10000 ** (-np.arange(0, 16, 2) / 16)  # radians per token of their pairs in RoPE
SLOPES = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None]  # of their biases in ALiBi
TURN = 2 * math.pi
NAN = math.nan


def subject(spec: str, length: int = LENGTH, longest: int = LONGEST) -> Subject:
    (found,) = fresh_subjects(spec, CONFIG, length, longest)
    return found


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# Sentences, of numbers made by hand: at a threshold, and in the cases that no snapshot shows.


def curves(*rows: list[float]) -> probe.Curves:
    return probe.Curves(tuple(f"head {n + 1}" for n in range(len(rows))), np.array(rows))


def of_waves(omega: list[float], share: list[float], repeats: int | None = None) -> absolute.Wavelengths:
    return absolute.Wavelengths(Frequencies(np.array(omega), np.array(share)), repeats, 64, 16)


def of_map(error: float, from_rotation: float, off_blocks: float) -> absolute.ShiftMap:
    return absolute.ShiftMap(np.eye(2), 4, error, from_rotation, off_blocks, 2)


def of_turns(longest: int) -> rotary.Turning:
    omega = np.array([2.0, 0.1, 0.01])
    return rotary.Turning(omega, omega, 0, 16, longest)


def of_decay(ones: list[float], length: int) -> rotary.Decay:
    return rotary.Decay(*[np.array(ones)] * 4, length)


def of_products(mean: list[float], range_: float) -> absolute.Products:
    values = np.array(mean)
    return absolute.Products(np.arange(len(mean)), values, values, values + range_, 16)


def of_cells(rows: list[list[float]]) -> grid.CellMaps:
    return grid.CellMaps(np.array([rows]), ("all heads",), 1, (2, 2))


FINDINGS: list[tuple[Record, str]] = [
    (of_waves([TURN / 4, TURN / 16, TURN / 32, 1.0], [1, 0.995, 0.99, 0.98]),
     "Wavelengths from 4.00 to 32 tokens, 1 of 3 longer than training windows; no row repeats within 64"),
    (of_waves([TURN / 4, 0.0], [1, 1], 4),
     "Wavelengths from 4.00 tokens on without end, 1 of 2 longer than training windows; rows repeat every 4"),
    (terms.Bias(curves([0, -1, -2, -3, -4]), 2), "A line: -1 d"),
    (terms.Bias(curves([0, 0.5, 1]), 2), "A line: +0.5 d"),
    (terms.Bias(curves([3, 3, 3], [5, 5, 5]), 2), "The bias is the same at every distance"),
    (terms.Bias(curves([0, -1, -2], [0, -3, -6]), 2), "A line per head: 3 to 1 less per token"),
    (terms.Bias(curves([0, -1, -2, -3, -3, -3], [0, -2, -2, -2, -2, -2]), 2),
     "Steps or curves, level from 3 tokens on"),
    (terms.Bias(curves([0, -1, -2, -2, -7, -7], [0, -2, -2, -2, -2, -2]), 2),
     "Between 0 and 5 tokens the bias changes by up to 7"),
    (terms.BiasAlone(curves([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]), 1),
     "By itself it puts half of the weight on the last 1 (head 1) to 2 keys (head 2), and 40 to 80 % beyond 1"),
    (terms.BiasAlone(curves([0, 0, 1]), 1),
     "By itself it puts half of the weight on the last 3 keys, and 100 % beyond 1"),
    (probe.ScoreCurves(curves([0, 1, 2], [0, -1, -2], [0, 5, 4]), None),
     "2 tokens back, the score differs by -2 (head 2) to +4 (head 3)"),
    (probe.ScoreCurves(curves([0, -1, -math.inf]), None), "1 token back, the score differs by -1 (head 1)"),
    (probe.ScoreCurves(curves([0, 3], [0, 1]), None),
     "1 token back, the score differs by +3 (head 1) to +1 (head 2)"),
    (rotary.SpeedRatio(np.array([TURN / 16]), np.array([0.5]), "rope", 16),
     "All pairs turn 0.5 times as fast as in rope"),
    (rotary.SpeedRatio(np.array([1.0, 0.1]), np.array([1.0005, 0.25]), "rope", 16),
     "1 of 2 pairs turn 0.25 times as fast as in rope; angles new to rope begin at 64 tokens"),
    (rotary.SpeedRatio(np.array([1.0, 0.1]), np.array([0.5, 0.25]), "rope", 16),
     "All pairs turn 0.25 to 0.5 times as fast as in rope; angles new to rope begin at 64 tokens"),
    (of_turns(24), "2 of 3 pairs meet new angles beyond 16 tokens; wavelengths 3.14 to 628"),
    (of_turns(16), "No pair meets a new angle beyond 16 tokens; wavelengths 3.14 to 628"),
    (of_decay([1, 0.5, 0.4, 0.7, 0.3], 4),
     "q . R q falls to a half 2 tokens away, and beyond 4 tokens reaches 0.30 again"),
    (of_decay([1, 0.4], 2), "q . R q falls to a half 1 token away"),
    (of_decay([1, 0.5, 0.5], 2), "q . R q never falls to a half"),
    (of_products([1, 0.5, 0.4, 0.6], 0.25),
     "P[i] . P[i+d] varies with the place by up to 0.25, and falls to a half 2 tokens away"),
    (of_products([1, 0.5], 9e-7), "P[i] . P[i+d] depends on the distance alone, and stays above half"),
    (absolute.Gram(np.eye(11) + 0.6 * (np.add.outer(range(11), range(11)) == 1)),
     "Columns overlap over a training window: |cos| above 0.5 for 1.8 % of pairs"),
    (absolute.Gram(np.full((3, 3), 0.5)),
     "Columns are nearly orthogonal over a training window: |cos| 0.50 on average"),
    (of_map(3e-9, 2e-8, 0.5), "P[i+4] = P[i] M for all i; M is a rotation, to 2e-08"),
    (of_map(3e-8, 2e-9, 1e-9), "P[i+4] = P[i] M for all i; M is a rotation of pairs of channels, to 3e-08"),
    (of_map(1e-9, 0.1, 0.5), "P[i+4] = P[i] M for all i; M is linear, but no rotation"),
    (of_map(0.25, 1e-9, 1e-9), "No linear map takes P[i] to P[i+4]: error 25 % on rows not fitted"),
    (of_map(2e-5, 1e-9, 1e-9), "No linear map takes P[i] to P[i+4]: error 0.002 % on rows not fitted"),
    (of_cells([[0.1, 0.2, 0.3], [0.4, NAN, NAN]]),
     "Different upwards and to the left; all heads: cell above 0.2, far corner 0.1"),
    (of_cells([[0.1, 0.4, 0.3], [0.4, NAN, NAN]]),
     "The same upwards as to the left; all heads: cell above 0.4, far corner 0.1"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "finding"), FINDINGS, ids=[type(record).__name__ for record, _ in FINDINGS])
def test_a_finding_says_what_the_numbers_are(record: Record, finding: str) -> None:
    assert record.finding == finding


# The linear map from one position to another.


@pytest.mark.parametrize("k", [1, 30])
def test_the_map_of_sinusoids_is_a_rotation_of_neighbouring_channels_by_their_angles(k: int) -> None:
    found = absolute.shift_map(subject("sinusoidal"), k)
    expected = np.zeros((64, 64))
    for m in range(32):
        angle = k / 10000 ** (2 * m / 64)
        cos, sin = math.cos(angle), math.sin(angle)  # (sin a, cos a) M = (sin(a + angle), cos(a + angle))
        expected[2 * m : 2 * m + 2, 2 * m : 2 * m + 2] = [[cos, -sin], [sin, cos]]
    np.testing.assert_allclose(found.map, expected, atol=1e-10)
    assert max(found.error, found.from_rotation, found.off_blocks) < 1e-10
    assert found.rank == 64
    assert "rotation of pairs" in found.finding


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e15])
def test_a_map_that_stretches_is_not_a_rotation(size: float) -> None:
    rows = size * 1.01 ** np.arange(400)[:, None] * np.array([[1.0, 2.0]])
    found = absolute.fitted(rows[:-1], rows[1:], 1)
    assert found.rank == 1
    assert found.error < 1e-12
    assert found.from_rotation == pytest.approx(1.01**2 - 1, rel=1e-9)


def test_the_error_of_a_map_is_that_on_rows_that_were_not_fitted() -> None:
    """Even rows are fitted: noise on the odd ones is the error, whole; and noise on the even ones makes a wrong map."""
    random = np.random.default_rng(0)
    before, noise = random.standard_normal((40, 3)), random.standard_normal((40, 3))
    made = random.standard_normal((3, 3))
    after = before @ made
    odd, even = (np.arange(40) % 2 == kind for kind in (1, 0))
    found = absolute.fitted(before, after + 0.1 * noise * odd[:, None], 4)
    np.testing.assert_allclose(found.map, made, atol=1e-12)
    wrong = 0.1 * noise[odd]
    expected = math.sqrt((wrong**2).mean() / ((after[odd] + wrong) ** 2).mean())
    assert found.error == pytest.approx(expected, rel=1e-12)
    other = absolute.fitted(before, after + noise * even[:, None], 4)
    by_numpy = np.linalg.lstsq(before[even], (after + noise)[even], rcond=None)[0]
    np.testing.assert_allclose(other.map, by_numpy, atol=1e-12)
    left = after[odd] - before[odd] @ by_numpy
    assert other.error == pytest.approx(math.sqrt((left**2).mean() / (after[odd] ** 2).mean()), rel=1e-12)


@pytest.mark.parametrize(
    ("map_", "off_blocks"),
    [
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


@pytest.mark.parametrize("bad", [(0, 0, NAN), (1, 3, NAN), (0, slice(0, None, 2), 0), (1, slice(1, None, 2), 0)])
def test_no_map_is_fitted_to_rows_that_are_zero_or_not_finite(bad) -> None:
    rows = np.random.default_rng(1).standard_normal((2, 8, 3))
    table, at, value = bad
    rows[table, at] = value
    with pytest.raises(Unsupported, match="zero or not finite, so that no map"):
        absolute.fitted(*rows, 1)


# Tables of positions.


def test_products_of_sinusoids_are_sums_of_cosines_wherever_they_are_taken() -> None:
    found = absolute.products(subject("sinusoidal"))
    theta = 10000 ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(found.mean, [np.cos(d * theta).mean() for d in found.distances], atol=1e-11)
    np.testing.assert_allclose(found.high - found.low, 0, atol=1e-11)


def test_products_of_a_learned_table_are_means_over_all_places() -> None:
    of = subject("learned")
    rows = of.encoding.table.numpy()
    found = absolute.products(of)
    size = (rows**2).sum(axis=1).mean()
    for n, d in enumerate(found.distances.astype(int)):
        each = [rows[i] @ rows[i + d] / size for i in range(LENGTH - d)]
        assert (found.mean[n], found.low[n], found.high[n]) == pytest.approx((np.mean(each), min(each), max(each)))


def test_wavelengths_of_sinusoids_are_those_of_the_paper() -> None:
    found = absolute.wavelengths(subject("sinusoidal", longest=2048))
    expected = np.repeat(2 * math.pi * 10000 ** (np.arange(0, 64, 2) / 64), 2)
    # A wave of which the table shows a small part is told from its curvature, the square of that part, which rounding
    # of the energy hides: the longest wavelength is 30 times the table.
    np.testing.assert_allclose(found.frequencies.wavelengths, expected, rtol=2e-3)
    np.testing.assert_allclose(found.frequencies.wavelengths[:32], expected[:32], rtol=1e-6)


def test_noise_has_no_wavelength_and_a_constant_an_infinite_one() -> None:
    assert not len(absolute.frequencies(np.random.default_rng(0).standard_normal((256, 5))).wavelengths)
    assert np.isinf(absolute.frequencies(np.ones((64, 1))).wavelengths).all()


@pytest.mark.parametrize(("count", "noise", "period"), [(12, 0, None), (23, 0, None), (24, 0, 12), (36, 0, 12),
                                                        (60, 2e-7, 12), (60, 2e-6, None)])  # fmt: skip
def test_a_period_is_seen_in_two_rounds(count: int, noise: float, period: int | None) -> None:
    random = np.random.default_rng(0)
    rows = np.tile(random.standard_normal((12, 7)), (5, 1))[:count]
    assert absolute.period(rows + noise * random.standard_normal(rows.shape)) == period


def test_the_first_rows_are_those_of_128_positions_or_of_all_that_there_are() -> None:
    for spec, count, known in (("sinusoidal", 128, LONGEST), ("learned", LENGTH, LENGTH)):
        of = subject(spec)
        found = absolute.first_rows(of)
        expected = of.encoding.embed(
            torch.zeros(1, count, 64).double(), torch.arange(count), torch.zeros(1, count).long()
        )
        assert found.rows.tolist() == expected[0].tolist()
        assert found.known == known


def test_columns_are_compared_over_the_positions_of_training() -> None:
    found = absolute.gram(subject("sinusoidal")).cosines
    np.testing.assert_allclose(np.diag(found), 1, atol=1e-12)
    p = np.array([math.sin(n) for n in range(LENGTH)]), np.array([math.cos(n) for n in range(LENGTH)])
    assert found[0, 1] == pytest.approx(p[0] @ p[1] / math.sqrt((p[0] @ p[0]) * (p[1] @ p[1])), abs=1e-12)


# Rotary encodings.


@pytest.mark.parametrize("spec", ["rope", "rope(layout=interleaved)", "rope(base=500)", "grape", "xpos"])
def test_angular_frequencies_are_measured_to_rounding(spec: str) -> None:
    base = 500 if "500" in spec else 10000
    found = rotary.turning(subject(spec))
    # An eigenvalue of a rotation is off by a few units of rounding, which is an angle of that size.
    np.testing.assert_allclose(found.omega, base ** (-np.arange(0, 16, 2) / 16), atol=1e-12)
    assert found.still == 0


def test_the_speeds_of_pope_and_of_fractions_are_measured_too() -> None:
    np.testing.assert_allclose(rotary.turning(subject("pope")).omega, 10000 ** (-np.arange(16) / 16), atol=1e-11)
    half = rotary.turning(subject("rope(fraction=0.5)"))
    np.testing.assert_allclose(half.omega, 10000 ** (-np.arange(0, 8, 2) / 8), atol=1e-12)
    assert half.still == 8


def test_the_decay_of_queries_is_that_of_their_pairs() -> None:
    """The product is the sum over pairs of |pair|^2 cos(d theta); one in twenty is left out at either end."""
    found = rotary.decay(subject("rope"))
    cosines = np.cos(np.arange(LONGEST)[:, None] * THETA)
    np.testing.assert_allclose(found.ones, cosines.mean(axis=1), atol=1e-11)
    each = []
    for seed in range(rotary.RANDOM_TOKENS):
        for q in draw(64, seed=seed, dtype=torch.float64).numpy().reshape(4, 16):
            squares = q[:8] ** 2 + q[8:] ** 2
            each.append(cosines @ squares / squares.sum())
    np.testing.assert_allclose(found.mean, np.mean(each, axis=0), atol=1e-11)
    np.testing.assert_allclose(found.low, np.quantile(each, 0.05, axis=0), atol=1e-11)
    np.testing.assert_allclose(found.high, np.quantile(each, 0.95, axis=0), atol=1e-11)


def test_speeds_are_compared_with_those_that_the_other_encoding_has_in_training() -> None:
    rope, follows = subject("rope"), subject("rope-linear")  # squeezed by 16 in the longest window, not in training
    np.testing.assert_allclose(rotary.scaling(rope, follows).ratio, 1, atol=1e-8)
    np.testing.assert_allclose(rotary.scaling(follows, rope).ratio, LENGTH / LONGEST, atol=1e-8)
    turning = rotary.turning(follows)
    np.testing.assert_allclose(turning.turns, LENGTH * THETA / TURN, rtol=1e-8)
    np.testing.assert_allclose(turning.omega, THETA * LENGTH / LONGEST, rtol=1e-8)
    assert not turning.new_angles().any()
    assert rotary.turning(rope).new_angles().tolist() == (THETA * LENGTH < TURN).tolist()
    assert rotary.scaling(subject("rope-linear(factor=4)"), rope).new_from == 4 * LENGTH
    yarn = rotary.scaling(subject("yarn(factor=4)"), rope)
    assert (yarn.ratio[0], yarn.ratio[-1]) == pytest.approx((1, 0.25), abs=1e-8)
    # Of models of other training lengths, the angles that count are those that the other one has seen.
    assert rotary.scaling(subject("rope-linear(factor=4)", 4 * LENGTH), rope).new_from == 4 * LENGTH
    assert rotary.scaling(rope, rope).finding == "Every pair turns as fast as in rope"


@pytest.mark.parametrize("spec", ["self-extend", "jet-long"])
def test_queries_that_turn_in_steps_beyond_training_have_the_angles_of_training(spec: str) -> None:
    np.testing.assert_allclose(rotary.turning(subject(spec)).omega, THETA, rtol=1e-8)


def test_queries_that_begin_anew_with_each_chunk_have_no_angle() -> None:
    with pytest.raises(Unsupported, match="do not turn by the same angle"):
        rotary.turning(subject("dual-chunk"))


def test_channels_that_an_encoding_leaves_empty_turn_at_no_speed() -> None:
    np.testing.assert_allclose(rotary.turning(subject("string")).omega, THETA, rtol=1e-8)


def test_positions_that_training_draws_at_random_leave_open_which_angles_are_new() -> None:
    found = rotary.turning(subject("randomized+rope"))
    np.testing.assert_allclose(found.omega, THETA, rtol=1e-8)  # of rope, by position
    assert not found.new_angles().any()
    assert "random" in found.finding


def test_heads_that_turn_at_other_speeds_are_not_spoken_of_as_one() -> None:
    assert rotary.turning(subject("mobius")).finding.startswith("In head 1 of 4, which differ: ")
    assert rotary.scaling(subject("mobius"), subject("rope")).finding.startswith("In head 1 of 4, which differ: ")
    assert "head" not in rotary.turning(subject("rope")).finding


# Biases and attention by distance.


@pytest.mark.parametrize("spec", ["alibi", "kerple-log", "alibi+t5"])
def test_attention_by_the_bias_alone_is_the_softmax_over_distances(spec: str) -> None:
    of = subject(spec)
    found = terms.bias_alone(of).curves.values
    biases = np.array([of.encoding.distance_bias(torch.tensor([d]))[:, 0].tolist() for d in range(LONGEST)]).T
    np.testing.assert_allclose(found, softmax(biases), atol=1e-13)
    for weights, half in zip(softmax(biases), probe.half_distance(found), strict=True):
        assert math.fsum(weights[: half - 1]) < 1 / 2 * (1 + 1e-9)
        assert math.fsum(weights[:half]) >= 1 / 2 * (1 - 1e-9)


@pytest.mark.parametrize("keys", [LENGTH, LONGEST])
def test_weights_where_all_tokens_look_alike_are_the_softmax_of_the_paper(keys: int) -> None:
    d = np.arange(keys)
    rope = np.tile(2 * np.cos(d[:, None] * THETA).sum(axis=1) / 4, (4, 1))  # q . k / sqrt(16)
    for spec, scores in (("alibi", -SLOPES * d), ("rope", rope), ("window(50)", np.where(d < 50, 0, -np.inf)[None])):
        found = probe.weights_when_alike(subject(spec))
        values = (found.near if keys == LENGTH else found.far).values
        np.testing.assert_allclose(values, np.broadcast_to(softmax(scores), (4, keys)), atol=1e-13)
    assert probe.effective_keys(values) == pytest.approx([50] * 4)
    assert probe.share_beyond(values, 32) == pytest.approx([0.36] * 4)


@pytest.mark.parametrize("spec", ["alibi+interpolated(8)", "t5+interpolated", "randomized(max=200)+kerple-log"])
def test_a_bias_is_that_of_the_positions_that_formulas_see(spec: str) -> None:
    """As far as there are positions: the scores of tokens that are alike differ by the bias, and by nothing else."""
    of = subject(spec)
    alike = probe.scores_when_alike(of)
    expected = (alike.near if alike.far is None else alike.far).values
    found = terms.bias(of).curves.values
    np.testing.assert_allclose(found - found[:, :1], expected, atol=1e-11)
    weights = probe.weights_when_alike(of)
    assert (
        probe.half_distance(terms.bias_alone(of).curves.values).tolist()
        == probe.half_distance(weights.shown.values).tolist()
    )


SCORED = ["alibi", "rope", "shaw", "t5", "cope", "alibi+window(9)", "transformer-xl", "sinusoidal", "fox", "kerple-log"]


@pytest.mark.parametrize("spec", SCORED)
def test_weights_are_the_softmax_of_the_scores_where_all_tokens_look_alike(spec: str) -> None:
    of = subject(spec, 32, 96)
    scores, weights = probe.scores_when_alike(of), probe.weights_when_alike(of)
    for found, expected in ((scores.near, weights.near), (scores.far, weights.far)):
        assert (found.values[:, 0] == 0).all()
        np.testing.assert_allclose(softmax(found.values), expected.values, atol=1e-12)


def test_heads_read_the_whole_embedding_at_the_size_of_their_own_channels() -> None:
    """Queries and keys are (1 + P[i]) sqrt(D / W), and a score is q . k / sqrt(D)."""
    table = np.zeros((LENGTH, 64))
    for m in range(32):
        angle = np.arange(LENGTH) / 10000 ** (2 * m / 64)
        table[:, 2 * m], table[:, 2 * m + 1] = np.sin(angle), np.cos(angle)
    scores = (1 + table) @ (1 + table[-1]) * (16 / 64) / math.sqrt(16)
    found = probe.weights_when_alike(subject("sinusoidal")).near
    np.testing.assert_allclose(found.values, np.tile(softmax(scores[::-1]), (4, 1)), atol=1e-12)


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 5, 40])
def test_mean_by_distance_equals_loops_over_texts_queries_and_keys(
    rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = subject("alibi")
    values = torch.rand(3, 4, 40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = constant_operands(of.encoding, 40, queries=40)
    x = replace(x, k_BHSD=x.k_BHSD.expand(3, -1, -1, -1))

    def rows(_, part):
        start = round(float(part.pos_T[0]))
        return values[:, :, start : start + part.queries, : part.keys]

    monkeypatch.setattr(probe, "weight_rows", rows)
    monkeypatch.setattr(probe, "PAIR_NUMBERS", rows_at_a_time * x.k_BHSD.numel())
    found = probe.mean_by_distance(of.encoding, x)
    queries = range(40 - probe.QUERIES, 40)
    assert found.shape == (4, 40 - probe.QUERIES + 1)
    for head in range(4):
        for d in range(found.shape[1]):
            each = [float(values[b, head, i, i - d]) for b in range(3) for i in queries]
            assert found[head, d] == pytest.approx(math.fsum(each) / len(each), abs=1e-13)


def test_positions_and_temperatures_are_those_of_the_formulas() -> None:
    found = terms.positions_seen(subject("interpolated(factor=4)"))
    np.testing.assert_allclose(found.values[-1], found.at / 4)
    log = terms.temperature_by_order(subject("logn"))
    np.testing.assert_allclose(log.values[0], np.maximum(1, np.log(log.at + 1) / math.log(LENGTH)), atol=1e-12)


def test_a_temperature_follows_the_keys_that_a_window_leaves_visible() -> None:
    log = terms.temperature_by_order(subject("logn(8)+window(64)"))
    np.testing.assert_allclose(
        log.values[0], np.maximum(1, np.log(np.minimum(log.at + 1, 64)) / math.log(8)), atol=1e-12
    )
    assert log.finding == "Scores are multiplied by 2 at 64 tokens, by 2 at 1024"
    assert terms.temperature_by_order(subject("sink(8)+window(56)+logn(8)")).finding == log.finding


def test_four_terms_are_split_as_loops_do() -> None:
    """Parts of queries and keys at random; the share of a term is its covariance with the score along the rows."""
    texts, heads, tokens, queries, width = 2, 4, 12, 5, 8
    parts = [draw(texts, heads, tokens, width, seed=n, dtype=torch.float64) for n in range(4)]  # q, q, k, k
    x = constant_operands(subject("none").encoding, tokens, queries=queries)
    x = replace(x, q_BHTD=(parts[0] + parts[1])[:, :, -queries:], k_BHSD=parts[2] + parts[3])
    each = torch.stack([q[:, :, -queries:] @ k.mT * width**-0.5 for q in parts[:2] for k in parts[2:]])
    found = terms.split_scores(each, x)
    assert found.remainder < 1e-12
    values = each.numpy()
    covariance, variance = np.zeros(4), 0.0
    means = np.zeros((4, tokens - queries + 1))
    for b in range(texts):
        for h in range(heads):
            for t in range(queries):
                seen = tokens - queries + t + 1
                rows = values[:, b, h, t, :seen]
                score = rows.sum(axis=0) - rows.sum(axis=0).mean()
                covariance += (rows - rows.mean(axis=1, keepdims=True)) @ score
                variance += score @ score
                means += rows[:, ::-1][:, : tokens - queries + 1] / (texts * heads * queries)
    np.testing.assert_allclose(found.shares, covariance / variance, atol=1e-12)
    np.testing.assert_allclose(found.by_distance, means, atol=1e-12)
    other = terms.split_scores(each, replace(x, q_BHTD=2 * x.q_BHTD))
    assert other.remainder == pytest.approx(0.5)  # the sum of the terms is half of the score


# Grids.


def test_the_map_of_alibi_on_a_grid_is_its_slope_times_the_distance_of_cells() -> None:
    found = grid.bias_map(subject("alibi-2d"))
    assert found.values.shape == (4, 16, 16)  # as many cells as the drawn 256 tokens have
    for r in range(16):
        for c in range(16):
            hidden = r == 15 and c >= found.column
            expected = NAN if hidden else -math.hypot(15 - r, found.column - c) / 4
            assert found.values[0, r, c] == pytest.approx(expected, abs=1e-12, nan_ok=True)
    weights = grid.weight_map(subject("alibi-2d")).values
    powers = np.exp(found.values)
    first = np.exp(-SLOPES[:, 0] * math.hypot(16, 15 - found.column))  # the first token: at the end of the row above
    total = np.nansum(powers, axis=(1, 2)) + first
    np.testing.assert_allclose(weights, powers / total[:, None, None], atol=1e-14)


def test_products_on_a_grid_are_cosines_of_rows_and_of_columns() -> None:
    found = grid.product_map(subject("rope-2d"))
    theta = 100.0 ** (-np.arange(0, 16, 4) / 16)
    down, right = 5, 3
    expected = (np.cos(down * theta).sum() + np.cos(right * theta).sum()) / 8
    assert found.values[0, 15 - down, found.column - right] == pytest.approx(expected, abs=1e-12)


def test_the_vectors_of_cells_are_compared_with_that_of_the_query_in_the_middle_of_the_last_row() -> None:
    found = grid.embedding_map(subject("sinusoidal-2d", longest=96))
    rows, columns = grid_shape(96)
    assert found.values.shape == (1, rows, columns)
    assert found.column == columns // 2
    theta = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    for r, c in ((0, 0), (rows - 2, columns - 1), (rows - 1, 1)):
        expected = (np.cos((rows - 1 - r) * theta).sum() + np.cos((columns // 2 - c) * theta).sum()) / 32
        assert found.values[0, r, c] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(found.values[0, -1, found.column :]).all()


def test_means_by_offset_put_all_queries_of_a_row_at_one_place() -> None:
    rows, columns = 3, 4
    expected = np.random.default_rng(0).random((2, rows, 2 * columns - 1))
    weights = np.zeros((2, columns, rows * columns))
    for column in range(columns):
        for r in range(rows):
            for c in range(columns):
                weights[:, column, r * columns + c] = expected[:, r, columns - 1 + c - column]
    found = grid.by_offset(weights, rows, columns)
    expected[:, -1, columns - 1 :] = NAN  # the cell that a query predicts, and those after it
    np.testing.assert_allclose(found, expected)


# Views and pictures.


def test_the_longest_window_is_sixteen_training_windows_or_the_largest_that_is_drawn() -> None:
    assert InspectSettings().drawn(512) == 8192
    assert InspectSettings().drawn(10_000) == 131_072


def test_the_terms_of_a_run_are_those_of_its_first_layer() -> None:
    for layers, spec, drawn in (((1, 3), "learned", True), ((2,), "learned", False), ((1,), "rope", False)):
        assert all_views()["four terms"].applies(replace(subject(spec), trained=object(), layers=layers)) == drawn


@pytest.mark.parametrize(
    "spec",
    wide([*names(), "rope+window(9)", "alibi+ssmax", "sink(2)+window(5)+fox+t5", "cope|fire"]),
)
def test_every_view_that_applies_has_numbers_a_finding_and_a_record(spec: str) -> None:
    subjects = fresh_subjects(spec, CONFIG, 32, 128)
    for each in measure_views(subjects, [None] * len(subjects)):
        assert {view.name for view in all_views().values() if view.applies(each.subject)} == set(each.records)
        assert all(view["finding"] for view in each.record()["views"].values())


def test_every_speed_lies_inside_the_picture_of_speeds() -> None:
    """FoPE turns fewer pairs than RoPE: its panel is empty, and the axes of the others do not follow it."""
    for ratio in ([1.0, 0.5, 1 / 8], [1.0, 0.9], [1.0, 4.0], [1 / 64, 3.0]):
        panels = list(Figure().subplots(1, 2))
        omega = np.geomspace(1, 0.01, len(ratio))
        compared = rotary.SpeedRatio(omega, np.array(ratio), "rope", 16)
        draw_scaling(panels, [rotary.SpeedRatio(omega, np.zeros(0), "rope", 16), compared])
        assert [axes.axison for axes in panels] == [False, True]
        low, high = panels[1].get_ylim()
        assert low < min(ratio), ratio
        assert max(ratio) < high, ratio


def test_no_picture_of_subjects_side_by_side_lies_on_another() -> None:
    """Views of the first alone, of the second alone, and again of the first: these stand below each other."""
    first = {name: Missing("of the first") for name in ("table", "columns", "bias")}
    second = {name: Missing("of the second") for name in ("products", "wavelengths")}
    sheet = draw_sheet([Inspected(subject("rope"), dict(first)), Inspected(subject("alibi"), dict(second))])
    places = [tuple(np.round(axes.get_position().bounds, 6)) for axes in sheet.figure.axes]
    assert len(places) == len(set(places)) == 5
    lefts = [left for left, *_ in places]
    assert sorted(map(lefts.count, set(lefts))) == [2, 3]  # a column for each
