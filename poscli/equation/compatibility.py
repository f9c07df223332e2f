"""Which encodings may act together on one layer, and with which scale of q . k."""

from __future__ import annotations

from collections.abc import Sequence

from poscli.equation.blanks import TIERS
from poscli.equation.encoding import Encoding

# Blanks that only one encoding of a layer may fill, with their names in error messages.
EXCLUSIVE = {
    "weights": "what replaces the softmax",
    "similarity": "what replaces q . k",
    "positions": "the positions",
}
ROTATING = {"query", "key"}  # blanks that change q and k by their positions
# Blanks whose arguments hold no positions.
BLIND = {"content_query", "features", "temperature", "reach", "sinks", "potential", "weights"}


def scale_of(parts: Sequence[Encoding]) -> float:
    """The scale of q . k that all parts agree on; ValueError for encodings that cannot act together."""
    for blank, phrase in EXCLUSIVE.items():
        owners = [part.name for part in parts if blank in part.blanks]
        if len(owners) > 1:
            raise ValueError(f"{' and '.join(owners)} both define {phrase}; keep one of them")
    for one in parts:
        for other in parts:
            if other is not one and "similarity" in one.blanks and other.blanks & ROTATING:
                raise ValueError(f"{one.name} replaces q . k and {other.name} turns q and k; keep one of them")
    usual = parts[0].shape.head_width ** -0.5
    scales = {part.scale for part in parts} - {usual}
    if len(scales) > 1:
        raise ValueError(f"{' and '.join(part.name for part in parts)} state different scales of q . k; keep one")
    return scales.pop() if scales else usual


def axes_of(parts: Sequence[Encoding]) -> int:
    """The axes of the positions that all parts share; ValueError if some count along a line and some on a grid."""
    seeing = [part for part in parts if part.blanks - BLIND]
    for part in seeing[1:]:
        if part.axes != seeing[0].axes:
            line, grid = sorted((seeing[0], part), key=lambda each: each.axes)
            raise ValueError(
                f"{line.name} counts positions along a line and {grid.name} on a grid; alternate them with |, or keep "
                f"one of them"
            )
    return seeing[0].axes if seeing else 1


def entangled(parts: Sequence[Encoding]) -> bool:
    """True if scores may depend on absolute positions although those of each part depend on differences only.

    This can happen where two parts change q and k one after the other, and where a potential or pair bias that only
    the softmax would cancel meets a blank that sees the scores themselves.
    """
    blanks = frozenset().union(*(part.blanks for part in parts))
    rotating = sum(bool(part.blanks & ROTATING) for part in parts)
    return rotating > 1 or (bool(blanks & set(TIERS["pair"])) and bool(blanks & {"scores", "weights"}))
