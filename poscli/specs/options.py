"""Options of an encoding: read from text as the types that its constructor declares, and written as text."""

from __future__ import annotations

import math
import types
import typing
from typing import Any

from poscli.encodings import full_name
from poscli.equation import Encoding
from poscli.system.errors import UsageError, near

Value = int | float | bool | str | None
MOST = 2**63  # tensors hold whole numbers below it


def canonical(
    cls: type[Encoding], name: str, given: dict[str, str], defaults: bool = False
) -> tuple[tuple[str, Value], ...]:
    """The given options as values of their types, in the order of the class; with `defaults`, those equal to it too."""
    options = cls.options()
    for key in given:
        if key not in options:
            hint = near(key, options) if options else "it takes none"
            raise UsageError(f"{name} has no option {key!r}: {hint}")
    values = {key: _value(name, key, given[key], options[key].kind) for key in options if key in given}
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
    try:
        value = _READERS[wanted](text)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{name}: {key} must be {_PHRASES[wanted]}, got {text!r}") from error
    if isinstance(value, int) and abs(value) >= MOST:
        raise UsageError(f"{name}: {key} must be below 2^63, got {text!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{name}: {key} must be finite, got {text!r}")
    return value


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READERS: dict[Any, Any] = {int: int, float: float, bool: _boolean, str: full_name}
_PHRASES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def text_of(value: Value) -> str:
    """The text of a value in a spec."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
