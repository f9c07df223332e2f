"""Images for tests: files of noise, cells that are numbered, and levels for models of the toys' vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from poscli.grids.images import ImageCorpus, ImageSplit
from poscli.grids.tasks import Grid, GridText

START = 0  # no cell has this number


def noise(seed: int, rows: int = 40, columns: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, columns), dtype=np.uint8)


def write(folder: Path, count: int = 12, **shape: int) -> Path:
    """A folder of images of noise."""
    folder.mkdir(exist_ok=True)
    for n in range(count):
        Image.fromarray(noise(n, **shape)).save(folder / f"{n}.png")
    return folder


def numbered(*shapes: tuple[int, int]) -> ImageSplit:
    return ImageSplit(tuple(np.arange(1, rows * columns + 1).reshape(rows, columns) for rows, columns in shapes))


class Numbered(Grid):
    """The task grid on images whose levels are the numbers of their cells."""

    def __init__(self, *shapes: tuple[int, int]) -> None:
        split = numbered(*shapes)
        super().__init__(ImageCorpus("numbered", "0", np.zeros(1, np.uint8), split, split, split))

    def text(self, length: int) -> GridText:
        return GridText(self.data.valid, START, length)

    def unigram(self, tokens):
        return np.ones(tokens.shape)


def stripes(levels: int = 10) -> Grid:
    """Images of 9 x 12 cells of `levels` levels, for models of the toys' vocabulary: token 10 opens a window."""
    images = tuple(np.random.default_rng(n).integers(0, levels, (9, 12), dtype=np.uint8) for n in range(2))
    split = ImageSplit(images)
    return Grid(ImageCorpus("stripes", "0", np.arange(0, 250, 25, dtype=np.uint8), split, split, split))
