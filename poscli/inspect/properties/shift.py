"""Is attention invariant under shifts: does it change when all positions move by the same amount?"""

from __future__ import annotations

import torch
from torch import Tensor

from poscli.equation import Encoding, Unsupported
from poscli.inspect.properties.row import Property, in_training_lengths, percent, relative_change
from poscli.inspect.properties.tested_model import TestedModel
from poscli.verify.noise import FLOAT32, draw_inputs
from poscli.verify.probe import attend_at, embedded

TOKENS = 64  # that attend to each other, at most; always fewer than L


def shift_invariance(tested: TestedModel) -> Property:
    """The change of attention when a passage moves farther into a text, by 1 token up to 16 L.

    The passage is at the end of the text. So it changes for encodings that depend on the total length, too.
    """
    length = tested.length
    shifts = [1, length, 4 * length, 16 * length]
    changes = {shift: _largest_change(tested, shift) for shift in shifts}
    limit = rounding_limit(tested, shifts[-1])
    measured = {shift: change for shift, change in changes.items() if change is not None}
    invariant = not any(change > rounding_limit(tested, shift) for shift, change in measured.items())
    numbers = {
        "change": {str(shift): change for shift, change in changes.items()},
        "limit": limit,
        "invariant": invariant,
        "declared": _declared(tested),
        "agrees": _agrees(tested, invariant),
    }
    return Property("shift-invariant", _value(tested, invariant, changes), _detail(tested, numbers, measured), numbers)


def rounding_limit(tested: TestedModel, shift: int) -> float:
    """The relative change that is allowed for rounding.

    The input is in float64, but an encoding may compute its angles in float32: an angle is off by at most one unit of
    rounding times the position, and attention changes by no more than the angles on which it depends.
    """
    return FLOAT32 * (tested.length + shift)


def _largest_change(tested: TestedModel, shift: int) -> float | None:
    """The largest relative change over the encodings of the layers; None if one refuses so long a text."""
    try:
        return max(relative_change(_attention(tested, e, 0), _attention(tested, e, shift)) for e in tested.exact)
    except Unsupported:
        return None


def _attention(tested: TestedModel, encoding: Encoding, start: int) -> Tensor:
    """Attention within a passage that begins at token `start`; it is the end of the text."""
    count = min(TOKENS, tested.length // 2)
    pos = tested.positions(encoding, start + count)[start:]
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


def _value(tested: TestedModel, invariant: bool, changes: dict[int, float | None]) -> str:
    refused = [in_training_lengths(shift, tested.length) for shift, change in changes.items() if change is None]
    ending = f"; refuses a shift of {refused[0]}" if refused else ""
    if invariant:
        return f"yes{ending}"
    shift, change = [(shift, change) for shift, change in changes.items() if change is not None][-1]
    return f"no: {percent(change)} at a shift of {in_training_lengths(shift, tested.length)}{ending}"


def _detail(tested: TestedModel, numbers: dict[str, object], measured: dict[int, float]) -> str:
    each = ", ".join(f"{percent(c)} for {in_training_lengths(shift, tested.length)}" for shift, c in measured.items())
    limit = percent(rounding_limit(tested, max(measured, default=0)))
    found = f"Moving all positions changes attention by {each}; rounding could reach {limit}."
    if not measured:
        return "The encoding refuses every shift, so nothing could be measured."
    if not numbers["agrees"]:
        declared = "invariant" if numbers["declared"] else "not invariant"
        return f"{found} This contradicts the class, which declares that it is {declared}."
    if _rescales(tested):
        return f"{found} The class declares that the output depends on the total length, which a shift increases."
    if numbers["declared"] != numbers["invariant"]:
        return f"{found} A part declares absolute positions; together the parts do not depend on them."
    return f"{found} The class declares the same."
