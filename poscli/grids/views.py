"""What `poscli inspect` shows of encodings of two axes: what a query in the last row gives to every cell before it.

The query predicts the middle cell of the last row.

Shapes: R rows, C columns, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle

from poscli.drawing.axes import RISING, SIGNED, color_bar
from poscli.drawing.style import INK, PALETTE, QUIET
from poscli.equation import Encoding, Operands, Unsupported
from poscli.equation.operands import grid_shape, raster
from poscli.grids.tasks import is_grid
from poscli.inspect.absolute import position_table
from poscli.inspect.numbers import Array, Record
from poscli.inspect.probe import by_head_or_layer, head_names
from poscli.inspect.subject import CPU, Subject, constant_operands, weight_rows
from poscli.inspect.views import Thumbnail, View, any_with

ENLARGED = 4  # times the cells of the training grid
LEAST = 1e-5  # of the largest weight: what is below has the colour of that
GAP = 0.06  # between two maps, as a share of the panel's width


@dataclass(frozen=True, eq=False)
class CellMaps(Record):
    """Values of every cell for one query; NaN for the cell that it predicts and for those after it."""

    values: Array  # [maps, R, C]
    names: tuple[str, ...]
    column: int  # of the cell that the query predicts, in the last row
    trained: tuple[int, int]  # rows and columns of the training grid

    @property
    def finding(self) -> str:
        """How the values fall along a column and along a row, and whether a map is symmetric."""
        up, left = self.values[:, -2::-1, self.column], self.values[:, -1, self.column - 1 :: -1]
        steps = min(up.shape[1], left.shape[1])
        apart, largest = np.abs(up[:, :steps] - left[:, :steps]).max(), np.nanmax(np.abs(self.values))
        alike = "The same upwards as to the left" if apart <= 1e-6 * largest else "Different upwards and to the left"
        above, far = self.values[0, -2, self.column], self.values[0, 0, 0]
        return f"{alike}; {self.names[0]}: cell above {above + 0.0:.3g}, far corner {far:.3g}"

    def record(self) -> dict[str, object]:
        maps = np.where(np.isfinite(self.values), self.values, 0).tolist()
        rows, columns = self.values.shape[1:]
        return {
            "rows": rows,
            "columns": columns,
            "column_of_query": self.column,
            "maps": dict(zip(self.names, maps, strict=True)),
        }


def weight_map(subject: Subject) -> CellMaps:
    """Attention weights of the query, per head, where all tokens are alike."""
    return _of_query(subject, weight_rows)


def product_map(subject: Subject) -> CellMaps:
    """Products of the query with the key of every cell, relative to the query's with itself; all tokens are alike."""
    return _of_query(subject, lambda _, x: x.q_BHTD @ x.k_BHSD.mT / x.q_BHTD.square().sum(-1, keepdim=True))


@torch.no_grad()
def bias_map(subject: Subject) -> CellMaps:
    """The bias of every head by the distance of rows and of columns."""
    rows, columns, middle = _window(subject)
    cells = raster(torch.arange(rows * columns), columns)
    query = torch.tensor([rows - 1, middle])
    values = subject.encoding.distance_bias(query - cells).double().numpy()
    return _maps(subject, values)


@torch.no_grad()
def embedding_map(subject: Subject) -> CellMaps:
    """The product of the query's position vector with that of every cell, relative to its own."""
    rows, columns, middle = _window(subject)
    p_NW = position_table(subject.encoding, subject.encoding.locate(rows * columns, CPU, columns).pos)
    own = p_NW[(rows - 1) * columns + middle]
    return _maps(subject, (p_NW @ own / (own @ own))[None])


def weight_map_of_run(subject: Subject) -> CellMaps:
    """Mean attention weights by the distance of rows and of columns, on windows of a trained run's own images.

    The mean is over windows and over the queries of the last row. One map per head, or, where the subject has several
    layers, one per layer with the mean of its heads.
    """
    rows, columns = grid_shape(subject.length)

    def of_last_row(encoding: Encoding, x: Operands) -> Array:
        part = x.block(x.queries - columns, x.queries)
        p_HCS = _of_cells(weight_rows(encoding, part).double().mean(dim=0).numpy(), rows * columns, 0.0)
        return by_offset(p_HCS, rows, columns)

    names, maps = by_head_or_layer(subject, subject.length, of_last_row)
    return CellMaps(maps, names, columns - 1, (rows, columns))


def by_offset(p_HCS: Array, rows: int, columns: int) -> Array:
    """The mean over the queries of the last row of their weights `[H, C, R C]`, by how far away a cell is.

    In the map `[H, R, 2C - 1]` all queries predict the last row's cell of column C - 1. NaN where none sees a cell.
    """
    size = (len(p_HCS), rows, 2 * columns - 1)
    total, count = np.zeros(size), np.zeros(size)
    for column in range(columns):
        to = slice(columns - 1 - column, 2 * columns - 1 - column)
        seen = np.ones((rows, columns))
        seen[-1, column:] = 0
        total[:, :, to] += p_HCS[:, column].reshape(-1, rows, columns) * seen
        count[:, :, to] += seen
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _of_query(subject: Subject, rows_of: Callable[[Encoding, Operands], torch.Tensor]) -> CellMaps:
    rows, columns, middle = _window(subject)
    keys = (rows - 1) * columns + middle + 1
    with torch.no_grad():
        row_HS = rows_of(subject.encoding, constant_operands(subject.encoding, keys, columns=columns))[0, :, 0].numpy()
    return _maps(subject, _of_cells(row_HS, rows * columns, np.nan))


def _of_cells(of_keys: Array, cells: int, fill: float) -> Array:
    """Values of keys `[..., S]` as values of cells `[..., cells]`: the first key shows none, key j shows cell j - 1."""
    shown = of_keys[..., 1:]
    return np.concatenate([shown, np.full((*shown.shape[:-1], cells - shown.shape[-1]), fill)], axis=-1)


def _window(subject: Subject) -> tuple[int, int, int]:
    """Rows and columns of the grid that is drawn, and the column of the query: beyond training if that is possible."""
    for most in (min(ENLARGED * subject.length, subject.max_len), subject.length):
        cells = next(cells for cells in range(most, 0, -1) if is_grid(cells))
        rows, columns = grid_shape(cells)
        try:
            constant_operands(subject.encoding, cells)
        except Unsupported:
            continue
        break
    return rows, columns, columns // 2


def _maps(subject: Subject, values: Array) -> CellMaps:
    """The maps `[maps, R C]` as grids; the cell that the query predicts and those after it are hidden."""
    rows, columns, middle = _window(subject)
    grids = values.reshape(-1, rows, columns).copy()
    hidden = grids[:, -1, middle:]  # a view
    hidden[:] = 0
    if not np.isfinite(grids).all():
        raise Unsupported("values of some cells are not finite")
    hidden[:] = np.nan
    if float(np.nanmax(np.ptp(grids, axis=0))) == 0:
        grids = grids[:1]
    names = head_names(len(grids)) if len(grids) > 1 else ("all heads",)
    return CellMaps(grids, names, middle, grid_shape(subject.length))


def draw_maps(panels: Sequence[Axes], results: Sequence[CellMaps]) -> None:
    """Maps around zero in two colours, with one scale for all panels."""
    limit = max(float(np.nanmax(np.abs(each.values))) for each in results) or 1.0
    for axes, each in zip(panels, results, strict=True):
        for part, values in _parts(axes, each):
            image = part.imshow(values, cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest")
        color_bar(axes, image, (-limit, 0.0, limit))


def draw_weight_maps(panels: Sequence[Axes], results: Sequence[CellMaps]) -> None:
    """Attention weights on a logarithmic scale of colours, the same for all panels."""
    top = max(float(np.nanmax(each.values)) for each in results)
    low = max(top * LEAST, min(float(np.nanmin(each.values)) for each in results))
    low = min(low, top / 10)  # a scale of less than a decade would exaggerate
    norm = LogNorm(low, top)
    for axes, each in zip(panels, results, strict=True):
        for part, values in _parts(axes, each):
            image = part.imshow(np.maximum(values, low), cmap=RISING, norm=norm, interpolation="nearest")
        color_bar(axes, image, (low, top))


def draw_thumbnail(axes: Axes, results: CellMaps) -> None:
    """The weights of head 1 on a logarithmic scale of colours, without names, for the contact sheet."""
    top = float(np.nanmax(results.values[0]))
    values = np.maximum(results.values[0], top * LEAST)
    axes.imshow(values, cmap=RISING, norm=LogNorm(top * LEAST, top), aspect="auto", interpolation="nearest")


def _parts(axes: Axes, maps: CellMaps) -> list[tuple[Axes, np.ndarray]]:
    """An inset of the panel for each drawn head, with a mark on the query and a frame around the training grid."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    count = len(maps.values)
    chosen = [0, count - 1] if count > 1 else [0]  # the first and the last head
    width = (1 - GAP * (len(chosen) - 1)) / len(chosen)
    made = []
    for n, head in enumerate(chosen):
        part = axes.inset_axes((n * (width + GAP), 0, width, 1))
        rows, columns = maps.values.shape[1:]
        part.set(xticks=[], yticks=[])
        part.spines[:].set_color(QUIET)
        part.plot(maps.column, rows - 1, "o", color=PALETTE[1], markersize=3.5, markeredgecolor="white", zorder=5)
        high, wide = maps.trained
        if rows > high:
            corner = maps.column - wide // 2 - 0.5, rows - high - 0.5
            part.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=INK, linewidth=0.8, linestyle="--"))
        part.set_title(maps.names[head], fontsize=7, pad=2, color=QUIET)
        if n == 0:
            part.set_ylabel(f"{rows} rows", fontsize=7.5)
        part.set_xlabel(f"{columns} columns", fontsize=7.5)
        made.append((part, maps.values[head]))
    return made


def _grid(*blanks: str) -> Callable[[Subject], bool]:
    """Whether an encoding on a grid fills one of these blanks, if there are any."""
    return lambda subject: subject.encoding.axes == 2 and any_with(*blanks)(subject)


VIEWS = (
    View("bias map", "bias of every cell, seen from a query", _grid("distance_bias"), bias_map, draw_maps),
    View("embedding map", "products of cells' vectors", _grid("embed"), embedding_map, draw_maps),
    View("product map", "products of cells' keys", _grid("query", "key"), product_map, draw_maps),
    View(
        "map of the run", "attention in the run's images",
        lambda subject: subject.trained is not None and subject.encoding.axes == 2,
        weight_map_of_run, draw_weight_maps,
    ),
    View(
        "weight map", "attention where all cells look alike", _grid(), weight_map, draw_weight_maps,
        Thumbnail(draw_thumbnail, "Grids: the weight of every cell for a query in the middle of the last row, head 1."),
    ),
)  # fmt: skip
