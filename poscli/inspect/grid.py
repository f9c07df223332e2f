"""Encodings of two axes: what a query in the middle of the last row of a grid gives to every cell that it sees.

Shapes: R rows, C columns, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from poscli.equation import Encoding, Operands, Unsupported
from poscli.equation.grids import grid_shape, raster
from poscli.inspect.absolute import table_of
from poscli.inspect.constant import CPU, constant_operands, weight_rows
from poscli.inspect.numbers import Array, Record
from poscli.inspect.probe import head_names
from poscli.inspect.subject import Subject

ENLARGED = 4  # times the cells of the training grid


@dataclass(frozen=True, eq=False)
class CellMaps(Record):
    """Values of every cell for one query; NaN for cells that the query does not see."""

    values: Array  # [maps, R, C]
    names: tuple[str, ...]
    column: int  # of the query, which stands in the last row
    trained: tuple[int, int]  # rows and columns of the training grid

    @property
    def finding(self) -> str:
        """How the values fall along a column and along a row, and whether a map is symmetric."""
        up, left = self.values[:, -2::-1, self.column], self.values[:, -1, self.column - 1 :: -1]
        steps = min(up.shape[1], left.shape[1])
        apart = np.abs(up[:, :steps] - left[:, :steps]).max() / max(float(np.nanmax(np.abs(self.values))), 1e-300)
        alike = "The same upwards as to the left" if apart < 1e-6 else "Different upwards and to the left"
        own, far = self.values[0, -1, self.column], self.values[0, 0, 0]
        return f"{alike}; {self.names[0]}: own cell {own + 0.0:.3g}, far corner {far:.3g}"

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
    """Products of the query with the key of every cell, relative to its own, where all tokens are alike."""

    def products(encoding: Encoding, x: Operands) -> torch.Tensor:
        s_BHTS = x.q_BHTD @ x.k_BHSD.mT
        return s_BHTS / s_BHTS[..., -1:]

    return _of_query(subject, products)


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
    p_NW = table_of(subject.encoding, subject.encoding.locate(rows * columns, CPU, columns).pos)
    own = p_NW[(rows - 1) * columns + middle]
    return _maps(subject, (p_NW @ own / (own @ own))[None])


def _of_query(subject: Subject, rows_of: Callable[[Encoding, Operands], torch.Tensor]) -> CellMaps:
    rows, columns, middle = _window(subject)
    keys = (rows - 1) * columns + middle + 1
    with torch.no_grad():
        row_HS = rows_of(subject.encoding, constant_operands(subject.encoding, keys, columns=columns))[0, :, 0].numpy()
    rest = np.full((len(row_HS), rows * columns - keys), np.nan)
    return _maps(subject, np.concatenate([row_HS, rest], axis=1))


def _window(subject: Subject) -> tuple[int, int, int]:
    """Rows and columns of the grid that is drawn, and the column of the query: beyond training if that is possible."""
    for cells in (min(ENLARGED * subject.length, max(subject.max_len, subject.length)), subject.length):
        rows, columns = grid_shape(cells)
        try:
            constant_operands(subject.encoding, cells)
        except Unsupported:
            continue
        break
    return rows, columns, columns // 2


def _maps(subject: Subject, values: Array) -> CellMaps:
    """The maps `[maps, R C]` as grids; cells after the query are hidden."""
    rows, columns, middle = _window(subject)
    grids = values.reshape(-1, rows, columns).copy()
    grids[:, -1, middle + 1 :] = np.nan
    if float(np.nanmax(np.ptp(grids, axis=0))) == 0:
        grids = grids[:1]
    names = head_names(len(grids)) if len(grids) > 1 else ("all heads",)
    return CellMaps(grids, names, middle, grid_shape(subject.length))
