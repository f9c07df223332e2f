"""Encodings of the embedding: the table of positions, and what can be read off it.

The table P is measured. Where embed(x, i) is a function of x plus a function of i, P[i] is embed(0, i); elsewhere it is
embed(x, i) for one token x whose numbers are all 1. Products, wavelengths and linear maps are those of P. The frequency
of each column is found by Fourier analysis and refined by least squares, and so is the linear map M_k with P[i+k] =
P[i] M_k. Such a map lets a head find the token k places back without knowing where it is itself. Sinusoids have one for
every k, and it is a rotation of each pair of channels (Vaswani et al., 2017, section 3.5).

Shapes: n positions, W model width, C columns of a table, r its rank.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from poscli.drawing.text import amount, number
from poscli.equation import Encoding, Unsupported
from poscli.inspect.numbers import Array, Record, in_tokens, log_spaced, sampled
from poscli.inspect.subject import CPU, Subject
from poscli.verify.noise import draw

# How positions join the embedding: x + P[i], A(x) + P[i], or neither, so that their parts cannot be told apart.
ADDED, MAPPED, MIXED = "added", "added to a map of it", "mixed"
MOST_ROWS = 4096  # of the table that are read
REFINEMENTS = 8  # parabolas fitted to the energy around its maximum, each around the top of the one before
SLOWEST = 1e-4  # cycles within the table; a slower column counts as constant
FEW_CYCLES = 4.0  # within the table: below, a transform is too coarse, and a finer grid takes its place
GRID = 400  # frequencies of that grid
PURE = 0.99  # share of a column's energy in one frequency, from which the column is said to have a wavelength
TINIEST = np.finfo(float).tiny
POSITIONS_TRIED = 8  # positions at which additivity is measured; a training window has at least as many tokens
ROWS_SHOWN = 128  # of the table
PLACES = 256  # over which products of two rows at one distance are averaged
EQUAL = 1e-9  # relative: numbers that differ by less are equal but for rounding
REPEATED = 1e-6  # relative distance of two rows, below which they are the same
STEP = 4  # k: so small that fast channels turn by less than one turn, so large that slower ones are seen to turn
ROWS_PER_COLUMN = 4  # of the fit, as many again to test it
FARTHEST = 2**22  # the largest position that is used to tell slow channels apart
WIDENED = 8  # from one range of places to the next
WELL_CONDITIONED = 1e2  # ratio of the largest to the smallest singular value, at which no farther position is needed
SECONDS_OF_SEARCH = 3.0  # after which no farther positions are tried
RANK = 1e-10  # singular values below this share of the largest one count as zero
EXACT = 1e-6  # relative error on rows that were not fitted, below which P[i+k] is said to be P[i] M_k


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The frequency that explains most of each column, in radians per position, and the share that it explains."""

    omega: Array  # [C], 0 for a constant column
    share: Array  # [C], of the column's energy, between 0 and 1

    @property
    def wavelengths(self) -> Array:
        """Positions per turn of the pure columns, ascending; infinity for a constant one."""
        pure = self.omega[self.share >= PURE]
        with np.errstate(divide="ignore"):
            return np.sort(np.where(pure > 0, 2 * np.pi / pure, np.inf))


def frequencies(table: Array) -> Frequencies:
    """The frequencies of the columns of a table `[n, C]`, n at least 16.

    A column is fitted by a cos(omega t) + b sin(omega t). The best frequency of a discrete Fourier transform, or of a
    finer grid below a few cycles, is refined until the fit gets no better. So a wavelength longer than the table can be
    measured as well, as long as the column is a pure sinusoid.
    """
    table = table[:MOST_ROWS]
    n = len(table)
    energy = np.maximum((table**2).sum(axis=0), TINIEST)
    step = np.pi / n  # of a transform of the table followed by as many zeros
    first = int(2 * FEW_CYCLES)
    power = np.abs(np.fft.rfft(table, 2 * n, axis=0)) ** 2
    fast = (first + power[first:].argmax(axis=0)) * step
    grid = np.geomspace(SLOWEST, FEW_CYCLES + 0.5, GRID) * 2 * np.pi / n
    fits = _explained(table, grid, of_all=True)
    is_slow = fits.max(axis=0) > _explained(table, fast)
    omega = np.where(is_slow, grid[fits.argmax(axis=0)], fast)
    width = np.where(is_slow, omega * (grid[1] / grid[0] - 1), step)
    pure = _explained(table, omega) > energy / 2
    omega[pure] = _refined(table[:, pure], omega[pure], width[pure])
    constant = (table - table.mean(axis=0)).std(axis=0) <= 1e-12 * np.sqrt(energy / n)
    share = np.where(constant, 1.0, _explained(table, omega) / energy)
    return Frequencies(np.where(constant, 0.0, omega), share)


def _refined(table: Array, omega: Array, width: Array) -> Array:
    """The frequencies near `omega` `[C]`, within `width` `[C]`, that explain most of each column."""
    low, high, h = omega - width, np.minimum(omega + width, np.pi), width / 2
    for _ in range(REFINEMENTS):
        below, here, above = (_explained(table, omega + shift) for shift in (-h, 0, h))
        bend = below - 2 * here + above
        move = np.where(bend < 0, h * (below - above) / (2 * np.where(bend < 0, bend, 1.0)), h * np.sign(above - below))
        omega = np.clip(omega + move, low, high)
        h = np.clip(np.abs(move), 1e-5 * width, h)  # rounding hides smaller differences of energy
    return np.asarray(omega, dtype=np.float64)


def _explained(table: Array, omega: Array, *, of_all: bool = False) -> Array:
    """The energy `[C]` of each column's least-squares fit by a cosine and a sine of its frequency `[C]`.

    With `of_all`, that of every column's fit by every one of G frequencies, `[G, C]`.
    """
    t = np.arange(len(table)) - (len(table) - 1) / 2  # around the middle, cosines and sines are orthogonal
    energy: Array = np.zeros(1)
    for wave in np.cos, np.sin:
        if of_all:
            waves = wave(omega[:, None] * t)
            product, size = waves @ table, (waves**2).sum(axis=1)[:, None]
        else:
            waves = wave(t[:, None] * omega)
            product, size = (table * waves).sum(axis=0), (waves**2).sum(axis=0)
        energy = energy + product**2 / np.maximum(size, TINIEST)
    return energy


@dataclass(frozen=True, eq=False)
class PositionTable(Record):
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

    frequencies: Frequencies
    repeats: int | None  # the smallest distance at which all rows repeat, if they do within the table
    rows: int
    length: int

    @property
    def finding(self) -> str:
        waves = self.frequencies.wavelengths
        rows = f"rows repeat every {self.repeats}" if self.repeats else f"no row repeats within {amount(self.rows)}"
        if not len(waves):
            return f"No channel has a wavelength, and {rows}"
        long = f", {int((waves > self.length).sum())} of {len(waves)} longer than training windows"
        last = f"to {amount(waves[-1])} tokens" if np.isfinite(waves[-1]) else "tokens on without end"
        return f"Wavelengths from {number(waves[0])} {last}{long}; {rows}"

    def record(self) -> dict[str, object]:
        waves = [float(w) if np.isfinite(w) else None for w in self.frequencies.wavelengths]
        channels = len(self.frequencies.omega)
        return {"wavelengths": waves, "channels": channels, "period": self.repeats, "rows": self.rows}


@dataclass(frozen=True, eq=False)
class Gram(Record):
    """Cosines of the angles between columns of the table over the positions of training, `[W, W]`."""

    cosines: Array

    @property
    def finding(self) -> str:
        many, mean = 100 * self._of_pairs["above_half"], number(self._of_pairs["mean"])
        if many < 1:
            return f"Columns are nearly orthogonal over a training window: |cos| {mean} on average"
        return f"Columns overlap over a training window: |cos| above 0.5 for {many:.2g} % of pairs"

    @property
    def _of_pairs(self) -> dict[str, float]:
        off = np.abs(self.cosines[~np.eye(len(self.cosines), dtype=bool)])
        return {"mean": float(off.mean()), "largest": float(off.max()), "above_half": float((off > 0.5).mean())}

    def record(self) -> dict[str, object]:
        return {**self._of_pairs}


def position_table(encoding: Encoding, pos: torch.Tensor) -> Array:
    """P `[n, W]` at positions `[n]`."""
    fill = torch.ones if how_joined(encoding) == MIXED else torch.zeros
    token = fill(1, len(pos), encoding.shape.width, dtype=torch.float64)
    rows = encoding.embed(token, pos, torch.zeros(1, len(pos), dtype=torch.long))[0].numpy()
    if not np.isfinite(rows).all():
        raise Unsupported("the vectors of positions are not finite")
    if not rows.any():
        raise Unsupported("the vectors of all positions are zero")
    return rows


def how_joined(encoding: Encoding) -> str:
    """How positions join the embedding, measured on random tokens: ADDED, MAPPED or MIXED."""
    size = (1, POSITIONS_TRIED, encoding.shape.width)
    pos = encoding.locate(size[1], CPU).pos
    zero = encoding.embed(torch.zeros(size, dtype=torch.float64), pos, torch.zeros(size[:2], dtype=torch.long))
    ways = set()
    for seed in (1, 2):
        x = draw(1, 1, size[2], seed=seed, dtype=torch.float64).expand(size)
        ids = torch.full(size[:2], seed % encoding.shape.vocab)
        of_x = encoding.embed(x, pos, ids) - zero
        rounding = EQUAL * (1 + float(zero.abs().max()))
        if (of_x - of_x[:, :1]).abs().max() > rounding:
            return MIXED
        ways.add(ADDED if (of_x - x).abs().max() <= rounding else MAPPED)
    return MAPPED if MAPPED in ways else ADDED


def first_rows(subject: Subject) -> PositionTable:
    """The first rows of the table."""
    encoding, known = subject.encoding, len(whole_table(subject))
    rows = position_table(encoding, encoding.locate(min(ROWS_SHOWN, known), CPU).pos)
    return PositionTable(rows, how_joined(encoding), known)


def whole_table(subject: Subject) -> Array:
    """P at all positions of the longest window, or of a training window if the encoding has no rows for that."""
    encoding = subject.encoding
    return subject.at_longest(lambda tokens: position_table(encoding, encoding.locate(tokens, CPU).pos))[0]


def products(subject: Subject) -> Products:
    """Dot products of rows against their distance, relative to the mean square of a row."""
    p_NW = whole_table(subject)
    size = float((p_NW**2).sum(axis=1).mean())
    distances = log_spaced(len(p_NW) - 1, 160)
    rows = []
    for d in distances:
        at = np.unique(np.linspace(0, len(p_NW) - 1 - d, PLACES).astype(int))
        each = (p_NW[at] * p_NW[at + d]).sum(axis=1) / size
        rows.append((each.mean(), each.min(), each.max()))
    mean, low, high = np.array(rows).T
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
    p_LW = position_table(subject.encoding, subject.encoding.locate(subject.length, CPU).pos)
    unit = p_LW / np.maximum(np.sqrt((p_LW**2).sum(axis=0)), TINIEST)
    return Gram(unit.T @ unit)


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
            return f"No linear map takes P[i] to P[i+{self.k}]: error {100 * self.error:.3g} % on rows not fitted"
        if self.from_rotation > EXACT:
            return f"P[i+{self.k}] = P[i] M for all i; M is linear, but no rotation"
        pairs = " of pairs of channels" if self.off_blocks < EXACT else ""
        return f"P[i+{self.k}] = P[i] M for all i; M is a rotation{pairs}, to {max(self.from_rotation, self.error):.0e}"

    def record(self) -> dict[str, object]:
        names = ("k", "error", "from_rotation", "off_blocks", "rank")
        return {name: getattr(self, name) for name in names}


def shift_map(subject: Subject, k: int = STEP) -> ShiftMap:
    """M_k of a subject, fitted to rows P[i] and P[i+k] at random places i.

    Places are drawn from a training window, and from wider and wider ranges until the rows are so well conditioned that
    slow channels can be told apart, the encoding has no such positions, or FARTHEST or the end of the time for the
    search is reached.
    """
    encoding, span, start = subject.encoding, subject.length, time.monotonic()
    count = 2 * ROWS_PER_COLUMN * encoding.shape.width

    def rows() -> tuple[Array, Array]:
        places = np.sort(np.random.default_rng(0).permutation(span - k)[:count])
        pos = encoding.locate(span, CPU).pos
        before, after = (position_table(encoding, pos[torch.from_numpy(places + shift)]) for shift in (0, k))
        return before, after

    best = rows()
    while span < FARTHEST and time.monotonic() - start < SECONDS_OF_SEARCH:
        singular = np.linalg.svd(best[0], compute_uv=False)
        if singular[0] / max(singular[-1], TINIEST) <= WELL_CONDITIONED:
            break
        span *= WIDENED
        try:
            best = rows()
        except Unsupported:
            break
    return fitted(*best, k)


def fitted(before: Array, after: Array, k: int) -> ShiftMap:
    """The least-squares map from rows to rows, fitted to every other pair of rows and tested on the rest."""
    if not (np.isfinite(before).all() and np.isfinite(after).all() and before[::2].any() and after[1::2].any()):
        raise Unsupported("vectors at some positions are zero or not finite, so that no map can be fitted to them")
    u, s, vt = np.linalg.svd(before[::2], full_matrices=False)
    rank = int((s > RANK * s[0]).sum())
    u, s, basis_rW = u[:, :rank], s[:rank], vt[:rank]
    map_WW = basis_rW.T @ ((u.T @ after[::2]) / s[:, None])
    left = after[1::2] - before[1::2] @ map_WW
    inner_rr = basis_rW @ map_WW @ basis_rW.T
    entries, channels = np.abs(map_WW), np.arange(len(map_WW))
    outside = []
    for partner in (channels ^ 1, (channels + len(map_WW) // 2) % len(map_WW)):  # neighbours are pairs, or halves are
        paired = (channels[:, None] == channels) | (partner[:, None] == channels)
        outside.append(float(np.where(paired, 0, entries).max()))
    return ShiftMap(
        map_WW,
        k,
        error=float(np.sqrt((left**2).mean() / (after[1::2] ** 2).mean())),
        from_rotation=float(np.abs(inner_rr.T @ inner_rr - np.eye(rank)).max()),
        off_blocks=min(outside),
        rank=rank,
    )
