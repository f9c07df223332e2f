"""The linear map M_k with P[i+k] = P[i] M_k, fitted to a table of positions by least squares.

Such a map lets a head find the token k places back without knowing where it is itself. Sinusoids have one for every k,
and it is a rotation of each pair of channels (Vaswani et al., 2017, section 3.5).

Shapes: n positions, W model width, r rank of the table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from poscli.drawing.text import number
from poscli.equation import Encoding, Unsupported
from poscli.inspect.absolute import CPU, table_of
from poscli.inspect.numbers import Array, Record
from poscli.inspect.subject import Subject

STEP = 4  # k: so small that fast channels turn by less than one turn, so large that slower ones are seen to turn
ROWS_PER_COLUMN = 4  # of the fit, as many again to test it
FARTHEST = 2**22  # the largest position that is used to tell slow channels apart
WIDENED = 8  # from one range of places to the next
WELL_CONDITIONED = 1e2  # ratio of the largest to the smallest singular value, at which no farther position is needed
SECONDS_OF_SEARCH = 3.0  # after which no farther positions are tried
RANK = 1e-10  # singular values below this share of the largest one count as zero
EXACT = 1e-6  # relative error on rows that were not fitted, below which P[i+k] is said to be P[i] M_k


@dataclass(frozen=True, eq=False)
class ShiftMap(Record):
    """M_k, its error on rows that were not fitted, and how far it is from a rotation of pairs of channels."""

    map: Array  # [W, W]
    k: int
    error: float  # root mean square of P[i+k] - P[i] M_k over that of P
    from_rotation: float  # the largest entry of |M^T M - I| on the span of the rows
    off_blocks: float  # the largest entry of |M| outside the blocks of two channels
    rank: int

    @property
    def finding(self) -> str:
        """Whether there is a map, and what kind."""
        if self.error > EXACT:
            return f"No linear map takes P[i] to P[i+{self.k}]: error {number(100 * self.error)} % on rows not fitted"
        if self.from_rotation > EXACT:
            return f"P[i+{self.k}] = P[i] M for all i; M is linear, but no rotation"
        pairs = " of pairs of channels" if self.off_blocks < EXACT else ""
        return f"P[i+{self.k}] = P[i] M for all i; M is a rotation{pairs}, to {max(self.from_rotation, self.error):.0e}"

    def record(self) -> dict[str, object]:
        names = ("k", "error", "from_rotation", "off_blocks", "rank")
        return {name: getattr(self, name) for name in names}


def shift_map(subject: Subject, k: int = STEP) -> ShiftMap:
    """M_k of a subject, from rows at positions spread so far that slow channels can be told apart."""
    return fitted(*rows_apart(subject.encoding, subject.length, k), k)


def rows_apart(encoding: Encoding, length: int, k: int) -> tuple[Array, Array]:
    """Rows P[i] and P[i+k], `[n, W]` each, at random places i.

    Places are drawn from a training window, and from wider and wider ranges until the rows are well conditioned, the
    encoding has no such positions, or FARTHEST or the end of the time for the search is reached.
    """
    count, span, start = 2 * ROWS_PER_COLUMN * encoding.shape.width, length, time.monotonic()
    best = _rows(encoding, span, count, k)
    while span < FARTHEST and time.monotonic() - start < SECONDS_OF_SEARCH and _condition(best[0]) > WELL_CONDITIONED:
        span *= WIDENED
        try:
            best = _rows(encoding, span, count, k)
        except Unsupported:
            break
    return best


def fitted(before: Array, after: Array, k: int) -> ShiftMap:
    """The least-squares map from rows to rows, fitted to every other pair of rows and tested on the rest."""
    u, s, vt = np.linalg.svd(before[::2], full_matrices=False)
    rank = int((s > RANK * s[0]).sum())
    u, s, basis_rW = u[:, :rank], s[:rank], vt[:rank]
    map_WW = basis_rW.T @ ((u.T @ after[::2]) / s[:, None])
    left = after[1::2] - before[1::2] @ map_WW
    inner_rr = basis_rW @ map_WW @ basis_rW.T
    return ShiftMap(
        map_WW,
        k,
        error=float(np.sqrt((left**2).mean() / (after[1::2] ** 2).mean())),
        from_rotation=float(np.abs(inner_rr.T @ inner_rr - np.eye(rank)).max()),
        off_blocks=min(_outside(map_WW, pairing) for pairing in _pairings(len(map_WW))),
        rank=rank,
    )


def _rows(encoding: Encoding, span: int, count: int, k: int) -> tuple[Array, Array]:
    """Rows at places below `span` - k, and k places farther on; at most as many as there are places."""
    draw = np.random.default_rng(0)
    places = np.sort(draw.permutation(span - k)[:count])
    pos = encoding.locate(span, CPU).pos
    before, after = (table_of(encoding, pos[torch.from_numpy(places + shift)]) for shift in (0, k))
    return before, after


def _condition(rows: Array) -> float:
    s = np.linalg.svd(rows, compute_uv=False)
    return float(s[0] / max(s[-1], np.finfo(float).tiny))


def _pairings(width: int) -> list[NDArray[np.int64]]:
    """The partner of each channel if pairs are neighbours, and if a channel is paired with one half a table away."""
    channels = np.arange(width)
    return [channels ^ 1, (channels + width // 2) % width]


def _outside(map_WW: Array, partner: NDArray[np.int64]) -> float:
    """The largest entry outside the blocks of each channel with itself and its partner."""
    rest, channels = np.abs(map_WW).copy(), np.arange(len(map_WW))
    rest[channels, channels] = 0
    inside = partner < len(map_WW)
    rest[channels[inside], partner[inside]] = 0
    return float(rest.max())
