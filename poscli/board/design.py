"""Encodings designed from a text alone, without training: from its distance profile (poscli/data/profile.py).

Let pi be the distribution of how far back lies what could be copied, between L/8 and 16 L. A bias is a prior of
distances, exp(bias) the odds of a key before its content counts, so that the best bias is log pi, up to a constant; and
what a model is to do at a distance beyond L it can only do with something that it has learned within L. From these two:

- `alibi`: the widest head sees as far as nine in ten copies lie (1 / slope), the narrowest as near as one in ten.
- `kerple-log`, a bias that falls as -r1 log(1 + r2 d): r1 is the exponent of pi, since pi falls as d^-exponent, and r2
  is one over the distance within which one in ten copies lies.
- `t5`: its last bucket begins at the median distance, but at L/2 at most: half of L has to teach it.
- `window`: nine in ten copies lie within it, but L at most, as what is beyond was never seen.
- `rope` with the share of turning pairs p and the base: the share of copies within the window is the share of pairs
  that turn, and the slowest of these turns once within it; the others see content only, at any distance.
- the layout: where more than a fifth of the copies lie beyond the window, layers of rope with that window in turns with
  layers without positions, whose scores grow with log n; else the window alone.

Which encodings to expect in front is the order of their mean losses at 16 L on the board's texts. Whether that order on
some texts holds on another one, and whether that text's profile says how it differs, is asked of the board's own texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import tomli_w

from poscli.board.cells import ELSEWHERE, TextProfile
from poscli.board.ranking import SPENT
from poscli.board.scaling import AT_LENGTH, LONGEST, SEPARABLE
from poscli.data.profile import DistanceProfile
from poscli.drawing.text import listed
from poscli.report.verdicts import UNDERTRAINED_RATIO
from poscli.system.errors import DataError

HEADS = 4  # of the board's models, over which alibi's slopes are spread
FEWEST = 100  # copies, for a profile that says something
LEAST_FALL = 0.05  # of the weight of a key: r1 of kerple-log must be above 0
# What the designs for six texts lost at 16 L beside what they are variants of, three seeds: results/published/designed.
TRIED = {
    "t5": "better on 6 of 6 texts",
    "rope": "better on 5 of 6 texts, worse on none, and it still breaks",
    "rope+window|none+logn": "better on the 1 text of 6 where it differed",
    "kerple-log": "neither better nor worse on 6 of 6 texts",
    "alibi": "worse on 5 of 6 texts, better on none: keep the default",
}
LEAST_TURNING = 0.1  # of the pairs of p-rope
FAR_SHARE = 0.2  # of the copies beyond the window, from which on layers without positions pay
KERPLE_FILE = "designed.py"
KERPLE = '''"""kerple-log whose heads all begin where a text's distances say, not spread over the authors' ranges."""

import math

from torch import nn

from poscli.encodings import Shape, above
from poscli.encodings.kerple import KerpleLog


class DesignedKerple(KerpleLog):
    """s_ij -= r1 log(1 + r2 (i - j)), learned per head from r1 = `falls` and r2 = 1 / `near` on, both above 0.

    `falls` is the exponent with which copies get rarer, and one in ten of them lies within `near` tokens.
    """

    def __init__(self, shape: Shape, *, falls: float = 1.0, near: float = 16.0) -> None:
        super().__init__(shape)
        above(0, falls=falls, near=near)
        for parameter, start in ((self.r1, falls), (self.r2, 1 / near)):
            nn.init.constant_(parameter, math.log(math.expm1(start)))  # softplus of this is `start`
'''


@dataclass(frozen=True)
class Designed:
    """A variant for a text, beside what it is a variant of, and why it is as it is."""

    spec: str
    default: str
    why: str

    @property
    def tried(self) -> str:
        """What was found of such variants (`TRIED`)."""
        return TRIED[self.default]


class Distances:
    """The distribution pi of how far back lies what could be copied, from L/8 to 16 L; even within each octave."""

    def __init__(self, text: str, profile: DistanceProfile) -> None:
        if not profile.tokens:
            raise DataError(
                f"{text}: no held-out document is longer than 16 times L, {profile.octaves[-1][1] + 1} tokens: give "
                "longer documents, or a smaller --length"
            )
        if sum(profile.counts) < FEWEST:
            raise DataError(
                f"{text}: only {sum(profile.counts)} of {profile.tokens:,} tokens could be copied from L/8 to 16 L "
                f"before, and a design needs {FEWEST}: give a longer text, or another --length"
            )
        self.bounds = np.array([profile.octaves[0][0], *(last + 1 for _, last in profile.octaves)], float)
        self.below = np.concatenate([[0.0], np.cumsum(profile.counts)]) / sum(profile.counts)
        self.exponent = max(LEAST_FALL, profile.exponent[0])
        self.falls = profile.exponent[0] >= LEAST_FALL

    def within(self, distance: float) -> float:
        """The share of copies from nearer than a distance."""
        return float(np.interp(distance, self.bounds, self.below))

    def quantile(self, share: float) -> float:
        """The distance within which a share of the copies lies."""
        return float(np.interp(share, self.below, self.bounds))


def designs(distances: Distances, length: int) -> list[Designed]:
    """The variants for a text with training windows of `length` tokens; the file of kerple-log is `KERPLE`."""
    near, middle, far = (distances.quantile(share) for share in (0.1, 0.5, 0.9))
    most = max(1.0, math.log2(far / near) * HEADS / (HEADS - 1))
    last = max(1, round(min(length / 2, middle)))
    window = max(2, round(min(length, far)))
    share = distances.within(window)
    turning = min(1.0, max(LEAST_TURNING, share))
    base = max(1.5, (window / (2 * math.pi)) ** (1 / turning))
    beyond = 1 - share
    near_layers = "rope+window" if window == length else f"rope+window({window})"
    layout = f"{near_layers}|none+logn" if beyond > FAR_SHARE else near_layers
    return [  # those first that were seen to pay
        Designed(
            f"t5(far={last})",
            "t5",
            f"half of the copies lie within {middle:.0f} tokens; the last bucket begins there, at L/2 at most",
        ),
        Designed(
            f"p-rope(p={turning:.2f},base={base:.4g})",
            "rope",
            f"{100 * share:.0f} % of the copies lie within {window} tokens: "
            + (
                "so many pairs turn"
                if share >= LEAST_TURNING
                else f"{100 * LEAST_TURNING:.0f} % of the pairs, the least, turn"
            )
            + ", at least once in these",
        ),
        Designed(
            layout,
            "rope+window|none+logn",
            f"{100 * beyond:.0f} % of the copies lie beyond a window of {window}"
            + (
                ": every other layer looks for them by content"
                if beyond > FAR_SHARE
                else ", too few for layers of their own"
            ),
        ),
        Designed(
            f"{KERPLE_FILE}:DesignedKerple(falls={distances.exponent:.2f},near={near:.0f})",
            "kerple-log",
            (
                f"copies get rarer as d^-{distances.exponent:.2f}, and so does the weight of a key: that is r1"
                if distances.falls
                else f"copies do not get rarer as fast as d^-{LEAST_FALL}, and that is the least for r1"
            )
            + f", and r2 is 1/{near:.0f}",
        ),
        Designed(
            f"alibi(far={far:.0f},most={most:.3g})",
            "alibi",
            f"one in ten copies lies within {near:.0f} tokens, nine in ten within {far:.0f}: as far as its heads see",
        ),
    ]


def suite_source(designed: Mapping[str, Sequence[Designed]], length: int, tokenizer: str, folder: Path) -> str:
    """A suite that trains on each text, with three seeds, every design for it and what that is a variant of.

    Its claims are that designs lose less at 16 L. The file of kerple-log lies in `folder`.
    """
    parts, claims = [], {}
    for text, of_text in designed.items():
        written = [each.spec.replace(KERPLE_FILE, f"{folder}/{KERPLE_FILE}") for each in of_text]
        pairs = list(zip((each.default for each in of_text), written, strict=True))
        parts.append({"encodings": list(dict.fromkeys(chain(*pairs))), "train": {"corpus": text}})
        for default, spec in pairs:
            if spec != default:
                claims[default, spec] = {
                    "says": f"{spec} loses less at 16 L than {default}",
                    "source": "poscli design",
                    "when": [{"of": spec, "over": default, "at": 16, "less": 0}],
                }
    return tomli_w.dumps(
        {
            "title": f"Designed for {listed(list(designed))}, beside the defaults",
            "encodings": list(dict.fromkeys(each.default for of_text in designed.values() for each in of_text)),
            "seeds": [0, 1, 2],
            "train": {
                "tokenizer": tokenizer,
                "preset": "copy",
                "length": length,
                "batch": max(1, 1024 // length),
                "tokens": 1_500_000,
            },
            "extrapolate": {"max_len": "16x", "tokens": 4096, "baselines": []},
            "part": parts,
            "claim": list(claims.values()),
        }
    )


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
        raise DataError(
            f"the board has no profile of {listed(absent)}; {ELSEWHERE}, or measure them with `poscli board run`"
        )
    return found
