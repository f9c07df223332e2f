"""What a server may compute in the place of the positions that it should: theories for each kind of mistake.

Every theory is a spec with at most two free numbers, such as rope with another theta. Which numbers explain what the
server gives is found by fitting them (audit.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from poscli.checkpoints.scalings import Options, grown_by_yarn
from poscli.checkpoints.wanted import BASE, FACTOR, LINEAR, NOTHING, ROPE, scaled_rotation
from poscli.encodings import get
from poscli.specs.grammar import Leaf

FACTORS = (2.0, 3.0, 4.0, 8.0)  # of linear scaling and of YaRN
THETAS = (1 / 50, 1 / 10, 1 / 3, 3.0, 10.0, 50.0)  # times that of the configuration
ATTENTION = (0.85, 1.15)  # times the right factor on cos and sin
YARN = "yarn"


@dataclass(frozen=True)
class Theory:
    """A mistake, and the specs that it leads to."""

    fault: str  # its name, such as "theta"
    spec: Callable[[Sequence[float]], str]  # from its free numbers
    start: tuple[float, ...]  # the free numbers to begin with, each above 0
    said: Callable[[Sequence[float]], str]  # what the server does and should not, in a few words


def theories(expected: str, length: int) -> list[Theory]:
    """The mistakes that are looked for in a server which should compute the positions `expected`; none without rope.

    They are of the rotation that scalings are made for. `length` is the trained length, to which YaRN refers where the
    spec names no other.
    """
    leaf = scaled_rotation(expected, length)
    return [] if leaf is None else list(_theories(leaf, length))


def _theories(leaf: Leaf, length: int) -> Iterator[Theory]:
    given: Options = dict(leaf.options)
    base, factor = float(given.get("base") or BASE), float(given.get(FACTOR) or 1)
    original = int(given.get("original") or length)
    # The factor on cos and sin.
    attention = float(given.get("attention") or (grown_by_yarn(factor) if leaf.name == YARN else 1.0))

    def kept(**changed: Any) -> str:
        """The expected rotation with some options changed."""
        return _written(leaf.name, {**given, **changed})

    def other(name: str, **changed: Any) -> str:
        """Another rotation, with the options of the expected one that it has too."""
        known = get(name).options()
        every = {**given, "base": base, "original": original if name == YARN else None, "attention": None, **changed}
        return _written(name, {key: value for key, value in every.items() if key in known and value is not None})

    for times in THETAS:
        yield Theory(
            "theta",
            lambda x: kept(base=x[0]),
            (base * times,),
            lambda x: f"theta is {digits(x[0])}, and should be {base:g}",
        )
    if leaf.name != ROPE:
        yield Theory(
            "scaling ignored",
            lambda x: other(ROPE),
            (),
            lambda x: f"it computes rope as it is, and should compute {leaf}",
        )
    if FACTOR in given:
        for times in (0.5, 2.0):
            yield Theory(
                "factor",
                lambda x: kept(factor=x[0]),
                (factor * times,),
                lambda x: f"the factor is {digits(x[0])}, and should be {factor:g}",
            )
    for name in (LINEAR, YARN):
        if name != leaf.name:
            for start in (*FACTORS, *([factor] if factor > 1 else [])):
                yield Theory(
                    "factor",
                    partial(lambda name, x: other(name, factor=x[0]), name),
                    (start,),
                    partial(lambda name, x: f"it computes {name} by {digits(x[0])}, and should compute {leaf}", name),
                )
    if leaf.name in (ROPE, YARN):  # YaRN by 1 is rope with a factor on cos and sin
        for by in ATTENTION:
            yield Theory(
                "attention factor",
                lambda x: other(YARN, factor=factor, attention=x[0]),
                (attention * by,),
                lambda x: f"cos and sin are multiplied by {digits(x[0])}, and should be by {attention:.3g}",
            )
        yield Theory(
            "theta and attention factor",
            lambda x: other(YARN, factor=factor, base=x[0], attention=x[1]),
            (base / 3, attention * 1.1),
            lambda x: (
                f"theta is {digits(x[0])} and cos and sin are multiplied by {digits(x[1])}, which should be "
                f"{base:g} and {attention:.3g}"
            ),
        )
    layout = "half" if given.get("layout") == "interleaved" else "interleaved"
    yield Theory(
        "pairs",
        lambda x: kept(layout=layout),
        (),
        lambda x: f"it rotates pairs of channels that are {layout}, as if the weights were stored otherwise",
    )
    yield Theory(
        "no positions", lambda x: NOTHING, (), lambda x: f"it computes no positions, and should compute {leaf}"
    )


def digits(number: float) -> str:
    """A fitted number, to the three digits that can be told.

    >>> digits(9906.66), digits(1.0004)
    ('9910', '1')
    """
    return f"{float(f'{number:.3g}'):g}"


def _written(name: str, options: Options) -> str:
    return str(Leaf(name, tuple(options.items())))
