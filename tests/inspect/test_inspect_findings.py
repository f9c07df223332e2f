"""The sentences of pictures, from numbers made by hand, and numbers that loops and closed forms give."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from poscli.config.run import ModelConfig
from poscli.equation.operands import grid_shape
from poscli.grids import views as grid
from poscli.inspect import absolute, probe, rotary, terms
from poscli.inspect.absolute import Frequencies
from poscli.inspect.figures import draw_scaling
from poscli.inspect.gallery import SmallPicture, draw_contact_sheet
from poscli.inspect.numbers import Missing, Record, sampled
from poscli.inspect.session import draw_sheet
from poscli.inspect.settings import InspectSettings
from poscli.inspect.subject import Subject, constant_operands, fresh_subjects
from poscli.inspect.views import Inspected, all_views, measure_views
from poscli.verify.noise import draw

LENGTH, LONGEST = 32, 96
CONFIG = ModelConfig(layers=2, width=32, heads=4, mlp=64)  # heads of 8 channels
TURN = 2 * math.pi


def subject(spec: str, length: int = LENGTH, longest: int = LONGEST) -> Subject:
    (found,) = fresh_subjects(spec, CONFIG, length, longest)
    return found


def curves(*rows: list[float]) -> probe.Curves:
    return probe.Curves(tuple(f"head {n + 1}" for n in range(len(rows))), np.array(rows))


def of_products(mean: list[float], low: list[float], high: list[float]) -> absolute.Products:
    return absolute.Products(np.arange(len(mean)) * 1.0, np.array(mean), np.array(low), np.array(high), 4)


def of_waves(omega: list[float], share: list[float], repeats: int | None = None) -> absolute.Wavelengths:
    return absolute.Wavelengths(Frequencies(np.array(omega), np.array(share)), repeats, 64, 16)


def of_turning(omega: list[float], before: list[float], length: int = 10, longest: int = 100, **kind: bool) -> Record:
    return rotary.Turning(np.array(omega), np.array(before), 0, length, longest, **kind)


def of_decay(ones: list[float], length: int = 3) -> rotary.Decay:
    each = np.array(ones)
    return rotary.Decay(each, each, each, each, length)


def of_map(error: float, from_rotation: float, off_blocks: float) -> absolute.ShiftMap:
    return absolute.ShiftMap(np.eye(2), 4, error, from_rotation, off_blocks, 2)


def of_cells(rows: list[list[float]], column: int) -> grid.CellMaps:
    return grid.CellMaps(np.array([rows]), ("all heads",), column, (2, 2))


NAN = math.nan
WEIGHTS = [0.3, 0.3, 0.2, 0.2]
FINDINGS: list[tuple[Record, str]] = [
    (of_products([1, 0.8, 0.6, 0.4], [1, 0.3, 0.2, 0.1], [1, 0.9, 0.8, 0.5]),
     "P[i] . P[i+d] varies with the place by up to 0.60, and falls to a half 3 tokens away"),
    (of_products([1, 0.5, 0.5], [1, 0.5, 0.5], [1, 0.5, 0.5]),
     "P[i] . P[i+d] depends on the distance alone, and stays above half"),
    (of_waves([TURN / 4, TURN / 16, TURN / 32, 1.0], [1, 0.995, 0.99, 0.98]),
     "Wavelengths from 4.00 to 32 tokens, 1 of 3 longer than training windows; no row repeats within 64"),
    (of_waves([TURN / 4, 0.0], [1, 1], 4),
     "Wavelengths from 4.00 tokens on without end, 1 of 2 longer than training windows; rows repeat every 4"),
    (of_waves([1.0], [0.5]), "No channel has a wavelength, and no row repeats within 64"),
    (absolute.Gram(np.array([[1, 0.6, 0.1], [0.6, 1, -0.7], [0.1, -0.7, 1]])),
     "Columns overlap over a training window: |cos| above 0.5 for 67 % of pairs"),
    (absolute.Gram(np.array([[1, 0.2], [0.2, 1]])),
     "Columns are nearly orthogonal over a training window: |cos| 0.20 on average"),
    (terms.Bias(curves([0, -1, -2, -3, -4], [0, -0.5, -1, -1.5, -2]), 2), "A line per head: 1 to 0.5 less per token"),
    (terms.Bias(curves([0, -1, -2, -3, -4]), 2), "A line: -1 d"),
    (terms.Bias(curves([3, 3, 3], [5, 5, 5]), 2), "The bias is the same at every distance"),
    (terms.Bias(curves([0, -1, -3, -3, -3, -3], [0, -2, -2, -2, -2, -2]), 2),
     "Steps or curves, level from 2 tokens on"),
    (terms.Bias(curves([0, -1, -2, -2, -7, -7], [0, -2, -2, -2, -2, -2]), 2),
     "Between 0 and 5 tokens the bias changes by up to 7"),
    (terms.BiasAlone(curves([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]), 1),
     "By itself it puts half of the weight on the last 1 (head 1) to 2 keys (head 2), and 40 to 80 % beyond 1"),
    (probe.WeightCurves(curves(WEIGHTS), None, 4, 4), "Half of the weight lies on the last 2 keys"),
    (probe.WeightCurves(curves([0.7, 0.3]), curves(WEIGHTS), 2, 4),
     "Half of the weight lies on the last 1 of 2 keys, 2 of 4"),
    (probe.WeightCurves(curves([0.25] * 4), None, 4, 4), "Every one of 4 keys gets the same weight"),
    (probe.ScoreCurves(curves([0.0, -1, -2, -3]), None), "3 tokens back, the score differs by -3 (head 1)"),
    (probe.ScoreCurves(curves([0, 1, 2], [0, -1, -2], [0, 5, 4]), None),
     "2 tokens back, the score differs by -2 (head 2) to +4 (head 3)"),
    (probe.ScoreCurves(curves([0, -1, -math.inf]), None), "1 token back, the score differs by -1 (head 1)"),
    (probe.ScoreCurves(curves([0.0, -5e-5, -1e-4]), None), "2 tokens back, the score differs by -0.0001 (head 1)"),
    (probe.ScoreCurves(curves([0.0, 0, 0]), None), "The score does not change with the distance"),
    (of_turning([1.0, 0.5, 0.01], [1.0, 0.5, 0.01]),
     "2 of 3 pairs meet new angles beyond 10 tokens; wavelengths 6.28 to 628"),
    (of_turning([1.0, 0.05], [1.0, 0.5]), "No pair meets a new angle beyond 10 tokens; wavelengths 6.28 to 126"),
    (of_turning([], []), "No channel turns with the position"),
    (of_turning([1.0], [1.0], clipped=True),
     "Wavelengths 6.28 to 6 tokens; its own product of q and k decides which distances they turn by"),
    (of_decay([1, 0.6, 0.4, 0.7, 0.3]),
     "q . R q falls to a half 2 tokens away, and beyond 3 tokens reaches 0.70 again"),
    (of_decay([1, 0.6, 0.4]), "q . R q falls to a half 2 tokens away"),
    (of_decay([1, 0.9, 0.5]), "q . R q never falls to a half"),
    (rotary.SpeedRatio(np.array([1.0, 0.1]), np.array([1.0, 0.25]), "rope", 16),
     "1 of 2 pairs turn 0.25 times as fast as in rope; angles new to rope begin at 64 tokens"),
    (rotary.SpeedRatio(np.array([1.0, 0.1]), np.array([0.5, 0.25]), "rope", 16),
     "All pairs turn 0.25 to 0.5 times as fast as in rope; angles new to rope begin at 64 tokens"),
    (rotary.SpeedRatio(np.array([1.0]), np.zeros(0), "rope", 16), "Its pairs and those of rope cannot be compared"),
    (of_map(1e-9, 1e-9, 1e-9), "P[i+4] = P[i] M for all i; M is a rotation of pairs of channels, to 1e-09"),
    (of_map(1e-9, 2e-9, 0.5), "P[i+4] = P[i] M for all i; M is a rotation, to 2e-09"),
    (of_map(1e-9, 0.1, 0.5), "P[i+4] = P[i] M for all i; M is linear, but no rotation"),
    (of_map(0.25, 1e-9, 1e-9), "No linear map takes P[i] to P[i+4]: error 25.0 % on rows not fitted"),
    (of_cells([[0.1, 0.2, 0.3], [0.4, NAN, NAN]], 1),
     "Different upwards and to the left; all heads: cell above 0.2, far corner 0.1"),
    (of_cells([[0.1, 0.4, 0.3], [0.4, NAN, NAN]], 1),
     "The same upwards as to the left; all heads: cell above 0.4, far corner 0.1"),
    (terms.Terms(np.zeros((4, 2)), np.array([0.1, 0.2, 0.3, 0.4]), 0.0),
     "Scores of layer 1 tell keys apart by p-p 40 %, p-c 30 %, c-p 20 %, c-c 10 %"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "finding"), FINDINGS, ids=[type(record).__name__ for record, _ in FINDINGS])
def test_a_finding_says_what_the_numbers_are(record: Record, finding: str) -> None:
    assert record.finding == finding


def test_numbers_of_a_document_stand_beside_the_places_that_they_belong_to() -> None:
    x = np.arange(1000)
    document = sampled(x * 2, np.stack([x * 3.0, np.where(x < 500, x, math.inf)]), ["a", "b"])
    at = np.array(document["at"])
    assert (at[0], at[-1], len(at) <= 64) == (0, 1998, True)
    values = document["values"]
    assert isinstance(values, dict)
    assert values["a"] == (at * 1.5).tolist()
    assert values["b"] == [n / 2 if n < 1000 else None for n in at]


def test_the_document_of_turning_counts_turns_in_training() -> None:
    found = of_turning([0.5, 0.05], [1.0, 0.5]).record()
    assert found["turns_in_training"] == [10 / TURN, 5 / TURN]
    assert found["pairs_with_new_angles"] == 0
    assert of_turning([1.0, 0.5], [1.0, 0.5]).record()["pairs_with_new_angles"] == 1


def test_the_document_of_columns_and_of_weights() -> None:
    gram = absolute.Gram(np.array([[1, 0.6, 0.1], [0.6, 1, -0.7], [0.1, -0.7, 1]])).record()
    assert gram == {"mean": pytest.approx(1.4 / 3), "largest": 0.7, "above_half": pytest.approx(2 / 3)}
    weights = terms.BiasAlone(curves([0.5, 0.5, 0.0, 0.0], [0.25] * 4), 1).record()
    assert weights["keys_of_entropy"] == pytest.approx([2, 4])
    assert weights["half_of_the_weight_within"] == [1, 2]
    assert weights["weight_beyond_training_length"] == pytest.approx([0.5, 0.75])
    assert of_cells([[0.1, 0.2, 0.3], [0.4, NAN, NAN]], 1).record()["column_of_query"] == 1


# Measured numbers.


def test_products_of_a_learned_table_are_means_over_all_places() -> None:
    of = subject("learned")
    rows = of.encoding.table.numpy()
    found = absolute.products(of)
    size = (rows**2).sum(axis=1).mean()
    for n, d in enumerate(found.distances.astype(int)):
        each = [rows[i] @ rows[i + d] / size for i in range(LENGTH - d)]
        assert (found.mean[n], found.low[n], found.high[n]) == pytest.approx((np.mean(each), min(each), max(each)))


def test_a_table_shows_its_first_rows_and_knows_where_it_ends() -> None:
    learned, endless = absolute.first_rows(subject("learned")), absolute.first_rows(subject("sinusoidal", longest=400))
    assert (learned.known, len(learned.rows)) == (LENGTH, LENGTH)
    assert (endless.known, len(endless.rows)) == (400, 128)


@pytest.mark.parametrize("repeats", [2, 3, 4])
def test_a_period_is_seen_in_two_rounds(repeats: int) -> None:
    rows = np.random.default_rng(0).standard_normal((12, 7))
    assert absolute.period(np.tile(rows, (repeats, 1))) == 12


def test_columns_are_compared_over_the_positions_of_training() -> None:
    found = absolute.gram(subject("sinusoidal", longest=400)).cosines
    table = np.array([[math.sin(n), math.cos(n)] for n in range(LENGTH)])
    unit = table / np.sqrt((table**2).sum(axis=0))
    assert found[0, 1] == pytest.approx(unit[:, 0] @ unit[:, 1])


SCORED = ["alibi", "rope", "shaw", "t5", "cope", "alibi+window(9)", "transformer-xl", "sinusoidal", "fox", "kerple-log"]


@pytest.mark.parametrize("spec", SCORED)
def test_weights_are_the_softmax_of_the_scores_where_all_tokens_look_alike(spec: str) -> None:
    of = subject(spec)
    scores, weights = probe.scores_when_alike(of), probe.weights_when_alike(of)
    for found, expected in ((scores.near, weights.near), (scores.far, weights.far)):
        assert found is not None
        assert expected is not None
        assert (found.values[:, 0] == 0).all()
        powers = np.exp(found.values)
        np.testing.assert_allclose(powers / powers.sum(axis=1, keepdims=True), expected.values, atol=1e-12)
    assert scores.near.values.shape == (4, LENGTH)


def test_heads_read_the_whole_embedding_at_the_size_of_their_own_channels() -> None:
    """Queries and keys are (1 + P[i]) sqrt(D / W), and a score is q . k / sqrt(D)."""
    table = np.zeros((LENGTH, 32))
    for m in range(16):
        angle = np.arange(LENGTH) / 10000 ** (2 * m / 32)
        table[:, 2 * m], table[:, 2 * m + 1] = np.sin(angle), np.cos(angle)
    scores = (1 + table) @ (1 + table[-1]) * (8 / 32) / math.sqrt(8)
    powers = np.exp(scores[::-1] - scores.max())
    found = probe.weights_when_alike(subject("sinusoidal")).near
    np.testing.assert_allclose(found.values, np.tile(powers / powers.sum(), (4, 1)), atol=1e-12)


def test_projections_of_an_embedding_keep_the_mean_square_of_its_channels() -> None:
    of = subject("sinusoidal+rope")
    x = constant_operands(of.encoding, LENGTH, queries=LENGTH)
    embedded = of.encoding.embed(
        torch.ones(1, LENGTH, 32, dtype=torch.float64), torch.arange(LENGTH), torch.zeros(1, LENGTH)
    )
    ratio = float((x.v_BHSE**2).mean() / (embedded**2).mean())
    assert ratio == pytest.approx(1, abs=0.5)


def test_attention_by_the_bias_alone_ends_where_the_encoding_s_reach_does() -> None:
    found = terms.bias_alone(subject("alibi+window(10)")).curves.values
    powers = np.exp(-np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None] * np.arange(10))
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 5])
def test_means_by_distance_do_not_depend_on_how_many_rows_are_taken_at_a_time(
    rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding = subject("alibi").encoding
    x = constant_operands(encoding, 40, queries=40, token=draw(32, seed=1, dtype=torch.float64))
    x = replace(x, k_BHSD=draw(*x.k_BHSD.shape, seed=2, dtype=torch.float64))
    whole = probe.mean_by_distance(encoding, x)
    batch, heads, keys, width = x.k_BHSD.shape
    monkeypatch.setattr(probe, "PAIR_NUMBERS", rows_at_a_time * batch * heads * keys * width)
    np.testing.assert_allclose(probe.mean_by_distance(encoding, x), whole, atol=1e-14)


def test_the_decay_of_random_queries_is_that_of_their_pairs() -> None:
    """The product is the sum over pairs of |pair|^2 cos(d theta); one in twenty is left out at either end."""
    found = rotary.decay(subject("rope"))
    theta = 10000 ** (-np.arange(0, 8, 2) / 8)
    cosines = np.cos(np.arange(LONGEST)[:, None] * theta)
    each = []
    for seed in range(rotary.RANDOM_TOKENS):
        for q in draw(32, seed=seed, dtype=torch.float64).numpy().reshape(4, 8):
            squares = q[:4] ** 2 + q[4:] ** 2
            each.append(cosines @ squares / squares.sum())
    np.testing.assert_allclose(found.mean, np.mean(each, axis=0), atol=1e-11)
    np.testing.assert_allclose(found.low, np.quantile(each, 0.05, axis=0), atol=1e-11)
    np.testing.assert_allclose(found.high, np.quantile(each, 0.95, axis=0), atol=1e-11)


def test_speeds_are_compared_with_those_that_the_other_encoding_has_in_training() -> None:
    follows = subject("rope-linear")  # squeezed by 3 in the longest window, and not in training
    np.testing.assert_allclose(rotary.scaling(subject("rope"), follows).ratio, 1, atol=1e-8)
    np.testing.assert_allclose(rotary.scaling(follows, subject("rope")).ratio, LENGTH / LONGEST, atol=1e-8)
    np.testing.assert_allclose(rotary.turning(follows).turns, LENGTH * 10000 ** (-np.arange(4) / 4) / TURN, rtol=1e-8)


def test_encodings_that_turn_are_compared_with_the_first_of_them() -> None:
    made = [subject(spec) for spec in ("alibi", "rope(base=500)", "rope", "rope-linear(factor=4)")]
    found = [each.found.get("speeds") for each in measure_views(made, [None] * 4)]
    assert found[:2] == [None, None]
    assert [each.record()["compared_with"] for each in found[2:] if each] == ["rope(base=500.0)"] * 2


def test_positions_and_temperatures_are_told_at_the_ends_of_windows() -> None:
    told = terms.positions_seen(subject("interpolated(factor=4)")).finding
    assert told == "The last of 96 tokens is at position 23.8, the last of 32 at 7.75"
    log = terms.temperature_by_order(subject("logn"))
    expected = f"by 1 at {LENGTH} keys, by {math.log(LONGEST) / math.log(LENGTH):.3g} at {LONGEST}"
    assert log.finding == f"Scores are multiplied {expected}"
    assert (log.at[0], log.at[-1]) == (0, LONGEST - 1)


def test_the_longest_window_is_sixteen_training_windows_or_the_largest_that_is_drawn() -> None:
    assert InspectSettings().drawn(512) == 8192
    assert InspectSettings().drawn(10_000) == 131_072
    assert InspectSettings(max_len=700).drawn(512) == 700


def test_the_vectors_of_cells_are_compared_with_that_of_the_query_in_the_middle_of_the_last_row() -> None:
    found = grid.embedding_map(subject("sinusoidal-2d"))
    rows, columns = grid_shape(LONGEST)  # as many cells as the longest window has tokens
    assert found.values.shape == (1, rows, columns)
    assert found.column == columns // 2
    theta = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    for r, c in ((0, 0), (rows - 2, columns - 1), (rows - 1, 1)):
        expected = (np.cos((rows - 1 - r) * theta).sum() + np.cos((columns // 2 - c) * theta).sum()) / 16
        assert found.values[0, r, c] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(found.values[0, -1, found.column :]).all()


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


# Which pictures an encoding gets.

TABLES = {"table", "products", "wavelengths", "shift map", "columns"}
PICTURES = {
    "none": {"weights"},
    "rope": {"angles", "decay", "weights"},
    "sinusoidal": TABLES | {"weights"},
    "learned+alibi": TABLES | {"bias", "bias alone", "weights"},
    "cope": {"scores", "weights"},
    "shaw": {"scores", "weights"},
    "fox": {"scores", "weights"},
    "logn": {"temperature", "weights"},
    "rope+interpolated(factor=4)": {"angles", "decay", "positions", "weights"},
    "window(9)": {"weights"},
    "rope-2d": {"product map", "weight map"},
    "alibi-2d": {"bias map", "weight map"},
    "sinusoidal-2d": {"table", "columns", "embedding map", "weight map"},
}


@pytest.mark.parametrize("spec", PICTURES)
def test_pictures_are_those_of_the_blanks_that_an_encoding_fills(spec: str) -> None:
    of = subject(spec)
    assert {view.name for view in all_views().values() if view.applies(of)} == PICTURES[spec]
    of_run = {"map of the run"} if "2d" in spec else {"weights of the run"}
    terms_too = {"four terms"} if spec in ("sinusoidal", "learned+alibi") else set()
    in_a_run = replace(of, trained=object())
    assert {view.name for view in all_views().values() if view.applies(in_a_run)} == PICTURES[spec] | of_run | terms_too
    later = replace(in_a_run, layers=(2,))  # only the first layer reads the embedding
    assert {view.name for view in all_views().values() if view.applies(later)} == PICTURES[spec] | of_run


# Pictures.


def test_every_speed_lies_inside_the_picture_of_speeds() -> None:
    for ratio in ([1.0, 0.5, 1 / 8], [1.0, 0.9], [1.0, 4.0], [1 / 64, 3.0]):
        axes = Figure().subplots()
        draw_scaling([axes], [rotary.SpeedRatio(np.geomspace(1, 0.01, len(ratio)), np.array(ratio), "rope", 16)])
        low, high = axes.get_ylim()
        assert low < min(ratio), ratio
        assert max(ratio) < high, ratio


def test_speeds_of_other_pairs_have_an_empty_picture_beside_those_that_can_be_compared() -> None:
    """FoPE turns fewer pairs than RoPE: there is nothing to draw, and the others' axes do not follow the empty ones."""
    panels = list(Figure().subplots(1, 2))
    omega = np.geomspace(1, 0.01, 3)
    compared = rotary.SpeedRatio(omega, np.array([1.0, 0.5, 0.5]), "rope", 16)
    draw_scaling(panels, [rotary.SpeedRatio(omega, np.zeros(0), "rope", 16), compared])
    assert [axes.axison for axes in panels] == [False, True]
    assert panels[1].get_ylim() == (1 / 3, 1.5)
    draw_scaling(panels[:1], [rotary.SpeedRatio(omega, np.zeros(0), "rope", 16)])


def test_the_contact_sheet_draws_weights_as_multiples_of_equal_ones() -> None:
    """Each of 4 keys would get 1/4: the line of equal weights is the dotted one, that of a half is twice as high."""
    for weights, multiples in (([0.25] * 4, [1, 1, 1, 1]), ([0.5, 0.25, 0.125, 0.125], [2, 1, 0.5, 0.5])):
        found = Inspected(subject("none"), {"weights": probe.WeightCurves(curves(weights), None, 4, 4)})
        (axes,) = [
            each for each in draw_contact_sheet([SmallPicture("No position", "none", found)]).figure.axes if each.lines
        ]
        dotted, line = axes.lines
        assert list(np.asarray(dotted.get_ydata())) == [1, 1]
        np.testing.assert_allclose(np.asarray(line.get_ydata()), multiples)


def test_no_picture_of_subjects_side_by_side_lies_on_another() -> None:
    """Views of the first alone, of the second alone, and again of the first: these stand below each other."""
    first = {name: Missing("of the first") for name in ("table", "columns", "bias")}
    second = {name: Missing("of the second") for name in ("products", "wavelengths")}
    sheet = draw_sheet([Inspected(subject("rope"), dict(first)), Inspected(subject("alibi"), dict(second))])
    places = [tuple(np.round(axes.get_position().bounds, 6)) for axes in sheet.figure.axes]
    assert len(places) == len(set(places)) == 5
    lefts = [left for left, *_ in places]
    assert sorted(map(lefts.count, set(lefts))) == [2, 3]  # a column for each


# ---- maps and terms by hand


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
