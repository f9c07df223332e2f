"""Is attention invariant under shifts: does it change when all positions move by the same amount?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poscli.equation import Encoding, Unsupported
from poscli.equation.operands import grid_shape
from poscli.inspect.properties.row import Property, in_training_lengths, percent, relative_change
from poscli.inspect.properties.tested_model import TestedModel
from poscli.verify.noise import FLOAT32, draw_inputs
from poscli.verify.probe import attend_at, embedded
from poscli.verify.shifted import shifted_positions

TOKENS = {1: 64, 2: 16}  # that attend to each other, by the axes of positions, at most; always fewer than L
MULTIPLES = {1: (1, 4, 16), 2: (1, 2, 4)}  # of L for one axis; of the sides of the grid of L cells for two


def shift_invariance(tested: TestedModel) -> Property:
    """The change of attention when all positions move: by 1 token up to 16 L, or by 1 up to 4 sides of a grid.

    On a line the tokens are then the last ones of a longer text, so that attention changes for encodings that depend on
    the total length, too.
    """
    changes: dict[str, float | None] = {}
    limits: dict[str, float] = {}
    for encoding in tested.exact:
        for label, shift in shifts(tested.length, encoding.axes).items():
            change, known = _change(tested, encoding, shift), changes.get(label, 0.0)
            changes[label] = None if change is None or known is None else max(change, known)
            limits[label] = rounding_limit(tested, shift)
    beyond = [label for label, change in changes.items() if change is not None and change > limits[label]]
    known_changes = {label: change for label, change in changes.items() if change is not None}
    invariant = not beyond if known_changes else None
    numbers = {
        "change": changes,
        "limit": limits,
        "invariant": invariant,
        "declared": _declared(tested),
        "agrees": None if invariant is None else _agrees(tested, invariant),
    }
    refused = [label for label, change in changes.items() if change is None]
    ending = f"; refuses a shift of {refused[0]}" if refused else ""
    value = f"no: {percent(known_changes[beyond[-1]])} at a shift of {beyond[-1]}" if beyond else "yes"
    if invariant is None:
        return Property("shift-invariant", "not known", "The encoding refuses every shift.", numbers)
    return Property("shift-invariant", f"{value}{ending}", _detail(tested, numbers, known_changes), numbers)


def shifts(length: int, axes: int) -> dict[str, Tensor]:
    """The shifts that are tried, by their names: of tokens for one axis, of rows and columns `[2]` for two.

    >>> list(shifts(512, axes=1))
    ['1 token', 'L', '4 L', '16 L']
    >>> list(shifts(512, axes=2))  # a grid of 16 rows and 32 columns
    ['1 row', '16 rows', '32 rows', '64 rows', '1 column', '32 columns', '64 columns', '128 columns']
    """
    if axes == 1:
        counts = (1, *(multiple * length for multiple in MULTIPLES[axes]))
        return {in_training_lengths(count, length): torch.tensor(count) for count in counts}
    rows, columns = grid_shape(length)
    found = {}
    for name, side, direction in (("row", rows, (1, 0)), ("column", columns, (0, 1))):
        for count in (1, *(multiple * side for multiple in MULTIPLES[axes])):
            found[f"{count:,} {name}{'s' * (count > 1)}"] = count * torch.tensor(direction)
    return found


def rounding_limit(tested: TestedModel, shift: Tensor) -> float:
    """The relative change that is allowed for rounding.

    The input is in float64, but an encoding may compute its angles in float32: an angle is off by at most one unit of
    rounding times the position, and attention changes by no more than the angles on which it depends.
    """
    return FLOAT32 * (tested.length + int(shift.max()))


def _change(tested: TestedModel, encoding: Encoding, shift: Tensor) -> float | None:
    """The relative change of attention; None if the encoding refuses the positions."""
    try:
        return relative_change(*(_attention(tested, encoding, by) for by in (torch.zeros_like(shift), shift)))
    except Unsupported:
        return None


def _attention(tested: TestedModel, encoding: Encoding, shift: Tensor) -> Tensor:
    """Attention among some tokens, spread over a training window, the first `shift` after the first position."""
    count = min(TOKENS[encoding.axes], tested.length // 2)
    apart = tested.length // count if encoding.axes == 1 else 1
    pos = shifted_positions(encoding, count, shift, apart)
    given = draw_inputs(tested.shape, count, count, torch.float64, seed=tested.seed)
    return attend_at(encoding, embedded(encoding, given, pos, tested.tokens(count)), pos)


def _declared(tested: TestedModel) -> bool:
    return all(encoding.relative and not encoding.rescales for encoding in tested.encodings)


def _agrees(tested: TestedModel, invariant: bool) -> bool:
    """Whether the measurement agrees with what the classes declare.

    `rescales` may have no effect on a few tokens, and what parts declare need not hold for their composition.
    """
    return _declared(tested) == invariant or (invariant and (tested.composed or _rescales(tested)))


def _rescales(tested: TestedModel) -> bool:
    return any(encoding.rescales for encoding in tested.encodings)


def _detail(tested: TestedModel, numbers: dict[str, Any], changes: dict[str, float]) -> str:
    each = ", ".join(f"{percent(change)} for {label}" for label, change in changes.items())
    if numbers["invariant"]:
        first, *_, last = changes
        each = f"{percent(max(changes.values()))} at most, for shifts of {first} to {last}"
    limit = percent(max(numbers["limit"][label] for label in changes))
    found = f"Moving all positions changes attention by {each}. Changes below {limit} may be rounding."
    if not numbers["agrees"]:
        declared = "invariant" if numbers["declared"] else "not invariant"
        return f"{found} This contradicts the class, which declares that it is {declared}."
    if _rescales(tested):
        return f"{found} The class declares that the output depends on the total length, which a shift increases."
    if numbers["declared"] != numbers["invariant"]:
        return f"{found} A part declares absolute positions; together the parts do not depend on them."
    return f"{found} The class declares the same."
