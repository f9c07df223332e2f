"""The task `grid`: predict every next cell of an image, row by row.

A window of l tokens is a grid of `grid_shape(l)` cells, such as 16 x 16 for l = 256. The model reads a token that opens
the window and then all cells but the last, in raster order, and predicts the cells. So token t shows cell t - 1 and
predicts cell t. Attention measures distances from the cell that a query predicts to the cell that a key shows: the cell
above lies one row up and no column aside, in every column and on grids of any width. With one position per token, the
last cell of a row would carry the label of the next row's first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.data import Tokenizer
from poscli.equation.operands import grid_shape
from poscli.grids.corpora import GRAMMAR, load_images
from poscli.grids.images import ImageCorpus, ImageSplit, training_grids
from poscli.system.errors import DataError, UsageError
from poscli.tasks.task import TASKS, Batch, HeldOut, Spans, Task

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
    def open(cls, corpus: str, tokenizer: str | Tokenizer) -> Grid:
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
        cells = training_grids(self.data.train, shape=grid_shape(length), size=size, seed=seed, step=step)
        return Batch(np.concatenate([np.full((size, 1), self.data.start), cells], axis=1))

    def text(self, length: int) -> GridText:
        return GridText(self.data.valid, self.data.start, length)

    def tuning(self) -> Grid:
        if not self.data.tune.images:
            raise DataError(
                f"the corpus {self.corpus} has no image for tuning, as only one could be held out; add images"
            )
        return Grid(replace(self.data, valid=self.data.tune))

    def describe(self) -> dict[str, Any]:
        return self.data.describe()

    def check(self, length: int) -> None:
        _refuse_strips(length)
        rows, columns = grid_shape(length)
        for split, purpose in ((self.data.train, "training"), (self.data.valid, "held-out")):
            if not split.fits(rows, columns).any():
                height, width = split.largest
                raise DataError(
                    f"the corpus {self.corpus} has no {purpose} image of {rows} x {columns} cells, which a window of "
                    f"{length} tokens needs; its largest has {height} x {width}: give --length "
                    f"{min(height, width) ** 2} or less, or smaller patches"
                )

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

    @classmethod
    def generator(cls) -> Callable[..., None]:
        from poscli.grids.continuation import continue_held_out  # imports the model and matplotlib

        return continue_held_out

    def unigram(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._surprise[tokens]

    @cached_property
    def _surprise(self) -> NDArray[np.float64]:
        """-log of the frequency of each token in the training images, `[vocab]`; one is added to every count."""
        counts = np.ones(self.vocab)
        for image in self.data.train.images:
            counts += np.bincount(image.ravel(), minlength=self.vocab)
        return np.log(counts.sum()) - np.log(counts)


def _refuse_strips(length: int) -> None:
    """UsageError, with near lengths, for a length whose grid is more than twice as wide as high."""
    if is_grid(length):
        return
    rows, columns = grid_shape(length)
    below = next((n for n in range(length - 1, 0, -1) if is_grid(n)), None)
    above = next(n for n in range(length + 1, 2 * length + 4) if is_grid(n))
    near = " or ".join(f"{n} ({'{} x {}'.format(*grid_shape(n))})" for n in filter(None, (below, above)))
    raise UsageError(
        f"a window of {length} tokens is a grid of {rows} x {columns} cells, and a grid may be at most {WIDEST} times "
        f"as wide as high; take {near}"
    )


def is_grid(length: int) -> bool:
    """Whether a window of so many cells is a grid that is not too wide."""
    rows, columns = grid_shape(length)
    return columns <= WIDEST * rows


@dataclass(frozen=True, eq=False)
class GridText(HeldOut):
    """Documents that are images. Every cell is a target; cells are numbered in raster order of their image, from 1.

    A window of l tokens is the sub-grid of `grid_shape(l)` whose bottom right corner is its last target. It is stored
    as the token `start`, which is never a target, and its l cells in raster order.
    """

    split: ImageSplit
    start: int  # the token that opens every window
    length: int  # of the windows whose last cells `targets` returns

    def windows(self, spans: Spans, length: int) -> NDArray[np.int64]:
        cells = self._cells(spans, length, length)
        return np.concatenate([np.full((len(spans), 1), self.start), cells], axis=1)

    def targets(self, spans: Spans, scored: int) -> NDArray[np.int64]:
        return self._cells(spans, self.length, scored)

    def counts(self, spans: Spans, scored: int) -> NDArray[np.bool_]:
        return np.ones((len(spans), scored), dtype=bool)

    def ends(self, step: int, length: int) -> Spans:
        """The windows whose last cell lies in any row, and in a column that is a multiple of `step`.

        The last `step` cells of their bottom rows do not overlap.
        """
        rows, columns = grid_shape(length)
        first = -(-columns // step) * step
        return self._spans(
            [(range(rows, height + 1), range(first, width + 1, step)) for height, width in self.split.shapes.tolist()]
        )

    def inside(self, spans: Spans, length: int, margin: int) -> NDArray[np.bool_]:
        """Which windows fit and, with a margin, leave a row above and `margin` columns to the left of them."""
        rows, columns = grid_shape(length)
        row, column = self._corner(spans)
        return (row >= rows + min(margin, 1)) & (column >= columns + margin)

    def tiles(self, length: int) -> Spans:
        rows, columns = grid_shape(length)
        return self._spans(
            [
                (range(rows, height + 1, rows), range(columns, width + 1, columns))
                for height, width in self.split.shapes.tolist()
            ]
        )

    def parts(self, spans: Spans, longest: int, length: int) -> Spans:
        (rows, columns), (whole_rows, whole_columns) = grid_shape(length), grid_shape(longest)
        up, left = np.arange(whole_rows // rows) * rows, np.arange(whole_columns // columns) * columns
        back = up[:, None] * self.split.shapes[spans[:, 0], 1, None, None] + left  # [spans, up, left]
        ends = (spans[:, 1, None, None] - back).reshape(len(spans), up.size * left.size)
        return np.stack([np.repeat(spans[:, 0], ends.shape[1]), ends.ravel()], axis=1)

    def shortage(self, length: int, stride: int) -> str:
        rows, columns = grid_shape(length)
        height, width = self.split.largest
        side = max(0, min(height - 1, width // stride * stride - stride))
        return (
            f"length {length} is a grid of {rows} x {columns} cells, which with stride {stride} needs a held-out "
            f"image of {rows + 1} x {(-(-columns // stride) + 1) * stride} cells, and the largest has {height} x "
            f"{width}; the largest square that fits is {side} x {side}: give --max-len {side * side} or less"
        )

    def _corner(self, spans: Spans) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row and the column, from 1, of the last cell of each window."""
        row, column = np.divmod(spans[:, 1] - 1, self.split.shapes[spans[:, 0], 1])
        return row + 1, column + 1

    def _cells(self, spans: Spans, length: int, count: int) -> NDArray[np.int64]:
        """The last `count` cells of these windows of `length` tokens, in raster order, `[B, count]`."""
        assert self.inside(spans, length, 0).all(), "a window lies outside of its image"
        columns = grid_shape(length)[1]
        holding = -(-count // columns)  # rows
        cells = np.empty((len(spans), count), dtype=np.int64)
        corners = zip(spans[:, 0], *self._corner(spans), strict=True)
        for n, (document, row, column) in enumerate(corners):
            part = self.split.images[document][row - holding : row, column - columns : column]
            cells[n] = part.ravel()[-count:]
        return cells

    def _spans(self, corners: Sequence[tuple[range, range]]) -> Spans:
        """The windows that end in the rows and columns given for each image."""
        spans = [np.zeros((0, 2), dtype=np.int64)]
        for document, ((rows, columns), width) in enumerate(zip(corners, self.split.shapes[:, 1], strict=True)):
            ends = ((np.array(rows)[:, None] - 1) * width + np.array(columns)).ravel()
            spans.append(np.stack([np.full(len(ends), document), ends], axis=1))
        return np.concatenate(spans).astype(np.int64)
