"""Images to evaluate on, and the grids of cells that can be read in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poscli.data.images import ImageSplit
from poscli.equation.grids import grid_shape
from poscli.tasks.text import HeldOut, Spans


@dataclass(frozen=True, eq=False)
class GridText(HeldOut):
    """Documents that are images. Every cell is a target; cells are numbered in raster order of their image, from 1.

    A window of l tokens is the sub-grid of `grid_shape(l)` whose bottom right corner is its last target. It is stored
    as the token `start`, which is never a target, and its l cells in raster order.
    """

    split: ImageSplit
    start: int  # the token that opens every window
    length: int  # of the windows whose last cells `targets` returns

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self.split.shapes.prod(axis=1)

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
            [(range(rows, height + 1), range(first, width + 1, step)) for height, width in self._shapes()]
        )

    def inside(self, spans: Spans, length: int, margin: int) -> NDArray[np.bool_]:
        """Which windows fit and, with a margin, leave a row above and `margin` columns to the left of them."""
        rows, columns = grid_shape(length)
        row, column = self._corner(spans)
        return (row >= rows + min(margin, 1)) & (column >= columns + margin)

    def tiles(self, length: int) -> Spans:
        rows, columns = grid_shape(length)
        return self._spans(
            [(range(rows, height + 1, rows), range(columns, width + 1, columns)) for height, width in self._shapes()]
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

    def _shapes(self) -> list[tuple[int, int]]:
        return [(int(height), int(width)) for height, width in self.split.shapes]

    def _corner(self, spans: Spans) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row and the column, from 1, of the last cell of each window."""
        row, column = np.divmod(spans[:, 1] - 1, self.split.shapes[spans[:, 0], 1])
        return row + 1, column + 1

    def _cells(self, spans: Spans, length: int, count: int) -> NDArray[np.int64]:
        """The last `count` cells of these windows of `length` tokens, in raster order, `[B, count]`."""
        assert self.inside(spans, length, 0).all(), "a window lies outside of its image"
        columns = grid_shape(length)[1]
        holding = -(-count // columns)  # rows
        found = np.empty((len(spans), count), dtype=np.int64)
        corners = zip(spans[:, 0], *self._corner(spans), strict=True)
        for n, (document, row, column) in enumerate(corners):
            cells = self.split.images[document][row - holding : row, column - columns : column]
            found[n] = cells.ravel()[-count:]
        return found

    def _spans(self, corners: Sequence[tuple[range, range]]) -> Spans:
        """The windows that end in any of these rows and columns, of which each image has its own."""
        found = [np.zeros((0, 2), dtype=np.int64)]
        for document, ((rows, columns), width) in enumerate(zip(corners, self.split.shapes[:, 1], strict=True)):
            ends = ((np.array(rows)[:, None] - 1) * width + np.array(columns)).ravel()
            found.append(np.stack([np.full(len(ends), document), ends], axis=1))
        return np.concatenate(found).astype(np.int64)
