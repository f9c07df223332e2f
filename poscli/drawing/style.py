"""How an encoding's line looks in every figure: colour, dash and marker, so that a grey print can be read too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

# The first three and black are of the palette of Okabe and Ito, which readers with any colour blindness can tell apart,
# and #AA4499 is of Tol's muted one. With the others, any two are at least 18 apart in CIEDE2000, on light paper and,
# made readable, on dark. None is grey: that is the colour of all that is not in colour.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#AA4499", "#000000", "#A68542", "#4242A6", "#F20051", "#558000", "#802A19",
)  # fmt: skip
DASHES = (
    "-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (7, 1.6, 1.4, 1.6)), (0, (3, 1.2, 1, 1.2, 1, 1.2)),
    (0, (12, 2.4)), (0, (1.2, 3.6)), (0, (10, 1.6, 1.4, 1.6, 1.4, 1.6)), (0, (6, 5)),
)  # fmt: skip
MARKERS = tuple(product((True, False), "os^Dv"))  # (filled, shape); the shape x marks failures

INK, QUIET, FAINT = "#1a1a1a", "#6e6e6e", "#b8b8b8"  # text; secondary text; frames and background lines
MAX_COLORED_LINES = 10  # a reader cannot tell more lines apart
COLORED_BEST, COLORED_WORST = 5, 2  # lines in colour where there are more than MAX_COLORED_LINES

Dash = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Style:
    """The look of one encoding's line."""

    color: str
    dash: Dash
    marker: str
    filled: bool = True
    strong: bool = True  # False: a thin grey line in the background

    @property
    def text(self) -> str:
        """The colour of the line's label."""
        return self.color if self.strong else QUIET


BACKGROUND = Style(FAINT, "-", "", strong=False)
Styles = Mapping[str, Style]


def styles_for(ranked: Sequence[str], failed: Sequence[str] = (), always: str = "") -> dict[str, Style]:
    """One style per encoding: ten or fewer all differ; of more, only the best, the worst and `always` are coloured.

    `ranked` lists encodings that have a number at the longest length, best first; `failed` lists the others. Styles
    are assigned in alphabetical order, so that an encoding keeps its look when the ranking changes.
    """
    everyone = [*ranked, *failed]
    chosen = everyone
    if len(everyone) > MAX_COLORED_LINES:
        chosen = [*ranked[:COLORED_BEST], *ranked[max(COLORED_BEST, len(ranked) - COLORED_WORST) :]]
        chosen = list(dict.fromkeys([*chosen, *(name for name in everyone if name == always)]))
    assigned = {}
    for n, name in enumerate(sorted(chosen)):
        filled, marker = MARKERS[n % len(MARKERS)]
        assigned[name] = Style(PALETTE[n % len(PALETTE)], DASHES[n % len(DASHES)], marker, filled)
    return {name: assigned.get(name, BACKGROUND) for name in everyone}
