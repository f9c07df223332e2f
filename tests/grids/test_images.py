"""Corpora of images: from files to grey levels, the split, the fingerprint, and training batches."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from grid_images import noise, write
from PIL import Image

from poscli.grids.corpora import ImageSpec, grey_pixels, load_images
from poscli.grids.images import (
    GreyImage,
    ImageCorpus,
    ImageSplit,
    greys,
    image_corpus,
    patches,
    quantised,
    stretched,
    thresholds,
    training_grids,
)
from poscli.grids.tasks import Grid
from poscli.system.errors import DataError, UsageError

# ---- cells and levels


@pytest.mark.parametrize("levels", [2, 5, 32, 256])
@pytest.mark.parametrize("spread", [3, 60, 255])
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


def test_values_of_any_range_become_grey() -> None:
    assert stretched(np.array([[236, 1076]], np.int16)).tolist() == [[0, 255]]
    assert stretched(np.array([[7.5, 7.5]])).tolist() == [[0, 0]]
    assert stretched(np.array([[0, 32768, 65535]], np.uint16)).tolist() == [[0, 128, 255]]


# ---- specs


@pytest.mark.parametrize("text", ["images", "images:photos", "images?levels=16", "images:a/b?patch=4&levels=8"])
def test_a_spec_is_written_as_it_is_read(text: str) -> None:
    assert str(ImageSpec.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("images:", "written images[:FOLDER]"),
        ("text:file", "written images[:FOLDER]"),
        ("images?patch=0", "patch must be a whole number from 1 to 1024, not '0'"),
        ("images?patch=2.5", "not '2.5'"),
        ("images?levels=1", "levels must be a whole number from 2 to 256, not '1'"),
        ("images?levels=257", "not '257'"),
        ("images?level=16", "there is no option 'level': did you mean levels?"),
        ("images?patch", "not ''"),
    ],
)
def test_a_spec_that_means_nothing(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        ImageSpec.parse(text)
    assert says in str(caught.value)


def test_levels_and_their_greys_are_those_of_the_training_images() -> None:
    """Two levels of 0, 10, 20 and 30: what is bright in a held-out image moves no threshold and no grey."""
    dark, bright = np.array([[0, 10], [20, 30]], np.uint8), np.array([[200, 255], [15, 250]], np.uint8)
    for order in (1, -1):
        corpus = image_corpus("by hand", 2, [GreyImage(dark, "train"), GreyImage(bright, "valid")][::order])
        assert corpus.greys.tolist() == [5, 25]
        assert [image.tolist() for image in corpus.train.images] == [[[0, 0], [1, 1]]]
        assert [image.tolist() for image in corpus.valid.images] == [[[1, 1], [0, 1]]]
        assert corpus.describe()["valid"] == {"documents": 1, "bytes": 4}


def test_the_largest_image_is_that_with_the_largest_square() -> None:
    split = ImageSplit(tuple(np.zeros(shape, np.uint8) for shape in ((4, 9), (6, 5), (3, 30))))
    assert split.largest == (6, 5)
    assert split.cells == 36 + 30 + 90
    assert split.fits(4, 6).tolist() == [True, False, False]
    assert split.fits(5, 5).tolist() == [False, True, False]


# ---- the built-in images


@pytest.fixture(scope="module")
def shipped() -> ImageCorpus:
    return load_images("images")


@pytest.mark.parametrize("text", ["images", "images?patch=2", "images:FOLDER", "images:FOLDER?patch=4&levels=8"])
def test_the_task_reads_images_however_they_are_named(text: str, tmp_path: Path) -> None:
    spec = text.replace("FOLDER", str(write(tmp_path / "noise")))
    assert Grid.open(spec, "bytes").data.spec == spec


def test_the_images_that_matplotlib_ships(shipped: ImageCorpus) -> None:
    """6 x 5 blocks of the photograph, 3 x 4 of the elevation, 2 x 2 of the scan: every fourth is held out."""
    assert (len(shipped.train.images), len(shipped.valid.images)) == (46 - 11, 11)
    assert {image.shape for image in (*shipped.train.images, *shipped.valid.images)} == {(96, 96)}
    assert (shipped.vocab, shipped.start, len(shipped.greys)) == (33, 32, 32)
    assert max(int(image.max()) for image in shipped.train.images) == 31
    assert (np.diff(shipped.greys.astype(int)) > 0).all()
    counts = np.bincount(np.concatenate([image.ravel() for image in shipped.train.images]), minlength=32)
    assert counts.min() > 0.01 * counts.sum()  # 1/32 where grey values are not too coarse for that
    assert shipped.describe()["train"] == {"documents": 35, "bytes": 35 * 96 * 96}


def test_held_out_blocks_are_no_training_blocks(shipped: ImageCorpus) -> None:
    trained = {image.tobytes() for image in shipped.train.images}
    assert not any(image.tobytes() in trained for image in shipped.valid.images)
    assert load_images("images").fingerprint == shipped.fingerprint
    others = {load_images(spec).fingerprint for spec in ("images?levels=16", "images?patch=2")}
    assert len(others | {shipped.fingerprint}) == 3


# ---- folders


def test_a_folder_is_split_by_image_whatever_the_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    corpus = load_images(f"images:{folder}?levels=16")
    assert corpus.spec == f"images:{folder}?levels=16"
    assert len(corpus.train.images) + len(corpus.valid.images) == 12
    assert 1 <= len(corpus.valid.images) <= 2  # a tenth, but at most a fifth
    renamed = tmp_path / "b"
    renamed.mkdir()
    for n, file in enumerate(sorted(folder.iterdir())):
        file.rename(renamed / f"{99 - n}.png")
    assert load_images(f"images:{renamed}?levels=16").fingerprint == corpus.fingerprint


def test_a_changed_pixel_of_any_image_changes_the_fingerprint(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    seen = {load_images(f"images:{folder}").fingerprint}
    for n in range(12):
        image = noise(n)
        image[-1, -1] ^= 1
        Image.fromarray(image).save(folder / f"{n}.png")
        seen.add(load_images(f"images:{folder}").fingerprint)
    assert len(seen) == 13


def test_a_wide_image_and_a_high_one_of_the_same_cells_differ(tmp_path: Path) -> None:
    for name, shape in (("a", (4, 9)), ("b", (9, 4))):
        write(tmp_path / name, 3)
        Image.fromarray(noise(7, 6, 6).reshape(shape)).save(tmp_path / name / "own.png")
    assert load_images(f"images:{tmp_path}/a").fingerprint != load_images(f"images:{tmp_path}/b").fingerprint


@pytest.mark.parametrize(
    ("kind", "suffix", "expected"),
    [
        ("uint8", "png", [[10, 30], [20, 10]]),  # as it is
        ("uint16", "png", [[0, 255], [128, 0]]),  # deeper values by their own range
        ("int32", "tif", [[0, 255], [128, 0]]),
        ("float32", "tif", [[0, 255], [128, 0]]),
    ],
)
def test_values_of_more_than_8_bits_are_scaled_by_their_own_range(
    kind: str, suffix: str, expected: list[list[int]], tmp_path: Path
) -> None:
    values = np.array([[10, 30], [20, 10]]) * (1 if kind == "uint8" else 100)
    Image.fromarray(values.astype(kind)).save(tmp_path / f"own.{suffix}")
    assert grey_pixels(tmp_path / f"own.{suffix}").tolist() == expected


def test_colour_depth_and_transparency_become_grey(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 4)
    Image.fromarray(np.stack([noise(9)] * 3, axis=2)).save(folder / "colour.png")
    Image.fromarray(noise(9).astype(np.uint16) * 257).save(folder / "deep.png")
    Image.fromarray(noise(8)).convert("P").save(folder / "palette.gif")
    corpus = load_images(f"images:{folder}?levels=256")
    assert len(corpus.train.images) + len(corpus.valid.images) == 6  # deep and colour are one image: a copy


def test_files_that_are_no_images_are_named_and_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "a")
    (folder / "README.txt").write_text("no image")
    (folder / "cut.png").write_bytes((folder / "0.png").read_bytes()[:200])
    Image.fromarray(noise(0, 3, 3)).save(folder / "small.png")
    load_images(f"images:{folder}?patch=4")
    said = capfd.readouterr().err
    assert all(
        name in said for name in ("README.txt (no image)", "cut.png", "small.png (smaller than a patch of 4 x 4")
    )
    assert said.count("\n") == 1


def test_names_that_a_terminal_obeys_are_shown_as_escapes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "a", 3)
    (folder / "\x1b[31mred.txt").write_text("no image")
    load_images(f"images:{folder}")
    assert "\\x1b[31mred.txt (no image)" in capfd.readouterr().err
    with pytest.raises(UsageError, match="has the character"):
        load_images(f"images:{folder}\x1b[31m")


def test_copies_count_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "a", 4)
    (folder / "again.png").write_bytes((folder / "0.png").read_bytes())
    corpus = load_images(f"images:{folder}")
    assert len(corpus.train.images) + len(corpus.valid.images) == 4
    assert "dropped 1 image" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ((), "holds no file"),
        (("a.txt", "b.csv"), "holds no image in 2 files"),
        (("one.png",), "holds one image, and one more is needed"),
    ],
)
def test_folders_without_enough_images(tmp_path: Path, files: tuple[str, ...], says: str) -> None:
    for name in files:
        if name.endswith(".png"):
            Image.fromarray(noise(0)).save(tmp_path / name)
        else:
            (tmp_path / name).write_text("text")
    with pytest.raises(DataError) as caught:
        load_images(f"images:{tmp_path}")
    assert says in str(caught.value)
    with pytest.raises(DataError, match="no file, no folder and no pattern"):
        load_images(f"images:{tmp_path}/nowhere")


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
    drawn = [tuple(row) for step in range(40) for row in
             training_grids(split, shape=shape, size=100, seed=1, step=step).tolist()]  # fmt: skip
    assert set(drawn) == set(expected)
    counts = np.array([drawn.count(each) for each in expected])
    mean = len(drawn) / len(expected)
    # Chi-square with n - 1 degrees: mean n - 1, variance 2 (n - 1); five standard deviations.
    degrees = len(expected) - 1
    assert ((counts - mean) ** 2 / mean).sum() < degrees + 5 * (2 * degrees) ** 0.5


def test_a_batch_is_a_pure_function_of_seed_and_step(shipped: ImageCorpus) -> None:
    draws = [
        training_grids(shipped.train, shape=(16, 16), size=4, seed=seed, step=step).tolist()
        for seed, step in ((0, 5), (0, 5), (0, 6), (1, 5))
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0] != draws[3]
    assert np.array(draws[0]).shape == (4, 256)
    smaller = training_grids(shipped.train, shape=(16, 16), size=2, seed=0, step=5).tolist()
    assert np.array(smaller).shape == (2, 256)
