"""What the page says about an encoding that its results do not: family, how it acts, formula and paper."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poscli.drawing.style import DASHES, PALETTE, Style
from poscli.encodings import get, missing, names
from poscli.equation.encoding import formula
from poscli.report.catalogue import FAMILIES
from poscli.report.named_once import AS

SEVERAL, OTHER = "several", "other"  # families of specs with several encodings, and of encodings that are not known
TITLES = FAMILIES | {
    SEVERAL: "combinations: several encodings in one model",
    OTHER: "other: not registered here",
}


@dataclass(frozen=True)
class Described:
    """One encoding of a results table. `parts` are its formulas by the names of the encodings that it consists of."""

    family: str
    acts: str
    parts: tuple[tuple[str, str, str], ...]  # (name, formula, paper)


def describe(spec: str) -> Described:
    """Describe a spec by the registered names in it; it is not parsed, so that no file that it names is run.

    >>> describe("rope(base=500000.0)").family, describe("rope|none").family, describe("./mine.py:Mine").family
    ('rotary', 'several', 'other')
    """
    leaves = list(dict.fromkeys(part.strip() for part in re.split(r"[|+]", re.sub(r"\([^()]*\)", "", spec))))
    known = [name for name in leaves if name in names() and not missing(name)]
    parts = tuple((name, formula(get(name)), get(name).paper) for name in known)
    if not known or len(known) < len(leaves):
        family = OTHER
    else:
        family = get(known[0]).family if len(leaves) == 1 else SEVERAL
    family = family if family in TITLES else OTHER
    return Described(family, TITLES[family], parts)


def spec_of(label: str) -> str:
    """The spec in the label of an encoding in a report: without the model, the memory and the marks in brackets.

    >>> spec_of("rope as yarn(factor=4.0) (recalibrated 200k)"), spec_of("none (memory 64) [a1b2c3]")
    ('yarn(factor=4.0)', 'none')
    """
    return re.sub(r"( \((memory|recalibrated) .*\))|( \[[^\]]*\])$", "", label).split(AS)[-1].strip()


@dataclass(frozen=True)
class Look:
    """The colour and the dash of an encoding as numbers in PALETTE and DASHES."""

    color: int
    dash: int
    strong: bool


def looks(families: Mapping[str, str], styles: Mapping[str, Style]) -> dict[str, Look]:
    """The look of every encoding: that of its style; in the background of the styles, the colour used least so far.

    First come colours that no other member of the family has, because they share a chart. No two encodings share both
    colour and dash, as long as there are pairs of them. `families` maps encodings to their families.
    """
    strong = {name: PALETTE.index(style.color) for name, style in styles.items() if style.strong}
    used = Counter(strong.values())
    pairs: Counter[tuple[int, int]] = Counter((color, _dash(styles[name])) for name, color in strong.items())
    found: dict[str, Look] = {}
    for family in dict.fromkeys(families.values()):
        members = [name for name in families if families[name] == family]
        taken = Counter(strong[name] for name in members if name in strong)
        for name in members:
            if name in strong:
                found[name] = Look(strong[name], _dash(styles[name]), True)
                continue
            color = min(range(len(PALETTE)), key=lambda n: (taken[n], used[n], n))
            _, dash = min((pairs[color, n], n) for n in range(len(DASHES)))
            pairs[color, dash] += 1
            found[name] = Look(color, dash, False)
            taken[color] += 1
            used[color] += 1
    return found


def _dash(style: Style) -> int:
    return DASHES.index(style.dash)


def in_order(families: Sequence[str]) -> list[str]:
    """The families that occur, in the order of the table of all encodings."""
    return [family for family in TITLES if family in families]
