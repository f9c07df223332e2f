"""How an encoding looks in every figure of a report: colour, dash and marker, so that print in grey reads too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

# Okabe and Ito's colours, told apart with every kind of colour blindness; the light ones are darkened until a label
# in them can be read on white; wine, grey and brown stand in for their yellow, which never can.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#AA4499", "#000000", "#B07800", "#3592C4", "#882255", "#777777", "#7A4B1E",
)  # fmt: skip
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (7, 1.6, 1.4, 1.6)), (0, (3, 1.2, 1, 1.2, 1, 1.2)))
MARKERS = tuple(product((True, False), "os^Dv"))  # filled, then hollow; x is for failures

INK, QUIET, FAINT = "#1a1a1a", "#6e6e6e", "#b8b8b8"
MOST = 10  # lines a reader can tell apart
BEST, WORST = 5, 2  # the ones in colour where there are more

Dash = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Style:
    """The look of one encoding's line."""

    color: str
    dash: Dash
    marker: str
    filled: bool = True
    strong: bool = True  # False: background, there for completeness

    @property
    def text(self) -> str:
        """The colour of its label."""
        return self.color if self.strong else QUIET


BACKGROUND = Style(FAINT, "-", "", strong=False)
Styles = Mapping[str, Style]


def styles_for(ranked: Sequence[str], failed: Sequence[str] = ()) -> dict[str, Style]:
    """A style for every encoding: all distinct up to ten, else only for the best and the worst few of `ranked`.

    `ranked` holds those with a number at the longest length, best first; `failed` those without. Styles are dealt in
    alphabetical order, so that an encoding keeps its look while the ranking changes.
    """
    everyone = [*ranked, *failed]
    chosen = everyone if len(everyone) <= MOST else [*ranked[:BEST], *ranked[max(BEST, len(ranked) - WORST) :]]
    dealt = {name: _style(index) for index, name in enumerate(sorted(chosen))}
    return {name: dealt.get(name, BACKGROUND) for name in everyone}


def _style(index: int) -> Style:
    filled, marker = MARKERS[index % len(MARKERS)]
    return Style(PALETTE[index % len(PALETTE)], DASHES[index % len(DASHES)], marker, filled)
