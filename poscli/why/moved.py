"""A model whose encodings see its tokens at other positions, such as farther into a text."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from poscli.attention import ENGINES, attend
from poscli.equation import BLANKS, Encoding, Positions
from poscli.equation.composed import Composed
from poscli.equation.shapes import BlankInputs
from poscli.model.transformer import Model

# From the order of the tokens `[S]` to the order that the encodings are told, both whole numbers from 0.
Move = Callable[[Tensor], Tensor]


class Moved(Composed):
    """An encoding that is told another order of the tokens, from which it makes its own positions.

    The moves run before the encoding's own blank `positions`. Positions that follow the length of the input, such as
    interpolated ones, therefore follow the last order that they are told, as if the input ended there.
    """

    def __init__(self, own: Encoding, move: Move) -> None:
        super().__init__([own])
        self.blanks |= {"positions"}
        self.move = move
        self.train(own.training)

    def positions(self, index: Tensor) -> Tensor:
        return super().positions(self.move(index))


def moved(model: Model, move: Move) -> Model:
    """A copy of a model that shares its weights, in which every encoding is moved."""
    copied = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    made: dict[Encoding, Moved] = {}  # layers that share an encoding share the moved one too
    for attention in copied.attention:
        own = attention.encoding
        made[own] = attention.encoding = made.get(own) or Moved(own, move)
    return copied


@torch.no_grad()
def uses_positions(encoding: Encoding, device: torch.device) -> bool:
    """Whether a blank is told positions; one that may also ignore them is tried at two positions on a small input."""
    blanks = [BLANKS[name] for name in encoding.blanks]
    if any(blank.takes_any("pos", "d", "d_TS", "i") for blank in blanks):
        return True
    if not any(blank.takes_any("x") for blank in blanks):
        return False
    given = BlankInputs.of(encoding.shape)
    x, q, index = given.x_BTW.to(device), given.q_BHTD.to(device), torch.arange(given.tokens, device=device)
    features = encoding.features(x)
    here, there = (
        attend(ENGINES["reference"], encoding, q, q, q, Positions(pos=pos, step=None), features)
        for pos in (index, 2 * index)
    )
    return not torch.equal(here, there)
