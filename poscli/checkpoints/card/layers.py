"""What the positions of a layer are in numbers: how fast each pair of channels turns, by which factor, in which window.

The same numbers are taken from poscli's encodings here, and from transformers in stock.py, so that both compare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from poscli.checkpoints.architecture import Architecture, LayerPositions
from poscli.checkpoints.load import own_encodings
from poscli.equation import Encoding, Shape
from poscli.equation.composed import Composed

FAR = 4  # times the trained length: the text in which scalings that depend on the length are compared
ROUNDING = 1e-5  # relative: transformers computes in float32, whose error is below 2e-6 for any theta


@dataclass(frozen=True)
class Turns:
    """What a layer does to queries and keys in a text of some length."""

    speeds: tuple[float, ...]  # radians per token of each pair of channels; none without rotations
    amplitude: float = 1.0  # the factor on cos and sin

    def differs(self, other: Turns) -> bool:
        """Whether the two turn at other speeds or by another factor, beyond the rounding of float32."""
        if len(self.speeds) != len(other.speeds) or abs(self.amplitude - other.amplitude) > ROUNDING * self.amplitude:
            return True
        return self.largest_error(other) > ROUNDING

    def largest_error(self, other: Turns) -> float:
        """The largest difference between the two speeds of a pair, relative to this one's."""
        pairs = zip(self.speeds, other.speeds, strict=True)
        return max((abs(theirs / mine - 1) if mine else float(theirs != 0) for mine, theirs in pairs), default=0.0)


@dataclass(frozen=True)
class Measured:
    """The positions of one layer in numbers."""

    short: Turns  # in a text of one token
    long: Turns  # in a text of FAR times the trained length
    window: int | None  # the last tokens that a query sees; None for all


@dataclass(frozen=True)
class OwnLayer:
    """A layer's positions as config.json states them, by the encoding of poscli that has them."""

    layer: LayerPositions
    encoding: Encoding

    @cached_property
    def rotation(self) -> Any:
        """The part of the encoding that turns queries and keys, None if there is none."""
        parts = list(self.encoding.parts) if type(self.encoding) is Composed else [self.encoding]
        return next((part for part in parts if hasattr(part, "theta") and hasattr(part, "amplitude")), None)

    @cached_property
    def measured(self) -> Measured:
        far = FAR * self.encoding.shape.length
        return Measured(self.turns(1), self.turns(far), self.window)

    @property
    def window(self) -> int | None:
        return self.encoding.reach if "reach" in self.encoding.blanks else None

    def turns(self, tokens: int) -> Turns:
        """The speeds of the pairs in a text of so many tokens."""
        if self.rotation is None:
            return Turns(())
        last = torch.tensor([tokens - 1])
        amplitude = torch.as_tensor(self.rotation.amplitude(last), dtype=torch.float64)
        return Turns(tuple(self.rotation.theta(last).tolist()), float(amplitude.flatten()[0]))

    @property
    def theta(self) -> float | None:
        """The base of the rotations."""
        return None if self.rotation is None else float(self.rotation.base)

    @property
    def factor(self) -> float:
        """By how much the text may be longer than before the scaling; 1 without one."""
        return float(getattr(self.rotation, "factor", None) or 1.0)

    @property
    def original(self) -> int:
        """The trained length before the scaling."""
        return int(getattr(self.rotation, "original", None) or self.encoding.shape.length)

    @property
    def never_turning(self) -> int:
        """The pairs that do not turn once within the trained length: angles beyond it are new to the model."""
        length = self.encoding.shape.length
        return sum(speed * length < 2 * math.pi for speed in self.turns(length).speeds)

    @property
    def slowest_wavelength(self) -> float | None:
        """The tokens in which the slowest pair turns once."""
        speeds = self.turns(self.encoding.shape.length).speeds
        return 2 * math.pi / min(speeds) if speeds and min(speeds) > 0 else None


def own_layers(architecture: Architecture) -> list[OwnLayer]:
    """Each layer of the checkpoint; layers with equal positions are one object."""
    made: dict[str, OwnLayer] = {}
    shape = Shape(
        width=architecture.heads * architecture.head_width,
        heads=architecture.heads,
        layers=1,
        length=architecture.length,
        vocab=architecture.vocab,
    )
    for layer in architecture.layers:
        key = repr(layer)
        if key not in made:
            (encoding,) = own_encodings(shape, replace(architecture, layers=(layer,)), None, torch.device("cpu"))
            made[key] = OwnLayer(layer, encoding)
    return [made[repr(layer)] for layer in architecture.layers]
