"""Which encodings may act together on a layer, and what can be said of them then."""

from __future__ import annotations

from collections.abc import Sequence

from poscli.encodings.base import Encoding
from poscli.encodings.blanks import TIERS

# blanks of which a layer can have only one, and what to call them
EXCLUSIVE = {
    "weights": "what replaces the softmax",
    "similarity": "what replaces q . k",
    "positions": "the positions",
}
TURNS = {"query", "key"}  # maps that know the position


def scale_of(parts: Sequence[Encoding]) -> float:
    """The one scale of q . k; ValueError for encodings that cannot be joined."""
    for blank, phrase in EXCLUSIVE.items():
        owners = [part.name for part in parts if blank in part.blanks]
        if len(owners) > 1:
            raise ValueError(f"{' and '.join(owners)} both define {phrase}; keep one of them")
    for one in parts:
        for other in parts:
            if other is not one and "similarity" in one.blanks and other.blanks & TURNS:
                raise ValueError(f"{one.name} replaces q . k and {other.name} turns q and k; keep one of them")
    usual = parts[0].shape.head_width ** -0.5
    scales = {part.scale for part in parts} - {usual}
    if len(scales) > 1:
        raise ValueError(f"{' and '.join(part.name for part in parts)} state different scales of q . k; keep one")
    return scales.pop() if scales else usual


def entangled(parts: Sequence[Encoding]) -> bool:
    """Can positions that cancel in each part alone fail to cancel in all of them together?

    They may where one turns what another has turned, or where no softmax removes what a row has in common.
    """
    blanks = frozenset().union(*(part.blanks for part in parts))
    turning = sum(bool(part.blanks & TURNS) for part in parts)
    return turning > 1 or (bool(blanks & set(TIERS["pair"])) and bool(blanks & {"scores", "weights"}))
