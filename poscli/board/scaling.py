"""How encodings change with the size of the model, L and the budget: fits to the cells of the board and of its star.

The *star* (star.toml) has models that differ from the board's in one thing at a time. On each text, and for each
encoding, an outcome y is fitted as

    y = a + b1 log2(width) + b2 log2(layers) + b3 log2(L) + b4 log2(tokens)

by least squares, a row for each model. Outcomes are what 2, 4, 8 and 16 times the training length change in the loss,
in bits per token, and the loss at 16 L less the mean over the star's encodings there, by which encodings are ordered.
An encoding that is on the board and not in the star has an a of its own, and the b of its family's encodings in the
star.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import scipy  # whose parts are loaded when they are used
from numpy.typing import NDArray

from poscli.board.arrays import of_newest_source
from poscli.board.cells import ELSEWHERE, PER_NAT, read_with_documents
from poscli.board.season import STAR, Season, SeasonTable, current_season, season_of
from poscli.config.resolve import model_config
from poscli.drawing.text import listed, named
from poscli.report.catalogue import describe_spec
from poscli.runs.run import AS
from poscli.specs import parse
from poscli.statistics import UNKNOWN, UPPER, Triple
from poscli.statistics.comparison import LN2
from poscli.statistics.intervals import around
from poscli.system.errors import DataError, UsageError, near

RATIOS = (2, 4, 8, 16)
CHANGES = tuple(f"change_{ratio}x" for ratio in RATIOS)
AT_LENGTH, LONGEST, ORDER = "bits_L", "bits_16x", "order"  # columns beside CHANGES; ORDER is relative to the others
SEPARABLE = 0.02  # bits per token: what lies nearer to 0 is neither harm nor gain, and no difference
DIRECTIONS = ("width", "layers", "length", "tokens")  # in which the star goes


@dataclass(frozen=True)
class Size:
    """The size of models, the length of their training windows, and the tokens of their training."""

    width: int
    layers: int
    length: int
    tokens: int

    @property
    def logarithms(self) -> NDArray[np.float64]:
        """Its directions in octaves, `[4]`."""
        return np.array([math.log2(getattr(self, name)) for name in DIRECTIONS])


def size_of(season: Season, table: SeasonTable) -> Size:
    """The size of the models of a table."""
    train = season.training_of(table)
    model = model_config(train.preset, train.model)
    assert train.length is not None
    return Size(model.width, model.layers, train.length, train.tokens)


def losses_by_size(folder: Path, season: Season) -> pd.DataFrame:
    """What models lose on each text of a season, in bits per token, from cells: a row for each model and text.

    Columns are encoding, text, seed, width, layers, length, tokens, made (the end of the training), and those of
    outcomes: AT_LENGTH, LONGEST, CHANGES. A model is left out if it has no loss at some length, if its learning rates
    are tuned, or if it was not trained at the L of its table. DataError if a model was not read up to 16 L.
    """
    cells, documents = read_with_documents(folder, season.name)
    sizes = {table.name: size_of(season, table) for table in season.table}
    rows = []
    for cell in of_newest_source(cells):
        size = sizes.get(cell.table)
        if size is None or cell.trained_at != size.length or cell.recipe or any(each != "ok" for each in cell.status):
            continue
        if absent := {ratio * size.length for ratio in (1, *RATIOS)} - {*cell.lengths}:
            raise DataError(
                f"{cell.file} has no loss at {min(absent)} tokens, and what a size changes is asked up to "
                f'{RATIOS[-1]} L; give the season max_len = "{RATIOS[-1]}x" in [extrapolate]'
            )
        wanted = [cell.lengths.index(ratio * size.length) for ratio in (1, *RATIOS)]
        tokens = sum(documents[cell.documents].tokens)
        first, *more = (sum(cell.hundredths[at]) / (PER_NAT * LN2 * tokens) for at in wanted)
        row = {"encoding": cell.encoding, "text": cell.text, "seed": cell.seed, "made": cell.origin.date}
        row |= {name: getattr(size, name) for name in DIRECTIONS} | {AT_LENGTH: first, LONGEST: more[-1]}
        rows.append(row | {name: each - first for name, each in zip(CHANGES, more, strict=True)})
    columns = ["encoding", "text", "seed", "made", *DIRECTIONS, AT_LENGTH, LONGEST, *CHANGES]
    return pd.DataFrame(rows, columns=columns)


def losses_on_board(folder: Path) -> pd.DataFrame:
    """What the smallest models of the board lose, as `losses_by_size`."""
    rows = losses_by_size(folder, current_season())
    return rows[rows["layers"] == rows["layers"].min()]


@dataclass(frozen=True)
class Fit:
    """Least squares with an intercept for each encoding and slopes in common, of one outcome on one text."""

    intercepts: dict[str, int]  # by encoding, its place among the coefficients
    coefficients: NDArray[np.float64]
    covariance: NDArray[np.float64]  # in units of the variance of the residuals
    spread: float  # of the residuals, a standard deviation
    degrees: int

    def at(self, encoding: str, size: Size) -> Triple:
        """The outcome of one more model, with its 95 % interval.

        The interval is infinite if there are no more models than coefficients. All three numbers are NaN for an
        encoding that was not fitted.
        """
        if encoding not in self.intercepts:
            return UNKNOWN
        x = self._row(encoding, size)
        value = float(x @ self.coefficients)
        if self.degrees < 1:
            return value, -math.inf, math.inf
        return around(value, self._reach(float(1 + x @ self.covariance @ x)))

    @property
    def per_octave(self) -> dict[str, Triple]:
        """By direction, what a doubling adds to the outcome, with its 95 % interval; NaN if none was fitted."""
        if not self.intercepts:
            return dict.fromkeys(DIRECTIONS, UNKNOWN)
        return {
            name: around(float(self.coefficients[n]), self._reach(self.covariance[n, n]))
            for n, name in enumerate(DIRECTIONS, start=len(self.intercepts))
        }

    def _reach(self, variance: float) -> float:
        """How far a 95 % interval reaches, of a number whose variance is in units of that of the residuals."""
        return self.spread * math.sqrt(variance) * float(scipy.special.stdtrit(max(1, self.degrees), UPPER))

    def _row(self, encoding: str, size: Size) -> NDArray[np.float64]:
        x = np.zeros(len(self.coefficients))
        x[self.intercepts[encoding]] = 1
        x[-len(DIRECTIONS) :] = size.logarithms
        return x


def fit(rows: pd.DataFrame, outcome: str) -> Fit:
    """Fit an outcome to rows of some encodings on one text (`losses_by_size`).

    No encoding is fitted if these models have too few sizes to tell the directions apart.
    """
    rows = rows[rows[outcome].notna()]
    names = sorted(set(rows["encoding"]))
    x = np.zeros((len(rows), len(names) + len(DIRECTIONS)))
    x[np.arange(len(rows)), [names.index(name) for name in rows["encoding"]]] = 1
    x[:, len(names) :] = np.log2(rows[list(DIRECTIONS)].to_numpy(float))
    y = rows[outcome].to_numpy(float)
    coefficients, _, rank, _ = np.linalg.lstsq(x, y)
    if rank < x.shape[1]:
        names = []
    degrees = len(y) - int(rank)
    spread = math.sqrt(float(np.sum((y - x @ coefficients) ** 2)) / degrees) if degrees else math.nan
    covariance = np.linalg.pinv(x.T @ x).astype(float)
    return Fit({name: n for n, name in enumerate(names)}, coefficients, covariance, spread, degrees)


@dataclass(frozen=True)
class Predicted:
    """What is predicted of an encoding on a text, each with its 95 % interval for one more model.

    `changes` are by multiple of L, and `order` is the loss at 16 L less the mean over the star's encodings, in bits per
    token. `fails` is the multiple of L from which on a longer context harms by more than SEPARABLE, infinite for none
    up to 16.
    """

    encoding: str
    text: str
    changes: tuple[Triple, ...]
    order: Triple
    fails: Triple


@dataclass(frozen=True)
class Slopes:
    """What a doubling adds to what 16 L change in the loss, in bits per token, by direction, with 95 % intervals."""

    encoding: str
    per_octave: dict[str, Triple]
    models: int  # that the slopes are fitted to


class SizeFits:
    """The fits of all encodings, made when they are asked for."""

    def __init__(self, rows: pd.DataFrame, star: Season) -> None:
        self.star = [str(parse(spec)) for spec in star.encodings]
        self.rows = _with_order(rows[rows["text"].isin(star.texts)], self.star)
        self.texts = [text for text in star.texts if (self.rows["text"] == text).any()]
        self._fits: dict[tuple[str, str, str], Fit] = {}

    @cached_property
    def slopes_of(self) -> dict[str, tuple[str, ...]]:
        """For each encoding, the encodings whose models say what a size changes in it.

        An encoding that was trained at several sizes has itself alone. Others have the encodings of their family that
        were, and are left out if there are none.
        """
        turns = self.rows.groupby("encoding")[list(DIRECTIONS)].nunique().min(axis=1) > 1
        own = [name for name in self.star if turns.get(name, False)]
        family = {name: describe_spec(name).family for name in self.encodings}
        found = {name: tuple(other for other in own if family[other] == family[name]) for name in self.encodings}
        return {name: (name,) if name in own else others for name, others in found.items() if name in own or others}

    @property
    def encodings(self) -> list[str]:
        """The encodings that models were trained with, those of the star first."""
        there = [name for name in dict.fromkeys(self.rows["encoding"]) if AS not in name]
        return [*(name for name in self.star if name in there), *sorted(set(there) - set(self.star))]

    def rows_of(self, encoding: str) -> pd.DataFrame:
        """The rows that an encoding is fitted to: its own, and those that tell its slopes."""
        return self.rows[self.rows["encoding"].isin({encoding, *self.slopes_of[encoding]})]

    def ranges(self, encoding: str) -> dict[str, tuple[int, int]]:
        """By direction, the smallest and the largest that an encoding was fitted to."""
        rows = self.rows_of(encoding)
        return {name: (int(rows[name].min()), int(rows[name].max())) for name in DIRECTIONS}

    def beyond(self, size: Size, encodings: Sequence[str]) -> list[str]:
        """How a size lies outside of what these encodings were fitted to, in words."""
        found: dict[str, list[str]] = {}
        for encoding in encodings:
            for name, (low, high) in self.ranges(encoding).items():
                if not low <= getattr(size, name) <= high:
                    found.setdefault(f"{name} {getattr(size, name):,} ({low:,} to {high:,}", []).append(encoding)
        said = [
            f"{what})" if len(of) == len(encodings) else f"{what} of {listed(list(map(named, of)))})"
            for what, of in found.items()
        ]
        changed = [name for name in DIRECTIONS if getattr(size, name) != self.rows[name].mode()[0]]
        return said if len(changed) < 2 else [*said, f"{listed(changed)} at once (the models differ in one at a time)"]

    def fit_of(self, encoding: str, text: str, outcome: str) -> Fit:
        """The fit of an outcome of an encoding on a text."""
        if (encoding, text, outcome) not in self._fits:
            rows = self.rows_of(encoding)
            self._fits[encoding, text, outcome] = fit(rows[rows["text"] == text], outcome)
        return self._fits[encoding, text, outcome]

    def texts_of(self, chosen: Sequence[str]) -> list[str]:
        """The chosen texts, or all; UsageError for one that is not fitted."""
        for text in chosen:
            if text not in self.texts:
                raise UsageError(f"--text {text!r}: nothing is fitted there; {near(text, self.texts)}")
        return [*chosen] or self.texts

    def names_of(self, chosen: Sequence[str]) -> list[str]:
        """The chosen encodings as they are called in cells, or those of the star; UsageError for one without a fit."""
        names = [str(parse(spec)) for spec in chosen] or [name for name in self.star if name in self.slopes_of]
        for name in names:
            if name not in self.slopes_of:
                sized = [each for each in self.star if each in self.slopes_of]
                raise UsageError(
                    f"no models tell what their size changes in {name!r}; there are such of "
                    f"{listed(sized, len(sized))}, and {len(self.slopes_of) - len(sized)} others count as one of these"
                )
        return names

    def slopes(self, encoding: str, text: str) -> Slopes:
        """What doublings change in an encoding on a text."""
        found = self.fit_of(encoding, text, CHANGES[-1])
        return Slopes(encoding, found.per_octave, found.degrees + len(found.coefficients))

    def middle(self, text: str, size: Size) -> float:
        """The loss at 16 L of models of a size, the mean over the star's encodings."""
        rows = self.rows[(self.rows["text"] == text) & self.rows[ORDER].notna()]
        middles = rows.assign(encoding="", middle=rows[LONGEST] - rows[ORDER])
        return fit(middles, "middle").at("", size)[0]

    def predict(self, encoding: str, text: str, size: Size) -> Predicted:
        """What models of a size will do, with an encoding that has a fit (`slopes_of`)."""
        changes = tuple(self.fit_of(encoding, text, name).at(encoding, size) for name in CHANGES)
        order = self.fit_of(encoding, text, ORDER).at(encoding, size)
        value, low, high = (failure(RATIOS, [change[n] for change in changes]) for n in range(3))
        return Predicted(encoding, text, changes, order, (value, high, low))


def fits_in(folder: Path) -> SizeFits | None:
    """The fits to the cells in a folder; None if the star has too few models there."""
    board, star = current_season(), season_of(STAR)
    rows = pd.concat([losses_by_size(folder, season) for season in (star, board)], ignore_index=True)
    fits = SizeFits(rows, star)
    return fits if fits.slopes_of else None


def read_scaling(folder: Path) -> SizeFits:
    """The fits to the cells in a folder; DataError if the star has too few models there."""
    fits = fits_in(folder)
    if fits is None:
        raise DataError(
            f"{folder} has too few models of other sizes for a fit; {ELSEWHERE}, or train them with `poscli board run "
            f"--season {STAR.stem}`"
        )
    return fits


def failure(ratios: Sequence[float], changes: Sequence[float]) -> float:
    """The multiple of L from which on a longer context harms by more than SEPARABLE; infinite if there is none.

    `changes` are what reading these `ratios` of L changes in the loss; if one is NaN, so is the result. Between two
    ratios, the change is taken to be linear in the logarithm of the ratio.

    >>> failure((2, 4), (0.01, 0.03)), failure((2, 4), (-0.1, -0.2))
    (2.8284271247461903, inf)
    """
    if any(math.isnan(change) for change in changes):
        return math.nan
    before, at = 0.0, 0.0
    for octave, change in zip(np.log2(ratios).tolist(), changes, strict=True):
        if change > SEPARABLE:
            return float(2 ** (at + (octave - at) * (SEPARABLE - before) / (change - before)))
        before, at = change, octave
    return math.inf


def _with_order(rows: pd.DataFrame, star: Iterable[str]) -> pd.DataFrame:
    """Rows with ORDER: the loss at 16 L less its mean over the star's encodings in models of that size on that text.

    It is missing where a size lacks one of them.
    """
    of_star = rows[rows["encoding"].isin(list(star))]
    means = of_star.groupby(["text", *DIRECTIONS, "encoding"])[LONGEST].mean().unstack()
    middle = means.reindex(columns=list(star)).mean(axis=1, skipna=False).rename("middle").reset_index()
    merged = rows.merge(middle, how="left", on=["text", *DIRECTIONS])
    return merged.assign(**{ORDER: merged[LONGEST] - merged["middle"]}).drop(columns="middle")
