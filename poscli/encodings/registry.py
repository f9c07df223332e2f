"""The registry of encodings: every file of this package, and classes that other packages offer.

A class from outside arrives through the entry-point group `poscli.encodings`, or is named as `package.module:Class`,
`path/to/file.py:Class`, or `path/to/file.py` if the file defines one encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from poscli.equation import Encoding, Shape, Unsupported
from poscli.equation.shapes import BlankInputs, wrong_shapes
from poscli.system.registry import Registry, subclass_of

EXPECTED = "it must be a subclass of poscli.encodings.Encoding"
TRIED = Shape(width=128, heads=8, layers=4, length=512)  # the shape at which encodings of other packages are tried


def fault_of_plugin(cls: type[Encoding]) -> str:
    """What is wrong with an encoding of another package at an ordinary shape; "" if nothing is."""
    with torch.random.fork_rng(devices=[]):
        try:
            cls.options()
            if not all(isinstance(word, str) for word in (*cls.facts, *cls.after)):
                return "`facts` and `after` must hold texts"
            if not isinstance(cls.proportions, Mapping) or {*map(type, cls.proportions.values())} - {int, float}:
                return "`proportions` must be a mapping with numbers"
            return wrong_shapes(cls(TRIED), BlankInputs.of(TRIED))
        except (ValueError, Unsupported):  # it refuses this shape, which is its right
            return ""


ENCODINGS: Registry[type[Encoding]] = Registry(
    "encoding", "poscli.encodings", subclass_of(Encoding), EXPECTED, fault_of_plugin
)
missing, broken, names, full_name = ENCODINGS.missing, ENCODINGS.broken, ENCODINGS.names, ENCODINGS.full_name


def register(
    name: str, *, paper: str, family: str, needs: tuple[str, str] | None = None
) -> Callable[[type[Encoding]], type[Encoding]]:
    """Give a class its name in specs, its source (an arXiv number or a citation) and its family.

    `needs` is a module that it imports when it is built, and the extra of poscli that installs this module.
    """

    def add(cls: type[Encoding]) -> type[Encoding]:
        cls.name, cls.paper, cls.family = name, paper, family
        return ENCODINGS.add(name, cls, needs)

    return add


def get(name: str) -> type[Encoding]:
    """The class with a name, or at `package.module:Class`; UsageError, with similar names, if there is none.

    What it is can be told on every machine. Whether it can be used on this one is for `missing` to say.
    """
    cls = ENCODINGS.get(name, installed=False)
    if "family" not in vars(cls):  # a class from outside, which was not registered
        cls.paper, cls.family = getattr(cls, "paper", ""), getattr(cls, "family", "external")
    return cls


def at_least(least: float, **options: float | None) -> None:
    """ValueError for an option below `least`; None is an option that was not given."""
    for name, value in options.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {_written(value)}")


def above(limit: float, **options: float | None) -> None:
    """ValueError for an option that is not above `limit`; None is an option that was not given."""
    for name, value in options.items():
        if value is not None and value <= limit:
            raise ValueError(f"{name} must be above {limit}, got {_written(value)}")


def _written(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
