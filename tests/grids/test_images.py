"""Images by hand: levels, greys and cells, the split and fingerprint of a folder, and training batches.

What is read, printed and refused of images is a whole text of test_snapshots_images.py.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from grid_images import noise, write
from PIL import Image

from poscli.grids.corpora import blocks, load_images
from poscli.grids.images import (
    GreyImage,
    ImageSplit,
    greys,
    image_corpus,
    patches,
    quantised,
    thresholds,
    training_grids,
)


@pytest.mark.parametrize("levels", [2, 5, 256])
@pytest.mark.parametrize("spread", [3, 255])
def test_levels_are_quantiles_of_all_cells(levels: int, spread: int) -> None:
    """Threshold k is element k n / levels of n sorted cells; a level is a number of thresholds reached."""
    pictures = [np.minimum(noise(n, 9, 11), spread) for n in range(4)]
    ordered = sorted(np.concatenate([p.ravel() for p in pictures]).tolist())
    bounds = [ordered[k * len(ordered) // levels] for k in range(1, levels)]
    assert thresholds(pictures, levels).tolist() == bounds
    expected = [[sum(int(cell) >= bound for bound in bounds) for cell in row] for row in pictures[0]]
    assert quantised(pictures[0], np.array(bounds)).tolist() == expected


def test_the_grey_of_a_level_is_the_mean_of_its_cells() -> None:
    pictures = [noise(n, 20, 20) for n in range(3)]
    bounds = thresholds(pictures, 8)
    everything = np.concatenate([p.ravel() for p in pictures])
    level = (everything[:, None] >= bounds).sum(axis=1)
    means = [everything[level == n].mean() for n in range(8)]
    assert np.abs(greys(pictures, bounds) - np.array(means)).max() <= 0.5 + 1e-9


def test_cells_are_means_of_patches_and_what_is_left_over_goes() -> None:
    image = noise(0, 11, 14)
    expected = [[image[r : r + 3, c : c + 3].mean() for c in range(0, 12, 3)] for r in range(0, 9, 3)]
    assert np.abs(patches(image, 3) - np.array(expected)).max() <= 0.5
    assert (patches(image, 1) == image).all()
    assert patches(image, 12).size == 0


def test_a_block_at_the_right_or_below_has_at_least_80_cells_on_a_side() -> None:
    for shape, expected in (((175, 176), [(96, 96), (96, 80)]), ((80, 79), []), ((80, 200), [(80, 96), (80, 96)])):
        assert [block.shape for block in blocks(np.zeros(shape, np.uint8))] == expected


def test_levels_and_their_greys_are_those_of_the_training_images() -> None:
    """Two levels of 0, 10, 20 and 30: what is bright in a held-out image moves no threshold and no grey."""
    dark, bright = np.array([[0, 10], [20, 30]], np.uint8), np.array([[200, 255], [15, 250]], np.uint8)
    for order in (1, -1):
        corpus = image_corpus("by hand", 2, [GreyImage(dark, "train"), GreyImage(bright, "valid")][::order])
        assert corpus.greys.tolist() == [5, 25]
        assert [image.tolist() for image in corpus.train.images] == [[[0, 0], [1, 1]]]
        assert [image.tolist() for image in corpus.valid.images] == [[[1, 1], [0, 1]]]


def test_the_largest_image_is_that_with_the_largest_square() -> None:
    split = ImageSplit(tuple(np.zeros(shape, np.uint8) for shape in ((4, 9), (6, 5), (3, 30))))
    assert split.largest == (6, 5)
    assert split.fits(4, 6).tolist() == [True, False, False]
    assert split.fits(5, 5).tolist() == [False, True, False]


def test_the_images_that_matplotlib_ships() -> None:
    """6 x 5 blocks of the photograph, 3 x 4 of the elevation, 2 x 2 of the scan: 11 are scored, 4 for tuning."""
    shipped = load_images("images")
    trained = {image.tobytes() for image in shipped.train.images}
    held = [image.tobytes() for split in (shipped.valid, shipped.tune) for image in split.images]
    assert (len(trained), len(shipped.valid.images), len(shipped.tune.images)) == (31, 11, 4)
    assert len({*trained, *held}) == 46
    splits = (shipped.train, shipped.valid, shipped.tune)
    assert {image.shape for split in splits for image in split.images} == {(96, 96)}
    assert (shipped.vocab, shipped.start, len(shipped.greys)) == (33, 32, 32)
    assert (np.diff(shipped.greys.astype(int)) > 0).all()
    counts = np.bincount(np.concatenate([image.ravel() for image in shipped.train.images]), minlength=32)
    assert counts.min() > 0.01 * counts.sum()  # 1/32 where grey values are not too coarse for that
    assert shipped.describe()["train"] == {"documents": 31, "bytes": 31 * 96 * 96}
    assert load_images("images").fingerprint == shipped.fingerprint


# ---- folders


def test_a_fingerprint_is_that_of_all_pixels_and_of_nothing_else(tmp_path: Path) -> None:
    folder, renamed = write(tmp_path / "a"), tmp_path / "b"
    first = load_images(f"images:{folder}")
    assert [len(split.images) for split in (first.train, first.valid, first.tune)] == [8, 3, 1]
    renamed.mkdir()
    for n, file in enumerate(sorted(folder.iterdir())):
        (renamed / f"{99 - n}.png").write_bytes(file.read_bytes())
    assert load_images(f"images:{renamed}").fingerprint == first.fingerprint
    seen = {
        first.fingerprint,
        *(load_images(f"images:{folder}?{part}").fingerprint for part in ("levels=16", "patch=2")),
    }
    for n in range(12):
        image = noise(n)
        image[-1, -1] ^= 1
        Image.fromarray(image).save(folder / f"{n}.png")
        seen.add(load_images(f"images:{folder}").fingerprint)
    for shape in ((30, 40), (40, 30)):  # the same pixels in the same order
        Image.fromarray(noise(7, *shape)).save(folder / "0.png")
        seen.add(load_images(f"images:{folder}").fingerprint)
    assert len(seen) == 1 + 2 + 12 + 2


# ---- batches

FORMS = (  # the symmetries of the square, without numpy's rotations
    lambda a: a, lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: a[::-1, ::-1],
    lambda a: a.T, lambda a: a.T[::-1], lambda a: a.T[:, ::-1], lambda a: a.T[::-1, ::-1],
)  # fmt: skip


@pytest.mark.parametrize(("shape", "forms"), [((2, 2), 8), ((2, 3), 4)])
def test_batches_hold_every_sub_grid_in_every_symmetry_equally_often(shape: tuple[int, int], forms: int) -> None:
    """Two images have 2 + 6 (3 x 3: four squares of 2 x 2; 3 x 4: six) places; a third is too small for any."""
    images = (np.arange(9).reshape(3, 3), 100 + np.arange(12).reshape(3, 4), 200 + np.arange(4).reshape(1, 4))
    split = ImageSplit(images)  # type: ignore[arg-type]
    rows, columns = shape
    expected = [
        tuple(form(image[r : r + rows, c : c + columns]).ravel().tolist())
        for image, form in itertools.product(images, FORMS[:forms])
        for r, c in itertools.product(range(image.shape[0] - rows + 1), range(image.shape[1] - columns + 1))
    ]
    assert len(set(expected)) == len(expected)
    batches = [training_grids(split, shape=shape, size=100, seed=1, step=step).tolist() for step in range(40)]
    drawn = [tuple(row) for batch in batches for row in batch]
    assert set(drawn) == set(expected)
    counts = np.array([drawn.count(each) for each in expected])
    mean = len(drawn) / len(expected)
    # Chi-square with n - 1 degrees: mean n - 1, variance 2 (n - 1); five standard deviations.
    degrees = len(expected) - 1
    assert ((counts - mean) ** 2 / mean).sum() < degrees + 5 * (2 * degrees) ** 0.5
