"""Images as grids of cells: pixels into cells, cells into grey levels, the corpus they make, and its training batches.

Numbers are whole, or single operations of float64, which all machines round alike: every machine gets the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poscli.data.build import StoredDocument, fingerprint, split_documents
from poscli.data.source import Part
from poscli.system.console import note
from poscli.system.errors import DataError
from poscli.system.text import counted

Cells = NDArray[np.uint8]  # [rows, columns]
GREYS = 256
VERSION = 1  # raise it when the cells or the levels of an image change
# Symmetries of the square by number: n quarter turns for 0 to 3, and for 4 to 7 mirrored ones. Those with an even
# number keep the rows of an oblong grid horizontal.
SYMMETRIES = 8


class GreyImage(NamedTuple):
    """The grey values of an image's cells, 0 to 255, and the split that it belongs to if the source says so."""

    cells: Cells
    part: Part | None = None


def stretched(values: NDArray[Any]) -> Cells:
    """Values of any range as grey values: the smallest becomes 0, the largest 255; values that are all equal become 0.

    >>> stretched(np.array([[-5, 0, 5]])).tolist()
    [[0, 128, 255]]
    """
    low, high = values.min(), values.max()
    if low == high:
        return np.zeros(values.shape, dtype=np.uint8)
    share = (values.astype(np.float64) - float(low)) / (float(high) - float(low))
    return np.floor(share * (GREYS - 1) + 0.5).astype(np.uint8)


def patches(pixels: Cells, size: int) -> Cells:
    """The mean of every patch of size x size pixels, halves rounded up; pixels left over at the right and below go.

    >>> patches(np.array([[0, 1, 9], [2, 3, 9]], dtype=np.uint8), 2).tolist()
    [[2]]
    """
    rows, columns = (extent // size for extent in pixels.shape)
    blocks = pixels[: rows * size, : columns * size].reshape(rows, size, columns, size)
    total, count = blocks.sum(axis=(1, 3), dtype=np.int64), size * size
    return ((2 * total + count) // (2 * count)).astype(np.uint8)


def thresholds(pictures: Iterable[Cells], levels: int) -> NDArray[np.int64]:
    """The smallest grey value of each level but the first, `[levels - 1]`: quantiles of the cells of all pictures.

    Every level then holds about equally many cells, unless one grey value is more frequent than that.

    >>> thresholds([np.array([[0, 0, 10, 20], [30, 40, 50, 60]], dtype=np.uint8)], 4).tolist()
    [10, 30, 50]
    """
    upto = _counts(pictures).cumsum()
    return np.searchsorted(upto, upto[-1] * np.arange(1, levels) // levels, side="right")


def quantised(cells: Cells, bounds: NDArray[np.int64]) -> Cells:
    """The level of every cell: the number of thresholds that it reaches.

    >>> quantised(np.array([[9, 10, 60]], dtype=np.uint8), np.array([10, 30, 50])).tolist()
    [[0, 1, 3]]
    """
    return np.searchsorted(bounds, np.arange(GREYS), side="right").astype(np.uint8)[cells]


def greys(pictures: Iterable[Cells], bounds: NDArray[np.int64]) -> Cells:
    """The mean grey value of the cells of each level, `[levels]`, to draw it with; the threshold of an empty level."""
    counts, level = _counts(pictures), np.searchsorted(bounds, np.arange(GREYS), side="right")
    size = np.bincount(level, weights=counts, minlength=len(bounds) + 1)
    total = np.bincount(level, weights=counts * np.arange(GREYS), minlength=len(bounds) + 1)
    first = np.concatenate([[0], bounds]).clip(max=GREYS - 1)
    return np.where(size > 0, np.rint(total / np.maximum(size, 1)), first).astype(np.uint8)


def _counts(pictures: Iterable[Cells]) -> NDArray[np.int64]:
    """The number of cells with each grey value, `[GREYS]`."""
    return sum((np.bincount(cells.ravel(), minlength=GREYS) for cells in pictures), np.zeros(GREYS, np.int64))


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Images of one split; each is a document."""

    images: tuple[Cells, ...]  # the level of each cell, from 0: [rows, columns]

    @cached_property
    def shapes(self) -> NDArray[np.int64]:
        """The rows and columns of each image, `[images, 2]`."""
        return np.array([image.shape for image in self.images], dtype=np.int64).reshape(-1, 2)

    @property
    def cells(self) -> int:
        """The number of cells of all images."""
        return int(self.shapes.prod(axis=1).sum())

    def fits(self, rows: int, columns: int) -> NDArray[np.bool_]:
        """Which images hold a grid of `rows` x `columns` cells, `[images]`."""
        return (self.shapes[:, 0] >= rows) & (self.shapes[:, 1] >= columns)

    @property
    def largest(self) -> tuple[int, int]:
        """The rows and columns of the image with the largest square in it."""
        rows, columns = self.shapes[self.shapes.min(axis=1).argmax()].tolist()
        return rows, columns


@dataclass(frozen=True, eq=False)
class ImageCorpus:
    """Images to train on, to score, and to choose recipes by. Equal fingerprints mean equal images, cell for cell."""

    spec: str  # canonical: equal corpora have equal specs
    fingerprint: str  # 16 hex digits of a SHA-256 over the images, their split and the thresholds of the levels
    greys: Cells  # the grey value of each level, `[levels]`
    train: ImageSplit
    valid: ImageSplit
    tune: ImageSplit  # never scored; it may have no images

    @property
    def start(self) -> int:
        """The token that opens a window."""
        return len(self.greys)

    @property
    def vocab(self) -> int:
        """Number of tokens in the vocabulary: the levels and `start`."""
        return len(self.greys) + 1

    def describe(self) -> dict[str, Any]:
        """The corpus in env.json and in `--json`; a cell counts as one byte."""
        splits = {"train": self.train, "valid": self.valid, "tune": self.tune}
        sizes = {name: {"documents": len(split.images), "bytes": split.cells} for name, split in splits.items()}
        return {"spec": self.spec, "fingerprint": self.fingerprint, "vocab": self.vocab, **sizes}


def image_corpus(spec: str, levels: int, pictures: Sequence[GreyImage]) -> ImageCorpus:
    """The corpus of a canonical spec: its pictures, split and quantised into grey levels.

    Of copies, one is kept. The thresholds of the levels come from the training images alone. DataError if no image is
    left to hold out.
    """
    digests = [
        hashlib.sha256(f"{picture.cells.shape}\n".encode() + picture.cells.tobytes()).digest() for picture in pictures
    ]
    stored = {digest: n for n, digest in enumerate(digests)}
    if copies := len(pictures) - len(stored):
        note(f"dropped {counted(copies, 'image')} of {spec}: exact copies of another")
    if len(stored) < 2:
        raise DataError(f"{spec} holds one image, and one more is needed to hold it out; add images")
    documents = [StoredDocument(digest, n, pictures[n].cells.size, pictures[n].part) for digest, n in stored.items()]
    parts = split_documents(documents)
    trained = [pictures[document.offset].cells for document in parts["train"]]
    bounds = thresholds(trained, levels)
    return ImageCorpus(
        spec,
        fingerprint(parts, f"images {VERSION} levels {bounds.tolist()}"),
        greys(trained, bounds),
        *(
            ImageSplit(tuple(quantised(pictures[document.offset].cells, bounds) for document in split))
            for split in parts.values()
        ),
    )


def training_grids(split: ImageSplit, *, shape: tuple[int, int], size: int, seed: int, step: int) -> NDArray[np.int64]:
    """The sub-grids that training reads at a step: levels in raster order, `[size, rows * columns]`.

    They are a pure function of split, seed and step. Each is drawn uniformly from all places of all images, and turned
    and mirrored by one of the 8 symmetries of the square, or, if `shape` is not a square, by one of the 4 that keep its
    shape. At least one image must hold a grid of this shape.
    """
    # Raw words of Philox, as in poscli/data/corpus.py: streams of steps never overlap, and numpy never changes them.
    words = np.random.Philox(key=seed, counter=step << 192).random_raw(2 * size)
    places = (split.shapes - shape + 1).clip(min=0)  # [images, 2]: in how many rows and columns a sub-grid may begin
    last = places.prod(axis=1).cumsum()
    drawn = (words[:size] % np.uint64(last[-1])).astype(np.int64)
    document = np.searchsorted(last, drawn, side="right")
    row, column = np.divmod(drawn - last[document] + places[document].prod(axis=1), places[document, 1])
    oblong = shape[0] != shape[1]
    symmetry = (words[size:] % np.uint64(SYMMETRIES // (1 + oblong))).astype(np.int64) * (1 + oblong)
    grids = [
        transformed(split.images[n][r : r + shape[0], c : c + shape[1]], s).ravel()
        for n, r, c, s in zip(document, row, column, symmetry, strict=True)
    ]
    return np.stack(grids).astype(np.int64)


def transformed(grid: Cells, symmetry: int) -> Cells:
    """A grid after the symmetry of a number: quarter turns, then mirrored left to right from 4 on.

    >>> [transformed(np.array([[1, 2], [3, 4]], np.uint8), s).ravel().tolist() for s in (0, 1, 2, 4, 6)]
    [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [2, 1, 4, 3], [3, 4, 1, 2]]
    """
    turned = np.rot90(grid, symmetry % 4)
    return np.fliplr(turned) if symmetry >= 4 else turned
