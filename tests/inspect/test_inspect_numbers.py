"""The numbers behind the pictures of encodings, against closed forms and brute force that share no code with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toys import wide

from poscli.config.run import ModelConfig
from poscli.encodings import names
from poscli.equation import Unsupported
from poscli.grids import views as grid
from poscli.inspect import absolute, probe, rotary, terms
from poscli.inspect.numbers import Missing
from poscli.inspect.subject import FRESH, RANDOM, Subject, constant_operands, fresh_subjects
from poscli.inspect.views import all_views, measure_views

LENGTH, LONGEST = 64, 1024
CONFIG = ModelConfig(layers=2, width=64, heads=4, mlp=64)  # heads of 16 channels
UNIT = 2.0**-52


def subject(spec: str, length: int = LENGTH, longest: int = LONGEST, config: ModelConfig = CONFIG) -> Subject:
    (found,) = fresh_subjects(spec, config, length, longest)
    return found


def half_of(weights: list[float]) -> int:
    """By a loop: how many of the first weights hold half of the whole."""
    total, so_far = math.fsum(weights), 0.0
    for n, weight in enumerate(weights):
        so_far += weight
        if so_far >= total / 2 * (1 - 1e-9):
            return n + 1
    raise AssertionError("weights are not negative")


# The linear map from one position to another.


@pytest.mark.parametrize("k", [1, 4, 30])
def test_the_map_of_sinusoids_is_a_rotation_of_neighbouring_channels_by_their_angles(k):
    found = absolute.shift_map(subject("sinusoidal"), k)
    expected = np.zeros((64, 64))
    for m in range(32):
        angle = k / 10000 ** (2 * m / 64)
        cos, sin = math.cos(angle), math.sin(angle)  # (sin a, cos a) M = (sin(a + angle), cos(a + angle))
        expected[2 * m : 2 * m + 2, 2 * m : 2 * m + 2] = [[cos, -sin], [sin, cos]]
    np.testing.assert_allclose(found.map, expected, atol=1e-10)
    assert found.error < 1e-10
    assert found.from_rotation < 1e-10
    assert found.off_blocks < 1e-10
    assert found.rank == 64
    assert "rotation of pairs" in found.finding


def test_no_map_fits_random_rows():
    found = absolute.shift_map(subject("learned", length=256))
    assert found.error > 0.5
    assert "No linear map" in found.finding


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e15])
def test_a_map_that_stretches_is_no_rotation(size):
    rows = size * 1.01 ** np.arange(400)[:, None] * np.array([[1.0, 2.0]])
    found = absolute.fitted(rows[:-1], rows[1:], 1)
    assert found.rank == 1
    assert found.error < 1e-12
    assert found.from_rotation == pytest.approx(1.01**2 - 1, rel=1e-9)
    assert "no rotation" in found.finding


# Tables of positions.


def test_products_of_sinusoids_are_sums_of_cosines_wherever_they_are_taken():
    found = absolute.products(subject("sinusoidal"))
    theta = 10000 ** (-np.arange(0, 64, 2) / 64)
    expected = [np.cos(d * theta).mean() for d in found.distances]
    np.testing.assert_allclose(found.mean, expected, atol=1e-11)
    np.testing.assert_allclose(found.high - found.low, 0, atol=1e-11)
    assert "distance alone" in found.finding


def test_wavelengths_of_sinusoids_are_those_of_the_paper():
    found = absolute.wavelengths(subject("sinusoidal", longest=2048))
    expected = np.repeat(2 * math.pi * 10000 ** (np.arange(0, 64, 2) / 64), 2)
    # A wave of which the table shows a small part is told from its curvature, the square of that part, which rounding
    # of the energy hides: the longest wavelength is 30 times the table.
    np.testing.assert_allclose(found.found.wavelengths, expected, rtol=2e-3)
    np.testing.assert_allclose(found.found.wavelengths[:32], expected[:32], rtol=1e-6)
    assert found.repeats is None


def test_noise_has_no_wavelength():
    noise = np.random.default_rng(0).standard_normal((256, 5))
    assert not len(absolute.frequencies(noise).wavelengths)


def test_a_constant_column_has_no_end_of_its_wave():
    assert np.isinf(absolute.frequencies(np.ones((64, 1))).wavelengths).all()


def test_a_table_that_repeats_has_the_period_of_its_rows():
    rows = np.random.default_rng(0).standard_normal((12, 7))
    assert absolute.period(np.tile(rows, (5, 1))) == 12
    assert absolute.period(np.arange(50.0)[:, None]) is None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sinusoidal", absolute.ADDED),
        ("learned", absolute.ADDED),
        ("sinusoidal(combine=concat)", absolute.MAPPED),
        ("sinusoidal(combine=multiply)", absolute.MIXED),
        ("complex", absolute.MIXED),
        ("sinusoidal+rope", absolute.ADDED),
    ],
)
def test_how_positions_join_the_embedding_is_measured(spec, expected):
    assert absolute.how_joined(subject(spec).encoding) == expected


def test_the_table_is_the_papers():
    rows = absolute.first_rows(subject("sinusoidal")).rows
    assert rows[7, 10] == pytest.approx(math.sin(7 / 10000 ** (10 / 64)), abs=1e-14)
    assert rows[7, 11] == pytest.approx(math.cos(7 / 10000 ** (10 / 64)), abs=1e-14)


def test_columns_of_whole_turns_are_orthogonal():
    turns = np.arange(64)[:, None] * 2 * np.pi * np.array([1, 2, 3]) / 64
    made = absolute.Gram(np.corrcoef(np.concatenate([np.sin(turns), np.cos(turns)], axis=1).T))
    assert "nearly orthogonal" in made.finding
    found = absolute.gram(subject("sinusoidal")).cosines
    np.testing.assert_allclose(np.diag(found), 1, atol=1e-12)
    p = np.array([math.sin(n) for n in range(LENGTH)]), np.array([math.cos(n) for n in range(LENGTH)])
    assert found[0, 1] == pytest.approx(p[0] @ p[1] / math.sqrt((p[0] @ p[0]) * (p[1] @ p[1])), abs=1e-12)


# Rotary encodings.


@pytest.mark.parametrize("spec", ["rope", "rope(layout=interleaved)", "rope(base=500)", "grape", "xpos"])
def test_angular_frequencies_are_measured_to_rounding(spec):
    base = 500 if "500" in spec else 10000
    found = rotary.turning(subject(spec))
    # An eigenvalue of a rotation is off by a few units of rounding, which is an angle of that size.
    np.testing.assert_allclose(found.omega, base ** (-np.arange(0, 16, 2) / 16), atol=1e-12)
    assert found.still == 0


def test_the_speeds_of_pope_and_of_fractions_are_measured_too():
    np.testing.assert_allclose(rotary.turning(subject("pope")).omega, 10000 ** (-np.arange(16) / 16), atol=1e-11)
    half = rotary.turning(subject("rope(fraction=0.5)"))
    np.testing.assert_allclose(half.omega, 10000 ** (-np.arange(0, 8, 2) / 8), atol=1e-12)
    assert half.still == 8


def test_the_decay_of_rope_is_the_sum_of_cosines():
    found = rotary.decay(subject("rope"))
    theta = 10000 ** (-np.arange(0, 16, 2) / 16)
    expected = np.array([np.cos(d * theta).mean() for d in range(LONGEST)])
    np.testing.assert_allclose(found.ones, expected, atol=1e-11)
    assert (found.low <= found.mean).all()
    assert (found.mean <= found.high).all()
    # Over random q every pair counts as much as any other: the mean is the same sum but for the error of the sample.
    assert np.abs(found.mean - expected).mean() < 0.2


def test_new_angles_begin_where_a_pair_has_not_turned_once():
    found = rotary.turning(subject("rope"))
    theta = 10000 ** (-np.arange(0, 16, 2) / 16)
    assert found.new_angles().tolist() == (theta * LENGTH < 2 * math.pi).tolist()


def test_scaling_is_measured_as_a_ratio_of_speeds():
    rope, linear = subject("rope"), subject("rope-linear(factor=4)")
    found = rotary.scaling(linear, rope)
    np.testing.assert_allclose(found.ratio, 0.25, atol=1e-8)
    assert found.new_from == 4 * LENGTH
    yarn = rotary.scaling(subject("yarn(factor=4)"), rope)
    assert yarn.ratio[0] == pytest.approx(1, abs=1e-9)
    assert yarn.ratio[-1] == pytest.approx(0.25, abs=1e-8)
    assert rotary.scaling(rope, rope).finding == "Every pair turns as fast as in rope"


def test_scaling_that_follows_the_length_meets_no_new_angle():
    found = rotary.turning(subject("rope-linear"))
    np.testing.assert_allclose(found.omega / found.omega_in_training, LENGTH / LONGEST, rtol=1e-8)
    assert not found.new_angles().any()


# Biases and attention by distance.


def test_alibi_is_a_line_per_head_with_the_slopes_of_the_paper():
    found = terms.bias(subject("alibi"))
    assert found.straight
    for head, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
        assert found.curves.values[head].tolist() == [-slope * d for d in range(LONGEST)]
    assert found.finding == "A line per head: 0.25 to 0.00391 less per token"


def test_the_buckets_of_t5_are_steps():
    found = terms.bias(subject("t5"))
    changes = np.flatnonzero((np.diff(found.curves.values, axis=1) != 0).any(axis=0)) + 1
    # 16 distances have a bucket each; 16 more buckets begin where 16 (128 / 16)^(n / 16) is passed.
    expected = [*range(1, 17), *(math.ceil(16 * 8 ** (n / 16) - 1e-9) for n in range(1, 16))]
    assert changes.tolist() == sorted(set(expected))
    assert not found.straight
    assert found.flat_from() == expected[-1]


@pytest.mark.parametrize("spec", ["alibi", "kerple-log", "alibi+t5"])
def test_attention_by_the_bias_alone_is_the_softmax_over_distances(spec):
    of = subject(spec)
    found = terms.bias_alone(of)
    for head in range(4):
        values = [float(of.encoding.distance_bias(torch.tensor([d]))[head, 0]) for d in range(LONGEST)]
        powers = [math.exp(value - max(values)) for value in values]
        np.testing.assert_allclose(found.curves.values[head], np.array(powers) / math.fsum(powers), atol=1e-13)
        assert probe.half_distance(found.curves.values)[head] == half_of(powers)


def test_where_all_tokens_look_alike_alibi_gives_its_softmax():
    found = probe.weights_when_alike(subject("alibi"))
    for curves, keys in ((found.near, LENGTH), (found.far, LONGEST)):
        powers = np.exp(-np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None] * np.arange(keys))
        np.testing.assert_allclose(curves.values, powers / powers.sum(axis=1, keepdims=True), atol=1e-14)


def test_where_all_tokens_look_alike_rope_weighs_by_its_cosines():
    found = probe.weights_when_alike(subject("rope"))
    theta = 10000 ** (-np.arange(0, 16, 2) / 16)
    scores = np.array([2 * np.cos(d * theta).sum() / 4 for d in range(LONGEST)])  # q . k / sqrt(16)
    powers = np.exp(scores - scores.max())
    np.testing.assert_allclose(found.far.values, np.tile(powers / powers.sum(), (4, 1)), atol=1e-13)
    assert found.shown.merged().lines == ("all 4 heads",)


def test_equal_and_windowed_weights_are_described_as_such():
    assert probe.weights_when_alike(subject("none")).finding == f"Every one of {LONGEST} keys gets the same weight"
    found = probe.weights_when_alike(subject("window(100)"))
    np.testing.assert_allclose(found.far.values[0], [0.01] * 100 + [0.0] * (LONGEST - 100), atol=1e-15)
    assert probe.effective_keys(found.far.values) == pytest.approx([100] * 4)
    assert probe.share_beyond(found.far.values, LENGTH) == pytest.approx([0.36] * 4)


def test_mean_by_distance_equals_loops_over_texts_queries_and_keys():
    of = subject("alibi")
    draw = torch.Generator().manual_seed(0)
    whole = constant_operands(of.encoding, 40, queries=40)
    values = torch.rand(3, 4, 40, 40, generator=draw, dtype=torch.float64)

    def rows(_, part):
        start = round(float(part.pos_T[0]))
        return values[:, :, start : start + part.queries, : part.keys]

    x = whole.block(0, 40)
    x = type(x)(**(vars(x) | {"k_BHSD": x.k_BHSD.expand(3, -1, -1, -1)}))
    found = probe.mean_by_distance(of.encoding, x, rows)
    queries = range(40 - probe.QUERIES, 40)
    assert found.shape == (4, 40 - probe.QUERIES + 1)
    for head in range(4):
        for d in range(found.shape[1]):
            each = [float(values[b, head, i, i - d]) for b in range(3) for i in queries]
            assert found[head, d] == pytest.approx(math.fsum(each) / len(each), abs=1e-13)


def test_positions_and_temperatures_are_those_of_the_formulas():
    found = terms.positions_seen(subject("interpolated(factor=4)"))
    np.testing.assert_allclose(found.values[-1], found.at / 4)
    log = terms.temperature_by_order(subject("logn"))
    np.testing.assert_allclose(log.values[0], np.maximum(1, np.log(log.at + 1) / math.log(LENGTH)), atol=1e-12)


# Grids.


def test_the_map_of_alibi_on_a_grid_is_its_slope_times_the_distance_of_cells():
    found = grid.bias_map(subject("alibi-2d"))
    assert found.values.shape == (4, 16, 16)  # four times the cells of the 8 x 8 training grid
    for r in range(16):
        for c in range(16):
            hidden = r == 15 and c >= found.column
            expected = math.nan if hidden else -math.hypot(15 - r, found.column - c) / 4
            assert found.values[0, r, c] == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert "The same upwards as to the left" in found.finding
    weights = grid.weight_map(subject("alibi-2d")).values
    powers = np.exp(found.values)
    slopes = np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])
    first = np.exp(-slopes * math.hypot(16, 15 - found.column))  # the first token stands at the end of the row above
    total = np.nansum(powers, axis=(1, 2)) + first
    np.testing.assert_allclose(weights, powers / total[:, None, None], atol=1e-14)


def test_products_on_a_grid_are_cosines_of_rows_and_of_columns():
    found = grid.product_map(subject("rope-2d"))
    theta = 100.0 ** (-np.arange(0, 16, 4) / 16)
    down, right = 5, 3
    expected = (np.cos(down * theta).sum() + np.cos(right * theta).sum()) / 8
    assert found.values[0, 15 - down, found.column - right] == pytest.approx(expected, abs=1e-12)


def test_means_by_offset_put_all_queries_of_a_row_at_one_place():
    rows, columns = 3, 4
    draw = np.random.default_rng(0).random((2, rows, 2 * columns - 1))
    weights = np.zeros((2, columns, rows * columns))
    for column in range(columns):
        for r in range(rows):
            for c in range(columns):
                weights[:, column, r * columns + c] = draw[:, r, columns - 1 + c - column]
    found = grid.by_offset(weights, rows, columns)
    np.testing.assert_allclose(found[:, :-1], draw[:, :-1])
    np.testing.assert_allclose(found[:, -1, : columns - 1], draw[:, -1, : columns - 1])
    assert np.isnan(found[:, -1, columns - 1 :]).all()  # the cell that a query predicts, and those after it


# Subjects and views.


def test_a_hybrid_has_a_subject_for_each_kind_of_layer():
    found = fresh_subjects("rope|none|alibi", ModelConfig(layers=5, width=64, heads=4), LENGTH, LONGEST)
    assert [each.layers for each in found] == [(1, 4), (2, 5), (3,)]
    assert found[0].title == "rope|none|alibi on layers 1 and 4"
    assert [sorted(each.encoding.blanks) for each in found] == [["key", "query"], [], ["distance_bias"]]


def test_what_starts_flat_is_drawn_with_random_weights_and_says_so():
    assert subject("t5").weights == RANDOM
    assert subject("shaw").weights == RANDOM
    assert [subject(spec).weights for spec in ("alibi", "none", "fox", "learned")] == [FRESH] * 4


def test_a_view_that_is_not_defined_says_why():
    (found,) = measure_views([subject("learned")], [None])
    assert not any(isinstance(each, Missing) for each in found.found.values())
    assert found.found["weights"].far is None
    assert "position 1023 has no row" in found.found["weights"].reason

    def refuse(_: object) -> None:
        raise Unsupported("no such position")

    broken = subject("alibi")
    broken.encoding.distance_bias = refuse
    (found,) = measure_views([broken], [None])
    assert found.found["bias"].record() == {"unsupported": "no such position"}


@pytest.mark.parametrize(
    "spec",
    wide([*names(), "rope+window(9)", "alibi+ssmax", "sink(2)+window(5)+fox+t5", "cope|fire"]),
)
def test_every_view_that_applies_has_numbers_a_finding_and_a_record(spec):
    subjects = fresh_subjects(spec, CONFIG, 32, 128)
    for each in measure_views(subjects, [None] * len(subjects)):
        assert {view.name for view in all_views().values() if view.applies(each.subject)} == set(each.found)
        record = each.record()
        assert all(view["finding"] for view in record["views"].values())
