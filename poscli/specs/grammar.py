"""The grammar of specs: the string that names an encoding on the command line, in suites and in Python.

    spec  := layer ("|" layer)*                      layers that alternate
    layer := leaf ("+" leaf)*                        encodings that act together on one layer
    leaf  := name [ "(" value | key=value, ... ")" ]
    name  := a registered name | package.module:Class | path/to/file.py:Class | path/to/file.py

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poscli.encodings import full_name, get
from poscli.equation import Encoding, Shape
from poscli.system import plugins
from poscli.system.errors import UsageError, near

Value = int | float | bool | str | None

MOST = 2**63  # tensors hold whole numbers below it
LONGEST = 4000  # characters of a spec; a checkpoint may have other positions on each of a hundred layers
_TOKEN = re.compile(
    r"\s*(?:([~\w./][~\w./-]*\.py(?::\w+|(?![\w.:/-])))|([A-Za-z_][\w.:-]*)|([-+]?\.?\d[\w.]*(?:(?<=[eE])[-+]\d+)?)|([|+(),=]))"
)
# How an option of each type is read from text, and what it must be.
READERS: dict[Any, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    str: (full_name, "a word"),
}


@dataclass(frozen=True)
class Leaf:
    """One encoding by name, with the options that differ from their defaults, in the order of the class."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={text_of(value)}" for key, value in self.options)
        return f"{self.name}({inside})" if inside else self.name

    def make(self, shape: Shape) -> Encoding:
        """An instance for a model's shape; UsageError if the constructor refuses an option."""
        try:
            return get(self.name)(shape, **dict(self.options))
        except ValueError as error:
            raise UsageError(f"{self}: {error}") from error
        except (OverflowError, RuntimeError, MemoryError) as error:
            if plugins.blame(error):
                raise
            cause = plugins.cause_of(error)
            raise UsageError(f"{self} cannot be built ({cause}); give smaller numbers") from error


@dataclass(frozen=True)
class Spec:
    """The encodings of each of the alternating layers."""

    layers: tuple[tuple[Leaf, ...], ...]

    def __str__(self) -> str:
        return "|".join("+".join(map(str, leaves)) for leaves in self.layers)


def parse(text: str, defaults: bool = False) -> Spec:
    """The canonical form of a spec; UsageError for anything unknown or malformed.

    With `defaults` it keeps options that are given and equal to their default.
    """
    try:
        return _Parser(text, defaults).spec()
    except UsageError as error:
        if why := _unusable_path(text):
            raise UsageError(why) from error
        raise


def refuse_twice(texts: Sequence[str]) -> None:
    """UsageError if two of the specs are one encoding, in whatever spelling."""
    first: dict[str, str] = {}
    for text in texts:
        spec = str(parse(text))
        if spec in first:
            both = repr(text) if text == first[spec] else f"{first[spec]!r} and {text!r}"
            raise UsageError(f"the encoding {spec} is given twice, as {both}; leave one out")
        first[spec] = text


def _unusable_path(text: str) -> str:
    """Why the file or the folder of this name cannot be a spec; "" if there is none, or if it could be one."""
    path = Path(text)
    try:
        if text and path.is_dir():
            return f"{text!r} is a folder; name a Python file in it, such as {text.rstrip('/')}/my_encoding.py"
        if not path.is_file():
            return ""
    except OSError:  # such as a name that is too long
        return ""
    if path.suffix != ".py":
        return f"the file {text!r} is not Python; an encoding is a class in a file whose name ends with .py"
    if not _TOKEN.fullmatch(text):
        return (
            f"the file {text!r} cannot be named in a spec, where a path has only letters, digits and the signs "
            "_ - . / ~; rename it, or work in its folder"
        )
    return ""


class _Parser:
    """A recursive-descent parser of one spec."""

    def __init__(self, text: str, defaults: bool) -> None:
        if len(text) > LONGEST:
            raise UsageError(f"a spec has at most {LONGEST} characters; {text[:40]!r}... has {len(text)}")
        if any("\ud800" <= sign <= "\udfff" for sign in text):  # bytes of the command line that are not UTF-8
            raise UsageError(f"the encoding {text!r} is not UTF-8 text; rename the file that it names")
        self.text, self.at, self.defaults = text, 0, defaults
        self.tokens = self._scan()

    def spec(self) -> Spec:
        layers = [self._layer()]
        while self._take("|"):
            layers.append(self._layer())
        if self.at < len(self.tokens):
            raise self._error(f"unexpected {self.tokens[self.at]!r}")
        return Spec(tuple(layers))

    def _layer(self) -> tuple[Leaf, ...]:
        leaves = [self._leaf()]
        while self._take("+"):
            leaves.append(self._leaf())
        return tuple(leaves)

    def _leaf(self) -> Leaf:
        name = full_name(self._word("the name of an encoding"))
        cls = get(name)
        texts: dict[str, str] = {}
        if self._take("("):
            while not self._take(")"):
                key, value = self._argument(cls, len(texts))
                if key in texts:
                    raise self._error(f"the option {key} is given twice")
                texts[key] = value
                if not self._take(",") and self._peek() != ")":
                    raise self._error("expected , or )")
        return Leaf(name, _canonical(cls, name, texts, self.defaults))

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
        is_next = self._peek() == sign
        self.at += is_next
        return is_next

    def _word(self, expected: str) -> str:
        word = self._peek()
        if not word or word in "|+(),=":
            raise self._error(f"expected {expected}" + (f" before {word!r}" if word else " at its end"))
        self.at += 1
        return word

    def _error(self, what: str) -> UsageError:
        return UsageError(f"the encoding {self.text!r}: {what}; a spec looks like rope(base=500000)+window(128)")


def _canonical(cls: type[Encoding], name: str, texts: dict[str, str], defaults: bool) -> tuple[tuple[str, Value], ...]:
    """Options as values of their types, in the order of the class; with `defaults` also those equal to a default."""
    options = cls.options()
    for key in texts:
        if key not in options:
            hint = near(key, options) if options else "it takes none"
            raise UsageError(f"{name} has no option {key!r}: {hint}")
    values = {key: _value(name, key, texts[key], options[key].kind) for key in options if key in texts}
    return tuple((key, value) for key, value in values.items() if defaults or value != options[key].default)


def _value(name: str, key: str, text: str, kind: Any) -> Value:
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    if typing.get_origin(kind) is typing.Literal:
        if text not in (choices := typing.get_args(kind)):
            raise UsageError(f"{name}: {key} is one of {', '.join(choices)}; got {text!r}")
        return text
    wanted = next(each for each in kinds if each is not type(None))
    read, phrase = READERS[wanted]
    try:
        value: Value = read(text)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{name}: {key} must be {phrase}, got {text!r}") from error
    if isinstance(value, int) and abs(value) >= MOST:
        raise UsageError(f"{name}: {key} must be below 2^63, got {text!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{name}: {key} must be finite, got {text!r}")
    return value


def text_of(value: Value) -> str:
    """The text of a value in a spec."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
