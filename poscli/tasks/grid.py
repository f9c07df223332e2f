"""Images: predict every next cell of a grid, row by row.

A window of l tokens is a grid of `grid_shape(l)` cells, such as 16 x 16 for l = 256. The model reads a token that opens
the window and then all cells but the last, in raster order, and predicts the cells. So token t shows cell t - 1 and
predicts cell t. Attention measures distances from the cell that a query predicts to the cell that a key shows: the cell
above lies one row up and no column aside, in every column and on grids of any width. With one position per token, the
last cell of a row would carry the label of the next row's first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.data.images import GRAMMAR, ImageCorpus, ImageSplit, batch, load_images
from poscli.equation.grids import grid_shape
from poscli.system.errors import DataError, UsageError
from poscli.tasks.grid_text import GridText
from poscli.tasks.task import TASKS, Batch, Task

WIDEST = 2  # times as wide as high
PIECES_PER_WINDOW = 8  # a sliding window scores at most an eighth of its cells, so that each has most of it before it


@TASKS.register("grid")
class Grid(Task):
    """Every cell of an image is a target. Evaluation reads grids of 2, 4, ... times as many cells as in training."""

    summary = "predict the next cell of an image, row by row"
    protocols = ("nonoverlapping", "sliding", "fixed")
    length = 256
    axes = 2
    reads_text = False

    def __init__(self, data: ImageCorpus) -> None:
        self.data = data
        self.corpus, self.fingerprint, self.vocab = data.spec, data.fingerprint, data.vocab

    @classmethod
    def open(cls, corpus: str, tokenizer: str) -> Grid:
        if tokenizer != "bytes":
            raise UsageError(f"the task {cls.name} makes tokens of grey levels; leave out --tokenizer {tokenizer}")
        name = corpus.partition(":")[0].partition("?")[0]
        if name not in ("stdlib", "images"):  # stdlib is the default of --corpus, whatever the task
            raise UsageError(f"the corpus {corpus} is no images, and the task {cls.name} reads images: write {GRAMMAR}")
        return cls(load_images("images" if name == "stdlib" else corpus))

    @classmethod
    def strides(cls, length: int) -> tuple[int, int]:
        """Half a row, and a whole one; for grids of less than 8 rows, no more than an eighth of their cells."""
        columns, most = grid_shape(length)[1], max(1, length // PIECES_PER_WINDOW)
        return max(1, min(columns // 2, most)), min(columns, most)

    def batch(self, *, size: int, length: int, seed: int, step: int, segments: int = 1) -> Batch:
        cells = batch(self.data.train, shape=grid_shape(length), size=size, seed=seed, step=step)
        return Batch(np.concatenate([np.full((size, 1), self.data.start), cells], axis=1))

    def text(self, length: int) -> GridText:
        return GridText(self.data.valid, self.data.start, length)

    def describe(self) -> dict[str, Any]:
        return self.data.describe()

    def check(self, length: int) -> None:
        _refuse_strips(length)
        for split, purpose in ((self.data.train, "training"), (self.data.valid, "held-out")):
            self._check_split(split, purpose, length)

    def check_evaluation(self, lengths: Sequence[int]) -> None:
        for length in lengths:
            _refuse_strips(length)
        whole = grid_shape(lengths[-1])
        for length in lengths:
            rows, columns = grid_shape(length)
            if rows > whole[0] or columns > whole[1]:
                raise UsageError(
                    f"length {length} is a grid of {rows} x {columns} cells, which does not fit into the longest, "
                    f"{whole[0]} x {whole[1]}; leave out one of them (--lengths, --max-len)"
                )

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._surprise[tokens]

    @cached_property
    def _surprise(self) -> NDArray[np.float64]:
        """-log of the frequency of each token in the training images, `[vocab]`; one is added to every count."""
        counts = np.ones(self.vocab)
        for image in self.data.train.images:
            counts += np.bincount(image.ravel(), minlength=self.vocab)
        return np.log(counts.sum()) - np.log(counts)

    def _check_split(self, split: ImageSplit, purpose: str, length: int) -> None:
        """DataError if no image of a split holds a grid of `length` cells."""
        rows, columns = grid_shape(length)
        if split.fits(rows, columns).any():
            return
        height, width = split.largest
        side = min(height, width)
        raise DataError(
            f"the corpus {self.corpus} has no {purpose} image of {rows} x {columns} cells, which a window of {length} "
            f"tokens needs; its largest has {height} x {width}: give --length {side * side} or less, or smaller patches"
        )


def _refuse_strips(length: int) -> None:
    """UsageError, with near lengths, for a length whose grid is more than twice as wide as high."""
    if _is_good(length):
        return
    rows, columns = grid_shape(length)
    near = " or ".join(f"{n} ({'{} x {}'.format(*grid_shape(n))})" for n in _good_near(length))
    raise UsageError(
        f"a window of {length} tokens is a grid of {rows} x {columns} cells, and a grid may be at most {WIDEST} times "
        f"as wide as high; take {near}"
    )


def _is_good(length: int) -> bool:
    rows, columns = grid_shape(length)
    return columns <= WIDEST * rows


def _good_near(length: int) -> Iterable[int]:
    """The nearest lengths below and above whose grids are wide at most twice as high."""
    below = next((n for n in range(length - 1, 0, -1) if _is_good(n)), None)
    above = next(n for n in range(length + 1, 2 * length + 4) if _is_good(n))
    return filter(None, (below, above))
