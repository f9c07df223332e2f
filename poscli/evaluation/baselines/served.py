"""The window as servers read it: a key keeps the rotation that it had when it was read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from poscli.encodings import Encoding
from poscli.equation import Unsupported
from poscli.equation.composed import Composed
from poscli.evaluation.baseline import BASELINES, Baseline
from poscli.model.language_model import LanguageModel

STEPS = 64  # in L tokens; servers read a token at a time, and the angles of L rotations would be computed for each


@BASELINES.register("served")
class Served(Baseline):
    """The same model with keys that are rotated once; the model itself where rotations stay as they are."""

    def explain(self) -> str:
        return (
            "**served**: the same model reads the first L tokens of the window at once and the others L/64 at a time. "
            "As in the cache of a server, a key keeps the rotation that it had when it was read. This matters "
            "where rotations depend on the length of the text, as those of `rope-dynamic` and `longrope` do: the gain "
            "of the whole window over it is what such a server loses."
        )

    def model(self, model: LanguageModel) -> LanguageModel:
        served: dict[Encoding, Encoding] = {}  # layers that share an encoding share what it makes
        for encoding in model.encodings:
            if encoding not in served:
                served[encoding] = _served(encoding)
        return model.under([served[encoding] for encoding in model.encodings])

    def changes_model(self, length: int, train_length: int) -> bool:
        return length > train_length


def _served(encoding: Encoding) -> Encoding:
    """The encoding with keys that are rotated once."""
    if type(encoding) is Composed:
        return Composed([_served(part) for part in encoding.parts])
    return _AsRead(encoding) if encoding.rescales else encoding


class _AsRead(Encoding):
    """Queries and keys of an encoding, each token's as they are when the text ends with the step that reads it.

    All tokens of a step are read together. A token sees those before it, and what they were when they were read: so one
    pass over the whole text, in which every token has the position of its step, computes what the steps would.
    """

    name, relative = "served", False

    def __init__(self, inner: Encoding) -> None:
        super().__init__(inner.shape)
        self.inner = inner

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return self._by_steps(self.inner.query, q_BHTD, pos)

    def key(self, k_BHSD: Tensor, pos: Tensor) -> Tensor:
        return self._by_steps(self.inner.key, k_BHSD, pos)

    def _by_steps(self, turn: Callable[[Tensor, Tensor], Tensor], x_BHTD: Tensor, pos: Tensor) -> Tensor:
        """What `turn` makes of the tokens of each step; they are the last tokens of the text."""
        if others := sorted(self.inner.blanks - {"query", "key"}):
            raise Unsupported(f"the baseline served is for rotations, and {self.inner.name} has {others[0]}")
        step = max(1, self.shape.length // STEPS)
        numbers = (pos - self.shape.length).div(step, rounding_mode="floor").clamp(min=-1)
        sizes = torch.unique_consecutive(numbers, return_counts=True)[1].tolist()
        return torch.cat(
            [turn(x, ps) for x, ps in zip(x_BHTD.split(sizes, dim=2), pos.split(sizes), strict=True)], dim=2
        )
