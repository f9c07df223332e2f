"""The inputs of one attention call: positions, on a line or a grid, and tensors whose token blanks are filled already.

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D head width of queries and
keys, E head width of values, F features, n distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The position of every token, `[S]`, or `[S, 2]` as row and column of a grid.

    On a line, `step` is the spacing if it is even, so that pos[j] = pos[0] + step * j. On a grid it is None. A token
    of a grid shows one cell and predicts the next, which may stand in another row: `pos` is the cell that it predicts,
    its position as a query and in the embedding, and `shown` the cell that it shows, its position as a key. `columns`
    is the number of columns if these are the cells j and j - 1 in raster order.
    """

    pos: Tensor
    step: float | None = 1
    shown: Tensor | None = None
    columns: int | None = None

    @property
    def of_keys(self) -> Tensor:
        """The positions of the tokens as keys."""
        return self.pos if self.shown is None else self.shown

    def last(self, tokens: int) -> Positions:
        """The positions of the last tokens; on a grid, of all tokens."""
        return Positions(pos=self.pos[-tokens:], step=self.step) if self.shown is None else self

    @staticmethod
    def spaced(pos: Tensor) -> Positions:
        """The positions with their spacing, measured by `even_step`."""
        return Positions(pos=pos, step=even_step(pos))


def grid_shape(cells: int) -> tuple[int, int]:
    """Rows and columns of a grid of `cells` cells: as square as its divisors allow, and never higher than wide.

    >>> grid_shape(256), grid_shape(512), grid_shape(7)
    ((16, 16), (16, 32), (1, 7))
    """
    rows = next(rows for rows in range(math.isqrt(cells), 0, -1) if cells % rows == 0)
    return rows, cells // rows


def columns_of(cells: int) -> int:
    """The columns of a grid of `cells` cells; see `grid_shape`."""
    return grid_shape(cells)[1]


def raster(index: Tensor, columns: int) -> Tensor:
    """The row and column `[..., 2]` of tokens by their order `[...]` in the sequence."""
    return torch.stack([index // columns, index % columns], dim=-1)


def snapped(d: Tensor) -> Tensor:
    """Distances, rounded to a whole number where they differ from it only by floating-point error.

    A table can then look up distance 1 for 5/3 - 2/3, however that difference was computed. int64 stays as it is.
    """
    if d.dtype == torch.int64:
        return d
    whole = d.round()
    return torch.where((d - whole).abs() < 2**-20, whole, d)


def even_step(pos: Tensor) -> float | None:
    """The spacing of positions `[S]`; None if it is uneven, or if there are fewer than two."""
    if len(pos) < 2:
        return None
    step = (pos[-1] - pos[0]).item() / (len(pos) - 1)
    even = pos[0] + step * torch.arange(len(pos), device=pos.device, dtype=torch.float64)
    # One unit of float32 rounding of the largest position: a smaller deviation is rounding.
    tolerance = float(pos.abs().max()) * 2**-23
    return step if torch.allclose(even, pos.to(even.dtype), rtol=0, atol=tolerance) else None


@dataclass(frozen=True, kw_only=True)
class Operands:
    """Tensors, positions and visibility of one attention call.

    `raw_q_BHTD` and `raw_k_BHSD` are the outputs of the projections, which relative vectors meet; q, k, v, features and
    temperature are results of the token blanks. A query sees the last `reach` tokens, itself among them (None: all
    tokens), and always the first `sinks` tokens.
    """

    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSE: Tensor
    raw_q_BHTD: Tensor
    raw_k_BHSD: Tensor
    pos_S: Tensor  # of keys; [S, 2] on a grid
    step: float | None
    pos_of_queries_T: Tensor | None = None  # None: the last T of `pos_S`
    columns: int | None = None
    reach: int | None = None
    sinks: int = 0
    first_key: int = 0  # how many keys of the sequence were cut off before these, because no query sees them
    features_BHSF: Tensor | None = None
    temperature_HT: Tensor | None = None
    null_score_H: Tensor | None = None  # of a key without a value that every query sees; None: there is none
    # Values of blanks by distance, `[H or 1, n, ...]`, that are kept from one call to the next; None: nothing is kept.
    by_distance: dict[str, Tensor] | None = None
    # Tensors that a fast form carries from one block of queries to the next; None if blocks do not run in order.
    carried: dict[Any, Tensor] | None = None

    @property
    def queries(self) -> int:
        """T, the number of queries."""
        return self.q_BHTD.shape[2]

    @property
    def keys(self) -> int:
        """S, the number of keys."""
        return self.k_BHSD.shape[2]

    @property
    def pos_T(self) -> Tensor:
        """Positions of the queries."""
        pos_T = self.pos_of_queries_T
        return self.pos_S[self.keys - self.queries :] if pos_T is None else pos_T

    @property
    def features_of_queries(self) -> Tensor | None:
        """Features of the queries' own tokens, `[B, H, T, F]`."""
        f = self.features_BHSF
        return None if f is None else f[:, :, self.keys - self.queries :]

    def visible(self) -> Tensor:
        """`[T, S]`, true where query i sees key j. This depends on the order of the tokens, not on their positions."""
        order = torch.arange(self.keys, device=self.pos_S.device)
        apart = order[self.keys - self.queries :, None] - order
        near = apart < (self.reach or self.keys)
        return (apart >= 0) & (near | (order < self.sinks) if self.sinks else near)

    def distances(self) -> Tensor:
        """Distances i - j of positions, `[T, S]`, or `[T, S, 2]` on a grid; 0 for hidden keys.

        So formulas never meet a negative distance on a line, nor a negative distance of rows on a grid.
        """
        hidden = ~self.visible()
        d = snapped(self.pos_T[:, None] - self.pos_S)
        return d.masked_fill(hidden if d.ndim == 2 else hidden[..., None], 0)

    def at_distances(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of distances, `[n]` or `[n, 2]` -> `[H, n, ...]`, evaluated for every pair: `[H, T, S, ...]`."""
        return of(self.distances().flatten(0, 1)).unflatten(1, (self.queries, self.keys))

    def block(self, start: int, stop: int, first_key: int = 0) -> Operands:
        """Queries `start` to `stop - 1`, with the keys from `first_key` to the last one that any of them sees."""
        assert not (self.sinks and first_key), "the first keys are visible to every query"
        last = self.keys - self.queries + stop
        keys = slice(first_key, last)
        features, temperature, pos_T = self.features_BHSF, self.temperature_HT, self.pos_of_queries_T
        return replace(
            self,
            q_BHTD=self.q_BHTD[:, :, start:stop],
            raw_q_BHTD=self.raw_q_BHTD[:, :, start:stop],
            k_BHSD=self.k_BHSD[:, :, keys],
            v_BHSE=self.v_BHSE[:, :, keys],
            raw_k_BHSD=self.raw_k_BHSD[:, :, keys],
            pos_S=self.pos_S[keys],
            first_key=self.first_key + first_key,
            pos_of_queries_T=None if pos_T is None else pos_T[start:stop],
            features_BHSF=None if features is None else features[:, :, keys],
            temperature_HT=None if temperature is None else temperature[:, start:stop],
        )
