"""The spec of an encoding: one string, the same on the command line, in a suite and in Python.

    spec   := layers ("|" layers)*                   layers alternate
    layers := leaf ("+" leaf)*                       both at once, on every such layer
    leaf   := name [ "(" value | key=value, ... ")" ]

>>> str(parse("rope(base=500000)"))
'rope(base=500000.0)'
>>> str(parse("rope + window(128) | none"))
'rope+window(width=128)|none'
>>> str(parse("rope(base=10000)"))  # a default is not repeated
'rope'
"""

from __future__ import annotations

import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

import torch

from poscli.encodings.base import Encoding, Shape
from poscli.encodings.compose import Both
from poscli.encodings.registry import get
from poscli.errors import UsageError, near

_TOKEN = re.compile(r"\s*(?:([A-Za-z_][\w.:-]*)|([-+]?[\d.][\w.]*(?:(?<=[eE])[-+]\d+)?)|([|+(),=]))")

Value = int | float | bool | str | None


@dataclass(frozen=True)
class Leaf:
    """One encoding by name, with the options that differ from its defaults, in the constructor's order."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={_text(value)}" for key, value in self.options)
        return f"{self.name}({inside})" if inside else self.name

    def make(self, shape: Shape) -> Encoding:
        """An instance for a model's shape; UsageError for options that its constructor refuses."""
        try:
            return get(self.name)(shape, **dict(self.options))
        except ValueError as error:
            raise UsageError(f"{self}: {error}") from error


@dataclass(frozen=True)
class Spec:
    """Alternating layers, each of one or more encodings at once."""

    layers: tuple[tuple[Leaf, ...], ...]

    def __str__(self) -> str:
        return "|".join("+".join(map(str, leaves)) for leaves in self.layers)


def parse(text: str) -> Spec:
    """Read a spec and put it into its canonical form. UsageError for anything unknown or malformed."""
    return _Parser(text).spec()


def build(spec: Spec, shape: Shape, seed: int) -> list[Encoding]:
    """The encoding of each layer. Weights are drawn from `seed`; shared leaves are one instance for all layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shared: dict[Leaf, Encoding] = {}
        layers = [_layer(spec.layers[n % len(spec.layers)], shape, shared) for n in range(shape.layers)]
    if len(spec.layers) > 1:
        _refuse_alternating_input(layers)
    return layers


def check(text: str, shape: Shape) -> Spec:
    """Parse a spec and build it once: what it says is known to be possible before anything is trained."""
    spec = parse(text)
    if len(spec.layers) > shape.layers:
        raise UsageError(f"{spec} alternates {len(spec.layers)} encodings, and the model has {shape.layers} layers")
    build(spec, shape, seed=0)
    return spec


def _layer(leaves: tuple[Leaf, ...], shape: Shape, shared: dict[Leaf, Encoding]) -> Encoding:
    parts = []
    for leaf in leaves:
        part = shared.get(leaf) or leaf.make(shape)
        if part.shared:
            shared[leaf] = part
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    try:
        return Both(parts)
    except ValueError as error:
        raise UsageError(f"{'+'.join(map(str, leaves))}: {error}") from error


def _refuse_alternating_input(layers: list[Encoding]) -> None:
    for part in (part for layer in layers for part in layer.modules()):
        if isinstance(part, Encoding) and not isinstance(part, Both) and "embed" in part.blanks:
            raise UsageError(
                f"{part.name} acts on the embedding, before any layer, so it cannot alternate by layer; "
                f"join it with + instead of |"
            )


class _Parser:
    """Recursive descent over the tokens of one spec."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens = self._scan()

    def spec(self) -> Spec:
        layers = [self._layers()]
        while self._take("|"):
            layers.append(self._layers())
        if self.at < len(self.tokens):
            raise self._error(f"unexpected {self.tokens[self.at]!r}")
        return Spec(tuple(layers))

    def _layers(self) -> tuple[Leaf, ...]:
        leaves = [self._leaf()]
        while self._take("+"):
            leaves.append(self._leaf())
        return tuple(leaves)

    def _leaf(self) -> Leaf:
        name = self._word("the name of an encoding")
        cls = get(name)
        given: dict[str, str] = {}
        if self._take("("):
            while not self._take(")"):
                key, value = self._argument(cls, len(given))
                if key in given:
                    raise self._error(f"the option {key} is given twice")
                given[key] = value
                if not self._take(",") and self._peek() != ")":
                    raise self._error("expected , or )")
        return Leaf(name, _canonical(cls, name, given))

    def _argument(self, cls: type[Encoding], place: int) -> tuple[str, str]:
        word = self._word("an option")
        if self._take("="):
            return word, self._word(f"a value for {word}")
        keys = list(cls.options())
        if place >= len(keys):
            raise self._error(f"{cls.name} takes {len(keys)} option{'s' * (len(keys) != 1)}")
        return keys[place], word

    def _scan(self) -> list[str]:
        tokens, end = [], 0
        while self.text[end:].strip():
            match = _TOKEN.match(self.text, end)
            if match is None:
                raise self._error(f"cannot read {self.text[end:].strip()[:12]!r}")
            tokens.append(match.group().strip())
            end = match.end()
        return tokens

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, sign: str) -> bool:
        found = self._peek() == sign
        self.at += found
        return found

    def _word(self, expected: str) -> str:
        word = self._peek()
        if not word or word in "|+(),=":
            raise self._error(f"expected {expected}" + (f" before {word!r}" if word else " at its end"))
        self.at += 1
        return word

    def _error(self, what: str) -> UsageError:
        return UsageError(f"the encoding {self.text!r}: {what}; a spec looks like rope(base=500000)+window(128)")


def _canonical(cls: type[Encoding], name: str, given: dict[str, str]) -> tuple[tuple[str, Value], ...]:
    """Given options as values of the declared types, without the defaults, in the constructor's order."""
    options = cls.options()
    types_ = typing.get_type_hints(cls.__init__)
    for key in given:
        if key not in options:
            hint = near(key, options) if options else "it takes none"
            raise UsageError(f"{name} has no option {key!r}: {hint}")
    values = {key: _value(name, key, given[key], types_.get(key, str)) for key in options if key in given}
    return tuple((key, value) for key, value in values.items() if value != options[key].default)


def _value(name: str, key: str, text: str, kind: Any) -> Value:
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if typing.get_origin(kind) is typing.Literal:
        if text not in kinds and text not in (choices := typing.get_args(kind)):
            raise UsageError(f"{name}: {key} is one of {', '.join(choices)}; got {text!r}")
        return text
    wanted = next(k for k in kinds if k is not type(None))
    try:
        value = _READERS[wanted](text)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{name}: {key} must be {_PHRASES[wanted]}, got {text!r}") from error
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{name}: {key} must be finite, got {text!r}")
    return value


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READERS: dict[Any, Any] = {int: int, float: float, bool: _boolean, str: str}
_PHRASES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
