"""Predictions of other models, written down before these are trained, and counted afterwards.

A folder of predictions has

    season.toml          what is to be trained, one table
    predicted.csv        what is predicted of it; a first line says when
    predicted.sha256     the hash of that file, so that it stays as it was
    cells/               what was found, by `poscli board run --season FOLDER/season.toml --cells FOLDER/cells`
    found.csv            the mean loss at L and 16 L, and the mean changes, from the cells

Losses are in bits per token.

Whether models of some sizes tell of another one is also asked of the models that are there: each size of the star is
left out in turn, and predicted from the rest. Beside the fits stands the simplest prediction, that a size changes
nothing: the losses of the board's smallest models.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from poscli.board.cells import read_cells
from poscli.board.scaling import (
    AT_LENGTH,
    CHANGES,
    DIRECTIONS,
    LONGEST,
    RATIOS,
    SEPARABLE,
    Size,
    SizeFits,
    failure,
    losses_by_size,
    losses_on_board,
    size_of,
)
from poscli.board.season import STAR, Season, season_of
from poscli.drawing.text import listed
from poscli.runs.run import AS
from poscli.specs import parse
from poscli.system.errors import CorruptError, DataError, UsageError
from poscli.system.files import read_bytes, write_atomic
from poscli.system.text import utc_stamp

WITHIN = 1.5  # a failure length that is off by no more than this factor counts as predicted
DRAWS = 2000  # of encodings, for the interval of a share of pairs
ENDS = ("", "_low", "_high")  # of a column's name: the prediction and its 95 % interval
HARM = CHANGES[-1]
ON_BOARD = "order of the board, nothing fitted"
DATED = "# registered "  # begins the first line


@dataclass(frozen=True)
class Share:
    """How many predictions of one kind were `right`, of a `count` of them.

    `low` and `high` are the ends of the 95 % interval of the share over draws of encodings, if it is one of pairs.
    """

    of: str
    right: int
    count: int
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Miss:
    """A prediction that did not hold, and what was found instead.

    Both are differences of losses in bits per token, or multiples of L for the length from which on an encoding fails.
    """

    text: str
    what: str
    predicted: float
    found: float


@dataclass(frozen=True)
class Score:
    """What held of the predictions in a folder; `ceiling` is how often one seed says what another does."""

    registered: str  # the date; "" if the file has none
    encodings: int
    seeds: int
    shares: tuple[Share, ...]
    ceiling: Share
    misses: tuple[Miss, ...]  # of the order and of harm or gain, the largest first
    failures: tuple[Miss, ...]  # those that are off by more than WITHIN; infinite where no length harms


def write_predictions(folder: Path, fits: SizeFits) -> tuple[Path, list[str]]:
    """Write what the fits predict of the models in a folder's season.toml; returns the file, and what has no fit.

    UsageError if there is a prediction, if models were trained already, if these learn from another text or in other
    tokens than those of the fits, or if the fits give no order.
    """
    season, file = _season(folder), folder / "predicted.csv"
    (table,) = season.table
    if file.exists():
        raise UsageError(f"{file} is a prediction already, which must not change; register another in another folder")
    if read_cells(folder / "cells", season.name):
        raise UsageError(f"{folder / 'cells'} has models already: what they lose can no longer be predicted")
    fitted, train, file_of_season = season_of(STAR).train, season.training_of(table), folder / "season.toml"
    for name in ("corpus", "tokenizer"):
        if (own := getattr(train, name)) != (known := getattr(fitted, name)):
            raise UsageError(
                f"{file_of_season} has {name} = {own!r}, and the fits are to models of {known!r}; take that"
            )
    texts = [text for text in season.texts if text in fits.texts]
    if not texts:
        raise UsageError(f"{file_of_season} has no text that is fitted; give it some of {listed(fits.texts)}")
    size, rows = size_of(season, table), []
    encodings = [str(parse(spec)) for spec in table.encodings]
    without = [encoding for encoding in encodings if encoding not in fits.slopes_of]
    for text in texts:
        middle = fits.middle(text, size)
        for encoding in encodings:
            if encoding in without:
                continue
            found = fits.predict(encoding, text, size)
            if math.isnan(found.order[0]):
                raise UsageError(
                    f"nothing tells the order of {encoding} on {text} yet: the star lacks models; "
                    f"`poscli board run --season {STAR.stem}` trains them"
                )
            row = {"encoding": encoding, "text": text, LONGEST: middle + found.order[0]}
            named = zip((*CHANGES, "fails"), (*found.changes, found.fails), strict=True)
            rows.append(
                row | {name + end: value for name, three in named for end, value in zip(ENDS, three, strict=True)}
            )
    if not rows:
        raise UsageError(f"no encoding of {file_of_season} has a fit; give it some of {list(fits.slopes_of)}")
    content = f"{DATED}{utc_stamp()}\n"
    content += pd.DataFrame(rows).round(4).to_csv(index=False)
    write_atomic(file, content)
    write_atomic(folder / "predicted.sha256", f"{hashlib.sha256(content.encode()).hexdigest()}  {file.name}\n")
    return file, without


def score_predictions(folder: Path, board: Path) -> Score:
    """Count what held of the predictions in a folder, and write what was found; CorruptError if they were changed.

    Beside it stands how often the order of the board's smallest models holds, of the cells in the folder `board`.
    """
    season = _season(folder)
    registered, predicted = _read_predicted(folder)
    rows = losses_by_size(folder / "cells", season)
    if rows.empty:
        raise DataError(
            f"{folder / 'cells'} has no models yet; train them with `poscli board run --season {folder}/season.toml "
            f"--cells {folder}/cells`"
        )
    if registered and (early := rows[rows["made"] < registered]).any(axis=None):
        raise DataError(
            f"{early['encoding'].iloc[0]} of {folder / 'cells'} was trained at {early['made'].iloc[0]}, before the "
            f"prediction, which is of {registered}"
        )
    predicted["encoding"] = [canonical(label) for label in predicted["encoding"]]
    found = rows.groupby(["encoding", "text"], sort=False)[[AT_LENGTH, LONGEST, *CHANGES]].mean().reset_index()
    found.round(4).to_csv(folder / "found.csv", index=False)
    both = predicted.merge(found, on=["encoding", "text"], suffixes=("_predicted", ""))
    if both.empty:
        raise DataError(f"nothing in {folder / 'predicted.csv'} has been trained yet")
    pairs = pairs_told_apart(both, rows)
    shares = [share_of_pairs(f"order on {text}", own) for text, own in pairs.groupby("text", sort=False)]
    shares.append(share_of_pairs("order", pairs))
    on_board = pairs_told_apart(as_on_board(both, losses_on_board(board)), rows)
    if not on_board.empty:
        shares.append(share_of_pairs(ON_BOARD, on_board))
    misses = [
        Miss(row.text, f"{row.one} less {row.other} at {RATIOS[-1]} L", row.predicted, row.found)
        for row in pairs[~pairs["held"]].itertuples()
    ]
    for ratio, name in zip(RATIOS, CHANGES, strict=True):
        named = both[both[f"{name}_predicted"].abs() > SEPARABLE]
        held = named[name] * named[f"{name}_predicted"] > 0
        shares.append(Share(f"harm or gain at {ratio} L", int(held.sum()), len(named)))
        misses += [
            Miss(row["text"], f"{row['encoding']} at {ratio} L", row[f"{name}_predicted"], row[name])
            for _, row in named[~held].iterrows()
        ]
    if all(f"{name}{end}" in both for name in CHANGES for end in ENDS[1:]):
        within = [both[name].between(both[f"{name}_low"], both[f"{name}_high"]) for name in CHANGES]
        shares.append(Share("change within its 95 % interval", int(sum(map(sum, within))), len(CHANGES) * len(both)))
    misses.sort(key=lambda miss: -abs(miss.found - miss.predicted))
    of_failures, failures = _failures(both)
    return Score(
        registered=registered,
        encodings=both["encoding"].nunique(),
        seeds=rows.groupby("seed").ngroups,
        shares=(*shares, *of_failures),
        ceiling=_ceiling(rows),
        misses=tuple(misses),
        failures=tuple(failures),
    )


def canonical(label: str) -> str:
    """The name in cells of an encoding, or of a model that is read as another one."""
    return AS.join(str(parse(part)) for part in label.split(AS))


def _season(folder: Path) -> Season:
    if not (folder / "season.toml").is_file():
        raise UsageError(f"{folder} has no season.toml, which says what is to be trained; write one like {STAR}")
    season = season_of(folder / "season.toml")
    if len(season.table) != 1:
        raise UsageError(f"{folder / 'season.toml'} has {len(season.table)} tables; predictions are of one")
    return season


def _read_predicted(folder: Path) -> tuple[str, pd.DataFrame]:
    """The date of a prediction and its rows."""
    cure = "restore it from where it was committed"
    content = read_bytes(folder / "predicted.csv", cure)
    known = read_bytes(folder / "predicted.sha256", cure).decode("utf-8", "replace").split()
    if not known or known[0] != hashlib.sha256(content).hexdigest():
        raise CorruptError(f"{folder / 'predicted.csv'} is not the prediction that was registered; {cure}")
    text = content.decode()
    registered = text.splitlines()[0].removeprefix(DATED) if text.startswith(DATED) else ""
    return registered, pd.read_csv(io.StringIO(text), comment="#")


def _by_seed(rows: pd.DataFrame) -> dict[tuple[str, str], pd.Series]:
    """By text and encoding, the loss at 16 L of each seed."""
    return {(text, name): of.set_index("seed")[LONGEST] for (text, name), of in rows.groupby(["text", "encoding"])}


def pairs_told_apart(both: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Every pair of encodings that models tell apart, and whether its order is the predicted one.

    They do if they differ by more than SEPARABLE in the mean of the seeds that both have, and all of these have one
    sign; where they have no seed in common, as models of two seasons, if their means differ by more. `both` has the
    predicted loss at 16 L of encodings on texts, `models` a row for each model (`losses_by_size`).
    """
    rows, seeds = [], _by_seed(models)
    for text, of in both.groupby("text", sort=False):
        for (_, one), (_, other) in combinations(of.iterrows(), 2):
            apart = (seeds[text, one["encoding"]] - seeds[text, other["encoding"]]).dropna()
            if apart.empty:
                apart = pd.Series([seeds[text, one["encoding"]].mean() - seeds[text, other["encoding"]].mean()])
            expected = one[f"{LONGEST}_predicted"] - other[f"{LONGEST}_predicted"]
            told = abs(apart.mean()) > SEPARABLE and abs(np.sign(apart).sum()) == len(apart)
            if told and not math.isnan(expected):
                held = expected * apart.mean() > 0
                rows.append((text, one["encoding"], other["encoding"], expected, apart.mean(), held))
    columns = ["text", "one", "other", "predicted", "found", "held"]
    return pd.DataFrame(rows, columns=columns).astype({"held": bool})


def as_on_board(both: pd.DataFrame, board: pd.DataFrame) -> pd.DataFrame:
    """The same rows, predicted to lose what models of the board do (`losses_on_board`)."""
    losses = board.groupby(["encoding", "text"])[LONGEST].mean().rename(f"{LONGEST}_predicted")
    return both.drop(columns=losses.name, errors="ignore").merge(losses, how="left", on=["encoding", "text"])


def share_of_pairs(name: str, pairs: pd.DataFrame) -> Share:
    """The share of pairs that held. Its interval is over encodings: the pairs of one are not independent."""
    if pairs.empty:
        return Share(name, 0, 0)
    names = sorted({*pairs["one"], *pairs["other"]})
    drawn = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), size=DRAWS)
    one, other = (drawn[:, [names.index(each) for each in pairs[side]]] for side in ("one", "other"))
    weights = one * other
    held = weights @ pairs["held"].to_numpy(float)
    low, high = np.quantile((held / np.maximum(1, weights.sum(axis=1)))[weights.sum(axis=1) > 0], [0.025, 0.975])
    return Share(name, int(pairs["held"].sum()), len(pairs), float(low), float(high))


@dataclass(frozen=True)
class SizeLeftOut:
    """How well models of one size are predicted by fits to all other sizes, and by the board's smallest models.

    `by_fits` and `by_board` say how often each of the two predicts the order of a pair of encodings at 16 L.
    `off_by_fits` and `off_by_board` say how far their predicted change at 16 L is off, in bits per token: the root mean
    square over encodings and texts. Sometimes the other sizes cannot tell what this one changes, for example if it is
    the only one with another number of tokens. Then `by_fits` has no pairs, and `off_by_fits` is NaN.
    """

    size: Size
    by_fits: Share
    by_board: Share
    off_by_fits: float
    off_by_board: float


def sizes_left_out(fits: SizeFits, board: pd.DataFrame) -> list[SizeLeftOut]:
    """For each size of the fitted models, what is predicted of it without them, and what the board alone predicts.

    `board` has the losses of the board's smallest models (`losses_on_board`).
    """
    harm_on_board = board.groupby(["encoding", "text"])[HARM].mean()
    found = []
    for size, models, both in _other_sizes(fits, board):
        others = SizeFits(fits.rows.drop(models.index), season_of(STAR))
        predicted = [
            others.predict(row.encoding, row.text, size) if row.encoding in others.slopes_of else None
            for row in both.itertuples()
        ]
        both[f"{LONGEST}_predicted"] = [each.order[0] if each else np.nan for each in predicted]
        by_fits = np.array([each.changes[-1][0] if each else np.nan for each in predicted])
        by_board = harm_on_board.reindex(pd.MultiIndex.from_frame(both[["encoding", "text"]])).to_numpy()
        found.append(
            SizeLeftOut(
                size,
                share_of_pairs("order of the fits", pairs_told_apart(both, models)),
                share_of_pairs("order of the board", pairs_told_apart(as_on_board(both, board), models)),
                *(float(np.sqrt(np.mean((each - both[HARM]) ** 2))) for each in (by_fits, by_board)),
            )
        )
    return found


def order_kept(fits: SizeFits, board: pd.DataFrame) -> Share:
    """Of the pairs of encodings that models of other sizes tell apart, how many are in the order of the board."""
    pairs = [pairs_told_apart(as_on_board(both, board), models) for _, models, both in _other_sizes(fits, board)]
    return share_of_pairs("order of the board", pd.concat(pairs) if pairs else pd.DataFrame())


def _other_sizes(fits: SizeFits, board: pd.DataFrame) -> Iterator[tuple[Size, pd.DataFrame, pd.DataFrame]]:
    """Each size that the board does not have, with its models of the star's encodings and their means over seeds."""
    for key, models in fits.rows[fits.rows["encoding"].isin(fits.star)].groupby(list(DIRECTIONS)):
        if not (board[list(DIRECTIONS)] == list(key)).all(axis=None):
            means = models.groupby(["encoding", "text"], sort=False)[[LONGEST, HARM]].mean().reset_index()
            yield Size(*map(int, key)), models, means


def _failures(both: pd.DataFrame) -> tuple[list[Share], list[Miss]]:
    """How well failure lengths were predicted: two shares, and the predictions that are off by more than WITHIN.

    The first share is of encodings that fail by 16 L, in prediction or in truth: how many are off by no more than
    WITHIN. The second is of those that were predicted not to fail: how many do not.
    """
    lengths = [
        Miss(
            row["text"],
            row["encoding"],
            *(failure(RATIOS, [row[name + end] for name in CHANGES]) for end in ("_predicted", "")),
        )
        for _, row in both.iterrows()
    ]
    fail = [each for each in lengths if math.isfinite(each.predicted) or math.isfinite(each.found)]
    off = [each for each in fail if max(each.predicted, each.found) > WITHIN * min(each.predicted, each.found)]
    hold = [each for each in lengths if not math.isfinite(each.predicted)]
    shares = [
        Share(f"failure length within a factor of {WITHIN:g}", len(fail) - len(off), len(fail)),
        Share(f"no failure up to {RATIOS[-1]} L", sum(not math.isfinite(each.found) for each in hold), len(hold)),
    ]
    return shares, off


def _ceiling(rows: pd.DataFrame) -> Share:
    """How often a second seed orders a pair of encodings as a first seed does that tells them apart."""
    seeds, right, count = _by_seed(rows), 0, 0
    for (text, one), (other_text, other) in combinations(seeds, 2):
        if text != other_text:
            continue
        apart = (seeds[text, one] - seeds[text, other]).dropna().tolist()
        for first, second in combinations(apart, 2):
            if abs(first) > SEPARABLE:
                right, count = right + (first * second > 0), count + 1
    return Share("one seed of another", right, count)
