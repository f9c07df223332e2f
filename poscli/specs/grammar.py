"""The grammar of specs: the string that names an encoding on the command line, in suites and in Python.

    spec  := layer ("|" layer)*                      layers that alternate
    layer := part ("+" part)*                        encodings that act together on one layer
    part  := leaf | the name of a layout             a layout (poscli/layouts) is its layers, each joined to the rest
    leaf  := name [ "(" value | key=value, ... ")" ]
    name  := a registered name | package.module:Class | path/to/file.py:Class | path/to/file.py
    value := a number | a number "L" | "L" | true | false | none | a word

`0.5L` is half of the length of the training windows, for options that are lengths.

>>> str(parse("rope(base=500000)"))
'rope(base=500000.0)'
>>> str(parse("rope + window(128) | none"))
'rope+window(width=128)|none'
>>> str(parse("rope(base=10000)"))  # a default is not repeated
'rope'
>>> spec = parse("window(.50L)")
>>> str(spec), str(spec.at(32))
('window(width=0.5L)', 'window(width=16)')
>>> str(parse("rnope-swa"))  # the name of a layout stands for its spec
'rope+window(width=0.5L)|rope+window(width=0.5L)|rope+window(width=0.5L)|none'
>>> str(parse("smollm3+ssmax"))  # what is joined to a layout joins each of its layers
'rope(base=50000.0)+ssmax|rope(base=50000.0)+ssmax|rope(base=50000.0)+ssmax|none+ssmax'
"""

from __future__ import annotations

import contextlib
import math
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from poscli.encodings import full_name, get, names
from poscli.equation import Encoding, Option, Shape
from poscli.layouts import LAYOUTS
from poscli.system import plugins
from poscli.system.errors import UsageError, near
from poscli.system.text import counted

MOST = 2**63  # tensors hold whole numbers below it
LONGEST = 4000  # characters of a spec; a checkpoint may have other positions on each of a hundred layers
_TOKEN = re.compile(
    r"\s*(?:([~\w./][~\w./-]*\.py(?::\w+|(?![\w.:/-])))|([A-Za-z_][\w.:-]*)|([-+]?\.?\d[\w.]*(?:(?<=[eE])[-+]\d+L?)?)|([|+(),=]))"
)
_IN_LENGTHS = re.compile(r"([-+]?\.?\d[\w.+-]*|inf|nan|)L")
# How an option of each type is read from text, and what it must be.
READERS: dict[Any, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    str: (full_name, "a word"),
}


@dataclass(frozen=True)
class Multiple:
    """A length in units of the training length L, which a spec writes as `0.5L`."""

    times: float

    def __str__(self) -> str:
        return f"{self.times}".removesuffix(".0") + "L"

    def at(self, length: int, kind: type) -> float:
        """The length in tokens for a training length.

        For an option of type int it is the nearest whole number, halves upwards, and at least 1 for a multiple above 0.
        """
        tokens = self.times * length
        if kind is float or not math.isfinite(tokens):
            return tokens
        whole = math.floor(tokens + 0.5)
        return max(1, whole) if self.times > 0 else whole


Value = int | float | bool | str | Multiple | None


@dataclass(frozen=True)
class Leaf:
    """One encoding by name, with the options that differ from their defaults, in the order of the class."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={text_of(value)}" for key, value in self.options)
        return f"{self.name}({inside})" if inside else self.name

    def at(self, length: int) -> Leaf:
        """The leaf with every length in tokens, for a training length; UsageError for one that no number can hold."""
        values = dict(self.options)
        for key, value in self.options:
            if isinstance(value, Multiple):
                values[key] = tokens = value.at(length, _wanted(get(self.name).options()[key].kind))
                if abs(tokens) >= MOST:
                    raise UsageError(f"{self}: {key} must be below 2^63 tokens; give a smaller multiple of L")
        return Leaf(self.name, tuple(values.items()))

    def in_proportion(self) -> Leaf:
        """The leaf with the lengths that it leaves at their defaults in the paper's proportion to L, if it is known."""
        shares, options = get(self.name).proportions, get(self.name).options()
        lengths = {key: Multiple(shares[key]) for key in options if key in shares and options[key].is_length}
        values = lengths | dict(self.options)
        return Leaf(self.name, tuple((key, values[key]) for key in options if key in values))

    def make(self, shape: Shape) -> Encoding:
        """An instance for a model's shape; UsageError if the constructor refuses an option."""
        in_tokens = self.at(shape.length)
        try:
            return get(self.name)(shape, **dict(in_tokens.options))
        except ValueError as error:
            where = "" if in_tokens == self else f" at L = {shape.length}"
            raise UsageError(f"{self}{where}: {error}") from error
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

    def at(self, length: int) -> Spec:
        """The spec with every length in tokens, for a training length; UsageError for one that no number can hold."""
        return Spec(tuple(tuple(leaf.at(length) for leaf in leaves) for leaves in self.layers))

    def in_proportion(self) -> Spec:
        """The spec with the lengths that it leaves at their defaults in their papers' proportions to L.

        >>> str(parse("t5+window").in_proportion())
        't5(far=0.25L)+window'
        """
        return Spec(tuple(tuple(leaf.in_proportion() for leaf in leaves) for leaves in self.layers))


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


def is_layout(name: str) -> bool:
    """Whether a name in a spec is that of a layout; one that an encoding has, too, is the encoding's."""
    return name in LAYOUTS.names() and name not in names()


@cache
def spec_of_layout(name: str) -> Spec:
    """The spec of a layout; UsageError if a package that offers it is broken, or if it is wrong."""
    layout = LAYOUTS.get(name)
    try:
        return _Parser(layout.spec, defaults=False, layouts=False).spec()
    except UsageError as error:
        raise UsageError(f"the layout {name} cannot be used: {error}") from error


def with_layouts(label: str) -> str:
    """A label, such as a spec or `SPEC as SPEC`, in which the specs that a layout has are the layout's name.

    A spec that is the same for all layers is kept: it is short, and may be the name of an encoding.

    >>> with_layouts("rope+window(width=0.5L)|rope+window(width=0.5L)|rope+window(width=0.5L)|none (memory 64)")
    'rnope-swa (memory 64)'
    """
    for name in filter(is_layout, LAYOUTS.names()):
        with contextlib.suppress(UsageError):  # one that cannot be used has no results
            spec = spec_of_layout(name)
            if len(spec.layers) > 1:
                label = re.sub(rf"(?<!\S){re.escape(str(spec))}(?!\S)", name, label)
    return label


def names_in(text: str) -> list[str]:
    """The names in a spec without their options, each once; it is not parsed, so that no file that it names is run.

    >>> names_in("rope(base=500000.0)+window(128)|./mine.py:Mine"), names_in("rnope-swa")
    (['rope', 'window', './mine.py:Mine'], ['rope', 'window', 'none'])
    """

    def split(text: str) -> list[str]:
        return [part.strip() for part in re.split(r"[|+]", re.sub(r"\([^()]*\)", "", text))]

    usable = [part for part in split(text) if is_layout(part) and not LAYOUTS.missing(part)]
    inside = {part: split(LAYOUTS.get(part).spec) for part in usable}
    return list(dict.fromkeys(name for part in split(text) for name in inside.get(part, [part])))


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

    def __init__(self, text: str, defaults: bool, layouts: bool = True) -> None:
        if len(text) > LONGEST:
            raise UsageError(f"a spec has at most {LONGEST} characters; {text[:40]!r}... has {len(text)}")
        if any("\ud800" <= sign <= "\udfff" for sign in text):  # bytes of the command line that are not UTF-8
            raise UsageError(f"the encoding {text!r} is not UTF-8 text; rename the file that it names")
        self.text, self.at, self.defaults, self.layouts = text, 0, defaults, layouts
        self.tokens = self._scan()

    def spec(self) -> Spec:
        layers = self._layer()
        while self._take("|"):
            layers += self._layer()
        if self.at < len(self.tokens):
            raise self._error(f"unexpected {self.tokens[self.at]!r}")
        return Spec(tuple(layers))

    def _layer(self) -> list[tuple[Leaf, ...]]:
        """The leaves of one layer; those of several if a layout is among the parts."""
        layers = self._part()
        while self._take("+"):
            part = self._part()
            if len(layers) > 1 and len(part) > 1:
                raise self._error("two layouts cannot be joined, because each says what every layer is")
            layers = [one + other for one in layers for other in part]
        return layers

    def _part(self) -> list[tuple[Leaf, ...]]:
        if not (self.layouts and is_layout(self._peek())):
            return [(self._leaf(),)]
        name = self._word("a layout")
        spec = spec_of_layout(name)
        if self._peek() == "(":
            raise UsageError(f"{name} is a layout, which has no options; write out its spec and change that: {spec}")
        return list(spec.layers)

    def _leaf(self) -> Leaf:
        name = full_name(self._word("the name of an encoding"))
        cls = self._class(name)
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

    def _class(self, name: str) -> type[Encoding]:
        """The class of a name; UsageError, with similar names of encodings and of layouts, if there is none."""
        if not self.layouts or ":" in name or name in names():
            return get(name)
        near_ones = near(name, [*names(), *LAYOUTS.names()])
        raise UsageError(
            f"there is no encoding {name!r}: {near_ones}; `poscli ls encodings` and `poscli ls layouts` show all"
        )

    def _argument(self, cls: type[Encoding], place: int) -> tuple[str, str]:
        word = self._word("an option")
        if self._take("="):
            return word, self._word(f"a value for {word}")
        keys = list(cls.options())
        if place >= len(keys):
            raise self._error(f"{cls.name} takes {counted(len(keys), 'option')}")
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
    values = {key: _value(name, key, texts[key], options) for key in options if key in texts}
    return tuple((key, value) for key, value in values.items() if defaults or value != options[key].default)


def _value(name: str, key: str, text: str, options: dict[str, Option]) -> Value:
    kind, is_length = options[key].kind, options[key].is_length
    if text.lower() == "none" and type(None) in typing.get_args(kind):
        return None
    if typing.get_origin(kind) is typing.Literal:
        if text not in (choices := typing.get_args(kind)):
            raise UsageError(f"{name}: {key} is one of {', '.join(choices)}; got {text!r}")
        return text
    wanted = _wanted(kind)
    in_lengths = None if wanted is str else _IN_LENGTHS.fullmatch(text)
    if in_lengths and not is_length:
        lengths = ", ".join(each for each, option in options.items() if option.is_length)
        raise UsageError(
            f"{name}: {key} is not a length in tokens, so it cannot be {text!r}; "
            + (f"the lengths among its options: {lengths}" if lengths else f"{name} has no option that is one")
        )
    read, phrase = READERS[wanted]
    try:
        value: Value = Multiple(float(in_lengths[1] or 1)) if in_lengths else read(text)
    except (ValueError, KeyError) as error:
        phrase += " of tokens, or of training lengths such as 0.5L" if is_length else ""
        raise UsageError(f"{name}: {key} must be {phrase}, got {text!r}") from error
    number = value.times if isinstance(value, Multiple) else value
    if isinstance(number, int) and abs(number) >= MOST:
        raise UsageError(f"{name}: {key} must be below 2^63, got {text!r}")
    if isinstance(number, float) and not math.isfinite(number):
        raise UsageError(f"{name}: {key} must be finite, got {text!r}")
    return value


def _wanted(kind: Any) -> Any:
    """The type of the values of an option, other than None."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    return next(each for each in kinds if each is not type(None))


def text_of(value: Value) -> str:
    """The text of a value in a spec."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
