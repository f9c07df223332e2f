"""What a fault is, what it is found in, and how a check is registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from poscli.checkpoints.architecture import Architecture
from poscli.checkpoints.card.files import rope_dictionaries
from poscli.checkpoints.card.layers import OwnLayer
from poscli.checkpoints.card.stock import Stock
from poscli.checkpoints.fields import Config


@dataclass(frozen=True)
class Fault:
    """Something about a checkpoint's positions that is wrong, or, if it is only a note, that is good to know."""

    name: str
    wrong: str  # one sentence with the values
    fix: str  # one sentence that says what to do
    note: bool = False


@dataclass(frozen=True)
class Scaling:
    """One object with parameters of rope in config.json."""

    where: str  # such as `rope_scaling` or `rope_parameters.full_attention`
    parameters: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.parameters.get("rope_type") or self.parameters.get("type") or "default")

    def number(self, key: str) -> float | None:
        """The value of a key if it is a number."""
        value = self.parameters.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Subject:
    """A checkpoint as three readers see it: config.json as written, poscli's reading of it, and transformers'."""

    config: Config
    architecture: Architecture
    layers: tuple[OwnLayer, ...]
    stock: Stock
    tokenizer_limit: int | None = None

    @cached_property
    def scalings(self) -> list[Scaling]:
        return [Scaling(where, given) for where, given in rope_dictionaries(self.config).items()]

    def scaled_by(self, *kinds: str) -> list[Scaling]:
        """The scalings of these kinds."""
        return [scaling for scaling in self.scalings if scaling.kind in kinds]

    def original(self, scaling: Scaling) -> float | None:
        """The trained length before a scaling, wherever config.json has it."""
        found = Scaling("", dict(self.config)).number(ORIGINAL)
        return scaling.number(ORIGINAL) if found is None else found

    @property
    def layer_types(self) -> tuple[str, ...]:
        """`layer_types` of config.json; empty if it is no list of words."""
        given = self.config.get("layer_types")
        return tuple(each for each in given if isinstance(each, str)) if isinstance(given, list) else ()

    @property
    def length(self) -> int:
        return self.architecture.length

    @property
    def rotates(self) -> bool:
        """Whether any layer turns queries and keys."""
        return any(layer.rotation is not None for layer in self.layers)


ORIGINAL = "original_max_position_embeddings"
Said = Iterator[tuple[str, str]]  # what is wrong and what to do, once for each place where it is so
Check = Callable[[Subject], Said]
CHECKS: dict[str, tuple[Check, bool]] = {}  # by the name of what they find; True for what is only a note


def fault(name: str) -> Callable[[Check], Check]:
    """Register a check for something that is wrong."""
    return _registering(name, note=False)


def note(name: str) -> Callable[[Check], Check]:
    """Register a check for something that is right, or may be meant so, and that people stumble over."""
    return _registering(name, note=True)


def faults_of(subject: Subject) -> list[Fault]:
    """All that the checks find, faults before notes."""
    found = [Fault(name, *said, note) for name, (check, note) in CHECKS.items() for said in check(subject)]
    return sorted(found, key=lambda each: each.note)


def _registering(name: str, note: bool) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        assert name not in CHECKS
        CHECKS[name] = (check, note)
        return check

    return register


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in order as ranges.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
