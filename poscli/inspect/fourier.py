"""The frequency of each column of a table whose rows are positions: Fourier analysis, refined by least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poscli.inspect.numbers import Array

MOST_ROWS = 4096  # of the table that are read
REFINEMENTS = 8  # parabolas fitted to the energy around its maximum, each around the top of the one before
SLOWEST = 1e-4  # cycles within the table; a slower column counts as constant
FEW_CYCLES = 4.0  # within the table: below, a transform is too coarse, and a finer grid takes its place
GRID = 400  # frequencies of that grid
PURE = 0.99  # share of a column's energy in one frequency, from which the column is said to have a wavelength
TINY = np.finfo(float).tiny


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
    energy = np.maximum((table**2).sum(axis=0), TINY)
    step = np.pi / n  # of a transform of the table followed by as many zeros
    first = int(2 * FEW_CYCLES)
    power = np.abs(np.fft.rfft(table, 2 * n, axis=0)) ** 2
    fast = (first + power[first:].argmax(axis=0)) * step
    grid = np.geomspace(SLOWEST, FEW_CYCLES + 0.5, GRID) * 2 * np.pi / n
    fits = _explained_by_grid(table, grid)
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


def _explained(table: Array, omega: Array) -> Array:
    """The energy `[C]` of each column's least-squares fit by a cosine and a sine of its frequency `[C]`."""
    t = _centred(len(table))[:, None]  # around the middle, cosines and sines are orthogonal
    waves = np.cos(t * omega), np.sin(t * omega)
    fits = [(table * wave).sum(axis=0) ** 2 / np.maximum((wave**2).sum(axis=0), TINY) for wave in waves]
    return np.asarray(fits[0] + fits[1], dtype=np.float64)


def _explained_by_grid(table: Array, grid: Array) -> Array:
    """The energy `[G, C]` of the fit of every column by every frequency of a grid `[G]`."""
    angle = grid[:, None] * _centred(len(table))
    cos, sin = np.cos(angle), np.sin(angle)
    fits = [(wave @ table) ** 2 / np.maximum((wave**2).sum(axis=1), TINY)[:, None] for wave in (cos, sin)]
    return np.asarray(fits[0] + fits[1], dtype=np.float64)


def _centred(n: int) -> Array:
    """The positions 0 to n - 1, less their mean."""
    return np.asarray(np.arange(n) - (n - 1) / 2, dtype=np.float64)
