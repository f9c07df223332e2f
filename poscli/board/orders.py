"""Does the order of encodings on some texts hold on another one, and does that text's profile say how it differs?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from poscli.board.cells import TextProfile
from poscli.board.ranking import SPENT
from poscli.board.scaling import AT_LENGTH, LONGEST, SEPARABLE
from poscli.drawing.text import listed
from poscli.report.verdicts import UNDERTRAINED_RATIO
from poscli.system.errors import DataError


@dataclass(frozen=True)
class LeftOut:
    """How many pairs on a text the board's order on its other texts gets right, alone and with the texts' exponents."""

    text: str
    right: int
    right_by_profile: int
    count: int


class Orders:
    """Encodings on several texts by their loss at 16 L less that of the median encoding, from rows of one size."""

    def __init__(self, rows: pd.DataFrame, exponents: Mapping[str, float]) -> None:
        """Rows are those of `losses_by_size`; those of encodings that are undertrained at L are left out.

        DataError if there are none.
        """
        self.exponents = exponents
        rows = rows[rows["text"].isin(list(exponents))]
        if rows.empty:
            raise DataError(
                f"the board has no models with losses on {listed(list(exponents))}; `poscli board run` trains them"
            )
        at_length = rows.groupby("encoding")[AT_LENGTH].mean()
        trained = at_length.index[at_length <= at_length.min() + math.log2(UNDERTRAINED_RATIO)]
        of_seed = rows[rows["encoding"].isin(trained)].pivot_table(LONGEST, "encoding", ["text", "seed"])
        seeds = of_seed.T.groupby(level="text").count().min()  # of the text with fewest
        of_seed = of_seed[seeds >= min(*SPENT, seeds.max())].dropna(axis="columns")  # seeds that all have
        losses = of_seed.T.groupby(level="text").mean().T
        self.of_seed, self.relative = of_seed, losses - losses.median()

    def on_all(self) -> list[str]:
        """The encodings, best first, by the mean over texts."""
        return [str(name) for name in self.relative.mean(axis=1).sort_values(kind="stable").index]

    def left_out(self) -> list[LeftOut]:
        """Does the order on all texts but one hold on that one, and does the profile say how it differs?

        The order is that of the mean. By profile, the relative loss of each encoding is a straight line in the exponent
        instead, by least squares. Pairs count if all seeds have one sign, and the mean differs by more than SEPARABLE.
        """
        found = []
        for text, exponent in self.exponents.items():
            others = [each for each in self.exponents if each != text]
            x = np.array([[1.0, self.exponents[each]] for each in others])
            lines = np.linalg.lstsq(x, self.relative[others].T.to_numpy())[0]
            expected = self.relative[others].mean(axis=1).to_numpy(), np.array([1.0, exponent]) @ lines
            seeds = self.of_seed[text].to_numpy()
            one, other = np.triu_indices(len(seeds), 1)
            apart = seeds[one] - seeds[other]
            middle, signs = apart.mean(axis=1), np.abs(np.sign(apart).sum(axis=1))
            told = (np.abs(middle) > SEPARABLE) & (signs == apart.shape[1])
            right, by_profile = (int((((y[one] - y[other]) * middle > 0) & told).sum()) for y in expected)
            found.append(LeftOut(text, right, by_profile, int(told.sum())))
        return found


def exponents_of(profiles: Mapping[str, TextProfile], texts: Sequence[str]) -> dict[str, float]:
    """The exponents of texts; DataError if one has no profile."""
    known = {text: profile.exponent for text in texts if (profile := profiles.get(text))}
    found = {text: exponent[0] for text, exponent in known.items() if exponent}
    if absent := sorted(set(texts) - set(found)):
        raise DataError(f"the board has no profile of {listed(absent)}; `poscli board run` measures them")
    return found
