"""Windows of images against a brute-force reading of the definitions, and which lengths and images are refused.

Cells are numbered in raster order from 1, and each cell's level is its own number, so that a window says what it holds.
The windows cell by cell, and what is refused of them, are whole texts of tests/tasks/test_snapshots_tasks.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from grid_images import Numbered

from poscli.equation.operands import columns_of, grid_shape
from poscli.evaluation.plan import Measurement, Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.grids.images import ImageCorpus, ImageSplit
from poscli.grids.tasks import Grid
from poscli.system.errors import DataError, UsageError


def plan(*shapes: tuple[int, int], **changes) -> Plan:
    settings = {"train_length": 4, "max_len": 8, "tokens": 1000, "stride": 1} | changes
    return Plan(Numbered(*shapes), EvaluationSettings(**settings))


def test_a_grid_is_as_square_as_divisors_allow() -> None:
    for cells in range(1, 400):
        divided = [(a, cells // a) for a in range(1, cells + 1) if cells % a == 0]
        rows, columns = min(divided, key=lambda sides: abs(sides[1] - sides[0]))
        assert grid_shape(cells) == (min(rows, columns), max(rows, columns))
        assert columns_of(cells) == max(rows, columns)


def test_baselines_read_a_smaller_grid_that_ends_at_the_same_cell() -> None:
    """Crop at 8 cells is the model at 4; the mask of the last 4 tokens in raster order is of another model."""
    made = plan((4, 6))
    assert [one.file for one in made.measurements()] == ["4.parquet", "8.parquet", "8-window.parquet"]
    assert made.measurement(8, "crop") == Measurement(4, 0, "full")
    assert np.array_equal(made.windows("fixed", 8, 4), made.spans("fixed", 8))


@pytest.mark.parametrize("longest", [16, 32, 64])
def test_no_window_lies_outside_of_its_image(longest: int) -> None:
    """Also where a stride is read in several pieces, the first of which ends further to the left."""
    made = plan((9, 21), (4, 4), (4, 8), (8, 16), train_length=16, max_len=longest, stride=2)
    text = Numbered((9, 21), (4, 4), (4, 8), (8, 16)).text(longest)
    for measurement, spans in made.measurements().items():
        assert text.inside(spans, measurement.window, 0).all()


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
    windows = made.text(made.measurement(length, "full")).windows(spans, length)[:, 1:]
    cells = [(int(n), int(cell)) for n, row in zip(spans[:, 0], windows, strict=True) for cell in row]
    expected = {
        (n, r * width + c + 1)
        for n, (height, width) in enumerate(SHAPES)
        for r, c in itertools.product(range(height // 8 * 8), range(width // 16 * 16))
    }
    assert len(cells) == len(set(cells))
    assert set(cells) == expected
    assert len(expected) == (1 + 1 + 1) * 128


def test_a_guess_of_cells_knows_the_frequencies_of_the_training_images() -> None:
    """Two cells of level 0 and one each of 1 and 2, to each of five tokens of which one is added."""
    splits = [ImageSplit((np.array(cells, np.uint8),)) for cells in ([[0, 0], [1, 2]], [[3, 3], [3, 3]])]
    task = Grid(ImageCorpus("by hand", "0", np.zeros(4, np.uint8), *splits, splits[1]))
    assert np.exp(-task.unigram(np.array([[0, 1, 2, 3, 4]]))) * 9 == pytest.approx(np.array([[3, 2, 2, 1, 1]]))
    window = task.batch(size=1, length=4, seed=0, step=0).tokens
    assert window[0, 0] == 4  # the token that opens every window
    assert sorted(window[0, 1:].tolist()) == [0, 0, 1, 2]


# ---- what is refused


def test_images_that_are_too_small() -> None:
    task = Numbered((6, 20), (12, 9))
    task.check(72)  # 8 x 9
    with pytest.raises(DataError, match=r"no training image of 10 x 10.*its largest has 12 x 9: give --length 81"):
        task.check(100)
    with pytest.raises(DataError, match=r"length 64 is a grid of 8 x 8.* image of 9 x 9 .*6 x 6.*--max-len 36"):
        plan((7, 8), train_length=16, max_len=64)


@pytest.mark.parametrize(
    ("length", "default", "most"), [(256, 8, 16), (512, 16, 32), (64, 4, 8), (32, 4, 4), (8, 1, 1)]
)
def test_strides(length: int, default: int, most: int) -> None:
    assert Grid.strides(length) == (default, most)
    plan((64, 64), train_length=length, max_len=length, stride=most)
    refused = f"--stride {most + 1} must be between 1 and {most} .* leave it out for {default}"
    with pytest.raises(UsageError, match=refused):
        plan((64, 64), train_length=length, max_len=length, stride=most + 1)
