"""Do models of some sizes tell of another one? Each size of the star is left out in turn, and predicted from the rest.

Beside the fits stands the simplest prediction, that a size changes nothing: the losses of the board's smallest models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from poscli.board.predictions import Share, as_on_board, pairs_told_apart, share_of_pairs
from poscli.board.scaling import CHANGES, DIRECTIONS, LONGEST, Size, SizeFits
from poscli.board.season import STAR, season_of

HARM = CHANGES[-1]


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
    return share_of_pairs("order of the board", pd.concat(pairs))


def _other_sizes(fits: SizeFits, board: pd.DataFrame) -> Iterator[tuple[Size, pd.DataFrame, pd.DataFrame]]:
    """Each size that the board does not have, with its models of the star's encodings and their means over seeds."""
    for key, models in fits.rows[fits.rows["encoding"].isin(fits.star)].groupby(list(DIRECTIONS)):
        if not (board[list(DIRECTIONS)] == list(key)).all(axis=None):
            means = models.groupby(["encoding", "text"], sort=False)[[LONGEST, HARM]].mean().reset_index()
            yield Size(*map(int, key)), models, means
