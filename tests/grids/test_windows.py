"""Windows of images: an image of 4 x 6 cells by hand, and larger ones against a brute-force reading of the definitions.

Cells are numbered in raster order from 1, and each cell's level is its own number, so that a window says what it holds.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from grid_images import START, Numbered, numbered

from poscli.equation.operands import columns_of, grid_shape
from poscli.evaluation.baseline import baseline
from poscli.evaluation.plan import Measurement, Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.grids.images import ImageCorpus, ImageSplit
from poscli.grids.tasks import Grid, GridText
from poscli.system.errors import DataError, UsageError


def plan(*shapes: tuple[int, int], **changes) -> Plan:
    return Plan(
        Numbered(*shapes),
        EvaluationSettings(**{"train_length": 4, "max_len": 8, "tokens": 1000, "stride": 1} | changes),
    )


def pairs(spans: np.ndarray) -> list[tuple[int, int]]:
    return [(int(document), int(end)) for document, end in spans]


@pytest.mark.parametrize("cells", range(1, 400))
def test_a_grid_is_as_square_as_divisors_allow(cells: int) -> None:
    rows, columns = min(
        ((a, cells // a) for a in range(1, cells + 1) if cells % a == 0), key=lambda s: abs(s[1] - s[0])
    )
    assert grid_shape(cells) == (min(rows, columns), max(rows, columns))
    assert columns_of(cells) == max(rows, columns)


# A training window is a grid of 2 x 2, the longest one of 2 x 4. The image:
#    1  2  3  4  5  6
#    7  8  9 10 11 12
#   13 14 15 16 17 18
#   19 20 21 22 23 24
BY_HAND = {
    ("nonoverlapping", 4): [8, 10, 20, 22],  # two of 2 x 2 in each of 2 x 4
    ("nonoverlapping", 8): [10, 22],  # columns 5 and 6 fill no grid of 2 x 4
    ("sliding", 4): [10, 11, 12, 16, 17, 18, 22, 23, 24],  # where a grid of 2 x 4 fits
    ("sliding", 8): [10, 11, 12, 16, 17, 18, 22, 23, 24],
    ("fixed", 4): [17, 18, 23, 24],  # where it leaves a row above and a column to its left
    ("fixed", 8): [17, 18, 23, 24],
}


@pytest.mark.parametrize(("protocol", "length"), BY_HAND)
def test_the_windows_of_a_protocol_on_4_x_6_cells(protocol: str, length: int) -> None:
    made = plan((4, 6))
    assert pairs(made.spans(protocol, length)) == [(0, end) for end in BY_HAND[protocol, length]]
    assert made.scored(protocol, length) == (length if protocol == "nonoverlapping" else 1)


def test_the_cells_of_windows_and_those_that_are_scored() -> None:
    text, spans = Numbered((4, 6)).text(8), np.array([[0, 10], [0, 17], [0, 24]])
    assert text.sizes.tolist() == [24]
    assert text.windows(spans, 4).tolist() == [[0, 3, 4, 9, 10], [0, 10, 11, 16, 17], [0, 17, 18, 23, 24]]
    assert text.windows(spans, 8).tolist() == [
        [0, 1, 2, 3, 4, 7, 8, 9, 10],
        [0, 8, 9, 10, 11, 14, 15, 16, 17],
        [0, 15, 16, 17, 18, 21, 22, 23, 24],
    ]
    assert text.targets(spans, 2).tolist() == [[9, 10], [16, 17], [23, 24]]
    assert text.targets(spans[:1], 8).tolist() == [[1, 2, 3, 4, 7, 8, 9, 10]]
    assert text.counts(spans, 2).all()


def test_baselines_read_a_smaller_grid_that_ends_at_the_same_cell() -> None:
    """Crop at 8 cells is the model at 4; the mask of the last 4 tokens in raster order is of another model."""
    made = plan((4, 6))
    assert [one.file for one in made.measurements()] == ["4.parquet", "8.parquet", "8-window.parquet"]
    assert made.measurement(8, "crop") == Measurement(4, 0, "full")
    assert baseline("window").changes_model(8, 4)
    spans = made.windows("fixed", 8, 4)
    assert pairs(spans) == pairs(made.spans("fixed", 8))


def test_windows_of_a_stride_that_does_not_divide_their_width_lie_inside() -> None:
    """Windows of 4 x 4 cells end in columns that are multiples of 3 from the fourth on: in 6, in rows 4 and 5."""
    text = GridText(numbered((5, 8)), START, 16)
    assert pairs(text.ends(3, 16)) == [(0, 3 * 8 + 6), (0, 4 * 8 + 6)]


def test_a_window_that_does_not_fit_is_never_read() -> None:
    text = Numbered((4, 6)).text(8)
    for end in (3, 9, 15):  # too high, and too far left
        with pytest.raises(AssertionError, match="outside of its image"):
            text.windows(np.array([[0, end]]), 8)


SHAPES = ((9, 21), (4, 4), (12, 17), (8, 16), (30, 8))
LENGTHS = (16, 32, 64, 128)  # 4 x 4, 4 x 8, 8 x 8, 8 x 16


@pytest.mark.parametrize("protocol", ["sliding", "fixed"])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_length_scores_the_same_cells_each_once(protocol: str, stride: int) -> None:
    made = plan(*SHAPES, train_length=16, max_len=128, stride=stride)
    margin = (1, stride) if protocol == "fixed" else (0, 0)
    expected = {
        (n, r, c + k)
        for n, (height, width) in enumerate(SHAPES)
        for r, c in itertools.product(range(1, height + 1), range(1, width + 1))
        for k in range(1 - stride, 1)
        if r >= 8 + margin[0] and c >= 16 + margin[1] and c % stride == 0
    }
    for length, variant in itertools.product(LENGTHS, ("full", "crop")):
        measurement = made.measurement(length, variant)
        text, spans = made.text(measurement), made.windows(protocol, length, measurement.window)
        piece = made.protocols[protocol].piece(made.settings, measurement.window)
        tokens = text.windows(spans, measurement.window)
        scored = [
            (int(n), *(int(x) + 1 for x in divmod(cell - 1, SHAPES[n][1])))
            for n, row in zip(spans[:, 0], tokens[:, -piece:], strict=True)
            for cell in row
        ]
        assert len(scored) == len(set(scored))
        assert set(scored) == expected
        assert (tokens[:, -piece:].ravel() == text.targets(spans, piece).ravel()).all()
        corners = {(n, *divmod(int(end) - 1, SHAPES[n][1])) for n, end in spans}
        rows, columns = grid_shape(measurement.window)
        assert all(r + 1 >= rows and c + 1 >= columns for _, r, c in corners)


@pytest.mark.parametrize("length", LENGTHS)
def test_nonoverlapping_windows_tile_the_segments(length: int) -> None:
    """Every length scores every cell of the drawn 8 x 16 segments once, of which images hold 2, 1 and 1."""
    made = plan(*SHAPES, train_length=16, max_len=128)
    spans = made.spans("nonoverlapping", length)
    rows, columns = grid_shape(length)
    cells = [(int(n), int(cell)) for n, end in spans for cell in made.text(made.measurement(length, "full")).windows(
        np.array([[n, end]]), length)[0, 1:]]  # fmt: skip
    expected = {
        (n, r * width + c + 1)
        for n, (height, width) in enumerate(SHAPES)
        for r, c in itertools.product(range(height // 8 * 8), range(width // 16 * 16))
    }
    assert len(cells) == len(set(cells))
    assert set(cells) == expected
    assert len(spans) * rows * columns == len(expected) == (1 + 1 + 1) * 128


def test_what_does_not_divide_a_segment_is_left_out_above_and_to_the_left() -> None:
    """In a grid of 3 x 3 one of 2 x 2 fits, at its bottom right."""
    made = plan((4, 4), ratios=(1, 2.25), max_len=9)
    assert pairs(made.spans("nonoverlapping", 9)) == pairs(made.spans("nonoverlapping", 4)) == [(0, 11)]
    assert made.task.text(4).windows(made.spans("nonoverlapping", 4), 4).tolist() == [[0, 6, 7, 10, 11]]


# ---- what is refused


@pytest.mark.parametrize(
    ("length", "near"),
    [(7, "6 (2 x 3) or 8 (2 x 4)"), (282, "280 (14 x 20) or 285 (15 x 19)"), (10, "9 (3 x 3) or 12")],
)
def test_a_length_whose_grid_is_a_strip_is_refused_with_near_ones(length: int, near: str) -> None:
    rows, columns = grid_shape(length)
    with pytest.raises(UsageError) as caught:
        Numbered((40, 40)).check(length)
    assert f"a window of {length} tokens is a grid of {rows} x {columns} cells" in str(caught.value)
    assert near in str(caught.value)


def test_a_guess_of_cells_knows_the_frequencies_of_the_training_images() -> None:
    """Two cells of level 0 and one each of 1 and 2, to each of five tokens of which one is added."""
    splits = [ImageSplit((np.array(cells, np.uint8),)) for cells in ([[0, 0], [1, 2]], [[3, 3], [3, 3]])]
    task = Grid(ImageCorpus("by hand", "0", np.zeros(4, np.uint8), *splits))
    assert np.exp(-task.unigram(np.array([[0, 1, 2, 3, 4]]))) * 9 == pytest.approx(np.array([[3, 2, 2, 1, 1]]))
    window = task.batch(size=1, length=4, seed=0, step=0).tokens
    assert window[0, 0] == 4  # the token that opens every window
    assert sorted(window[0, 1:].tolist()) == [0, 0, 1, 2]


def test_images_that_are_too_small() -> None:
    task = Numbered((6, 20), (12, 9))
    task.check(72)  # 8 x 9
    with pytest.raises(
        DataError, match=r"no training image of 10 x 10 cells.*its largest has 12 x 9: give --length 81"
    ):
        task.check(100)
    with pytest.raises(
        DataError, match=r"length 64 is a grid of 8 x 8.* held-out image of 9 x 9 .*6 x 6.*--max-len 36"
    ):
        plan((7, 8), train_length=16, max_len=64)


@pytest.mark.parametrize(
    ("length", "default", "most"), [(256, 8, 16), (512, 16, 32), (64, 4, 8), (32, 4, 4), (8, 1, 1)]
)
def test_strides(length: int, default: int, most: int) -> None:
    assert Grid.strides(length) == (default, most)
    plan((64, 64), train_length=length, max_len=length, stride=most)
    with pytest.raises(
        UsageError, match=f"--stride {most + 1} must be between 1 and {most} .* leave it out for {default}"
    ):
        plan((64, 64), train_length=length, max_len=length, stride=most + 1)


def test_lengths_whose_grids_do_not_nest_are_refused() -> None:
    with pytest.raises(UsageError, match=r"length 512 is a grid of 16 x 32 cells, which does not fit .* 24 x 24"):
        plan((64, 64), train_length=256, max_len=576, ratios=(1, 2, 2.25), stride=8)
    with pytest.raises(UsageError, match="a window of 282 tokens is a grid of 6 x 47 cells"):
        plan((64, 64), train_length=256, max_len=512, ratios=(1, 1.1), stride=8)
