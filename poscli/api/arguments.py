"""Arguments of the functions: checked by their annotations, and made from the fields of a configuration.

Python and the command line cannot differ in the latter.
"""

from __future__ import annotations

import inspect
import numbers
import reprlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from torch import Generator, Tensor, nn

from poscli.config.validate import LONGEST_WINDOW, MOST, validated
from poscli.equation import Encoding
from poscli.runs.run import Run
from poscli.system.errors import UsageError, near
from poscli.system.plugins import is_outside


def spec_of(encoding: str | type[Encoding]) -> str:
    """The spec of an encoding, which is a spec already or a class, such as one defined in a notebook's cell.

    UsageError for anything else, and for a class inside a function, which no name leads to.
    """
    if isinstance(encoding, str):
        return encoding
    if not (isinstance(encoding, type) and issubclass(encoding, Encoding)):
        raise UsageError(f"{encoding!r} names no encoding; give a spec, such as 'alibi', or a subclass of api.Encoding")
    if not is_outside(encoding):
        return encoding.name
    if "." in encoding.__qualname__:
        raise UsageError(f"{encoding.__qualname__} is defined inside a function or a class; define it outside")
    return f"{encoding.__module__}:{encoding.__name__}"


F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=BaseModel)
Parts = Mapping[str, type[BaseModel]]
BOUNDS = {"seed": (0, MOST), "past": (0, LONGEST_WINDOW)}  # of whole numbers, by their names
BOUNDS_OF_SIZES = (1, LONGEST_WINDOW)
# What an annotation stands for in a message.
PHRASES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    Path: "a path",
    types.NoneType: "None",
    Sequence[str]: "a list of texts",
    type[Encoding]: "a class of api.Encoding",
    Run: "a run, as api.train makes it and api.runs lists it",
    Encoding: "an encoding, as api.encoding makes it",
    Tensor: "a tensor",
    Generator: "a generator of torch",
    nn.Module: "a module of torch",
}


def checked(function: F) -> F:
    """The function, with a UsageError for an argument that is not what its annotation says, or a number out of bounds.

    Arguments without a phrase in PHRASES are left to the function.
    """
    kinds = typing.get_type_hints(function)
    signature = inspect.signature(function)

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, given in bound.arguments.items():
            bound.arguments[name] = value = _own(given)
            is_union = typing.get_origin(kinds[name]) in (types.UnionType, typing.Union)
            choices = typing.get_args(kinds[name]) if is_union else (kinds[name],)
            if all(each in PHRASES for each in choices):
                shown = " ".join(reprlib.repr(value).split())
                _check(f"{function.__name__}: {name} = {shown}", name, value, choices)
        return function(*bound.args, **bound.kwargs)

    return typing.cast(F, wrapper)


def _check(what: str, name: str, value: Any, kinds: Sequence[Any]) -> None:
    if not any(_is_a(value, kind) for kind in kinds):
        raise UsageError(f"{what}: must be {' or '.join(PHRASES[kind] for kind in kinds)}")
    least, most = BOUNDS.get(name, BOUNDS_OF_SIZES)
    if int in kinds and _is_a(value, int) and not least <= value <= most:
        raise UsageError(f"{what}: must be at least {least} and at most {most}")
    if (value == "" and Path in kinds) or (isinstance(value, str | Path) and "\0" in str(value)):
        raise UsageError(f"{what}: must not be empty or hold the character '\\x00'")


def _own(value: Any) -> Any:
    """A whole number of another library, such as numpy's, as one of Python's own; anything else as it is."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind of PHRASES. True and False are not whole numbers."""
    if kind == Sequence[str]:
        return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if kind == type[Encoding]:
        return isinstance(value, type)  # `spec_of` refuses other classes
    kind = numbers.Real if kind is float else kind
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def takes(model: type[BaseModel], parts: Parts | None = None) -> Callable[[F], F]:
    """Show the fields of a model in the signature and the help of a function, in the place of its `**options`.

    `parts` are fields that are tables with a model of their own, such as the shape: their fields are keywords, too.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        written = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        fields = {name: field for name, field in model.model_fields.items() if name not in (parts or {})}
        added = [_keyword(name, field.get_default(call_default_factory=True)) for name, field in fields.items()]
        lines = [f"    {name}: {field.description}" for name, field in fields.items()]
        for part in (parts or {}).values():
            added += [_keyword(name, None) for name in part.model_fields]
            lines += [f"    {name}: {field.description}" for name, field in part.model_fields.items()]
        function.__signature__ = signature.replace(parameters=[*written, *added])  # type: ignore[attr-defined]
        function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
        return function

    return decorate


def read(model: type[M], options: Mapping[str, Any], where: str, parts: Parts | None = None) -> M:
    """A model made of keyword arguments; UsageError, which begins with `where`, for one that is unknown or refused.

    A keyword of None is as good as none. A single text stands for a list of one.
    """
    homes = {name: part for part, kind in (parts or {}).items() for name in kind.model_fields}
    known = [*(name for name in model.model_fields if name not in (parts or {})), *homes]
    values: dict[str, Any] = {}
    for name, value in ((name, _own(given)) for name, given in options.items()):
        if name not in known:
            raise UsageError(f"{where} has no option {name!r}: {near(name, known)}")
        if value is None:
            continue
        if name in homes:
            values.setdefault(homes[name], {})[name] = value
            continue
        field = model.model_fields[name]
        values[field.alias or name] = [value] if isinstance(value, str) and isinstance(field.default, list) else value
    return validated(model, values, where)


def _keyword(name: str, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
