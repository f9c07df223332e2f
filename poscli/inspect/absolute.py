"""Encodings of the embedding: the table of positions, and what can be read off it.

The table P is measured. Where embed(x, i) is a function of x plus a function of i, P[i] is embed(0, i); elsewhere it is
embed(x, i) for one token x whose numbers are all 1. Products, wavelengths and linear maps are those of P.

Shapes: n positions, W model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from poscli.drawing.text import amount, number
from poscli.equation import Encoding, Unsupported
from poscli.inspect.fourier import Frequencies, frequencies
from poscli.inspect.numbers import Array, Record, in_tokens, log_spaced, sampled
from poscli.inspect.subject import Subject
from poscli.verify.noise import draw

CPU = torch.device("cpu")
# How positions join the embedding: x + P[i], A(x) + P[i], or neither, so that their parts cannot be told apart.
ADDED, MAPPED, MIXED = "added", "added to a map of it", "mixed"
TRIED = 8  # positions at which additivity is measured
ROWS_SHOWN = 128  # of the table
PLACES = 256  # over which products of two rows at one distance are averaged
SAME = 1e-9  # relative: numbers that differ by less are equal but for rounding
REPEATED = 1e-6  # relative distance of two rows, below which they are the same


@dataclass(frozen=True, eq=False)
class Table(Record):
    """The first rows of the table, and how the encoding uses it."""

    rows: Array  # [n, W]
    joined: str  # ADDED, MAPPED or MIXED
    known: int  # positions that the table has, as far as they were asked for

    @property
    def finding(self) -> str:
        return {
            ADDED: "A vector for each position is added to the embedding",
            MAPPED: "A vector for each position is added to a map of the embedding",
            MIXED: "Positions are not added to the embedding but change it; shown for a token of ones",
        }[self.joined]

    def record(self) -> dict[str, object]:
        return {"joined": self.joined, "positions": self.known, "width": self.rows.shape[1]}


@dataclass(frozen=True, eq=False)
class Products(Record):
    """P[i] . P[i+d] over |P|^2 by distance d: the mean over places i, and how much it depends on the place."""

    distances: Array  # [n]
    mean: Array  # [n]
    low: Array  # [n], the smallest over places
    high: Array  # [n], the largest over places
    length: int

    @property
    def finding(self) -> str:
        """Whether distances are all that matters, and how far a position is told from its neighbours."""
        varies = float((self.high - self.low).max())
        fallen = np.flatnonzero(self.mean < 0.5)
        where = f"falls to a half {in_tokens(self.distances[fallen[0]])} away" if len(fallen) else "stays above half"
        alone = "depends on the distance alone" if varies < 1e-6 else f"varies with the place by up to {number(varies)}"
        return f"P[i] . P[i+d] {alone}, and {where}"

    def record(self) -> dict[str, object]:
        rows = np.stack([self.mean, self.low, self.high])
        return sampled(self.distances.astype(np.int64), rows, ("mean", "lowest", "highest"))


@dataclass(frozen=True, eq=False)
class Wavelengths(Record):
    """How many positions each channel takes for a turn, and whether the whole table repeats."""

    found: Frequencies
    repeats: int | None  # the smallest distance at which all rows repeat, if they do within the table
    rows: int
    length: int

    @property
    def finding(self) -> str:
        waves = self.found.wavelengths
        if not len(waves):
            return f"No channel has a wavelength, and {self._period()}"
        long = f", {int((waves > self.length).sum())} of {len(waves)} longer than training windows"
        last = f"to {amount(waves[-1])} tokens" if np.isfinite(waves[-1]) else "tokens on without end"
        return f"Wavelengths from {number(waves[0])} {last}{long}; {self._period()}"

    def _period(self) -> str:
        return f"rows repeat every {self.repeats}" if self.repeats else f"no row repeats within {amount(self.rows)}"

    def record(self) -> dict[str, object]:
        waves = [float(w) if np.isfinite(w) else None for w in self.found.wavelengths]
        return {"wavelengths": waves, "channels": len(self.found.omega), "period": self.repeats, "rows": self.rows}


@dataclass(frozen=True, eq=False)
class Gram(Record):
    """Cosines of the angles between columns of the table over the positions of training, `[W, W]`."""

    cosines: Array

    @property
    def finding(self) -> str:
        off = np.abs(self.cosines[~np.eye(len(self.cosines), dtype=bool)])
        if not len(off):
            return "The table has one column"
        many = 100 * float((off > 0.5).mean())
        if many < 1:
            return f"Columns are nearly orthogonal over a training window: |cos| {number(float(off.mean()))} on average"
        return f"Columns overlap over a training window: |cos| above 0.5 for {many:.2g} % of pairs"

    def record(self) -> dict[str, object]:
        off = np.abs(self.cosines[~np.eye(len(self.cosines), dtype=bool)])
        return {"mean": float(off.mean()), "largest": float(off.max()), "above_half": float((off > 0.5).mean())}


def table_of(encoding: Encoding, pos: torch.Tensor) -> Array:
    """P `[n, W]` at positions `[n]`."""
    fill = torch.ones if joined(encoding) == MIXED else torch.zeros
    token = fill(1, len(pos), encoding.shape.width, dtype=torch.float64)
    rows = encoding.embed(token, pos, torch.zeros(1, len(pos), dtype=torch.long))[0].numpy()
    if not np.isfinite(rows).all():
        raise Unsupported("the vectors of positions are not finite")
    if not rows.any():
        raise Unsupported("the vectors of all positions are zero")
    return rows


def joined(encoding: Encoding) -> str:
    """How positions join the embedding, measured on random tokens: ADDED, MAPPED or MIXED."""
    size = (1, min(TRIED, encoding.shape.length), encoding.shape.width)
    pos = encoding.locate(size[1], CPU).pos
    zero = encoding.embed(torch.zeros(size, dtype=torch.float64), pos, torch.zeros(size[:2], dtype=torch.long))
    found = set()
    for seed in (1, 2):
        x = draw(1, 1, size[2], seed=seed, dtype=torch.float64).expand(size)
        ids = torch.full(size[:2], seed % encoding.shape.vocab)
        of_x = encoding.embed(x, pos, ids) - zero
        rounding = SAME * (1 + float(zero.abs().max()))
        if (of_x - of_x[:, :1]).abs().max() > rounding:
            return MIXED
        found.add(ADDED if (of_x - x).abs().max() <= rounding else MAPPED)
    return MAPPED if MAPPED in found else ADDED


def table(subject: Subject) -> Table:
    """The first rows of the table."""
    encoding = subject.encoding
    known = known_positions(subject)
    rows = table_of(encoding, encoding.locate(min(ROWS_SHOWN, known), CPU).pos)
    return Table(rows, joined(encoding), known)


def known_positions(subject: Subject) -> int:
    """The longest window, up to the longest drawn one, for whose positions the encoding has rows."""
    for tokens in dict.fromkeys((subject.max_len, subject.length)):
        try:
            table_of(subject.encoding, subject.encoding.locate(tokens, CPU).pos)
        except Unsupported:
            continue
        return tokens
    return subject.length


def whole_table(subject: Subject) -> Array:
    """P at all positions of the longest window that the encoding can read."""
    return table_of(subject.encoding, subject.encoding.locate(known_positions(subject), CPU).pos)


def products(subject: Subject) -> Products:
    """Dot products of rows against their distance, relative to the mean square of a row."""
    p_NW = whole_table(subject)
    size = float((p_NW**2).sum(axis=1).mean())
    distances = log_spaced(len(p_NW) - 1, 160)
    found = []
    for d in distances:
        at = np.unique(np.linspace(0, len(p_NW) - 1 - d, PLACES).astype(int))
        each = (p_NW[at] * p_NW[at + d]).sum(axis=1) / size
        found.append((each.mean(), each.min(), each.max()))
    mean, low, high = np.array(found).T
    return Products(distances.astype(np.float64), mean, low, high, subject.length)


def wavelengths(subject: Subject) -> Wavelengths:
    """The wavelength of each channel, and the period of the table."""
    p_NW = whole_table(subject)
    return Wavelengths(frequencies(p_NW), period(p_NW), len(p_NW), subject.length)


def period(p_NW: Array) -> int | None:
    """The smallest distance d at most half of the table, at which P[i+d] = P[i] for all i; None if there is none."""
    size = float((p_NW**2).sum(axis=1).mean())
    first = ((p_NW - p_NW[0]) ** 2).sum(axis=1)
    for d in np.flatnonzero(first[: len(p_NW) // 2 + 1] <= REPEATED**2 * size):
        if d and ((p_NW[d:] - p_NW[:-d]) ** 2).sum(axis=1).max() <= REPEATED**2 * size:
            return int(d)
    return None


def gram(subject: Subject) -> Gram:
    """Cosines between the columns over the positions of a training window."""
    p_LW = table_of(subject.encoding, subject.encoding.locate(subject.length, CPU).pos)
    unit = p_LW / np.maximum(np.sqrt((p_LW**2).sum(axis=0)), np.finfo(float).tiny)
    return Gram(unit.T @ unit)
