"""Keyword arguments made from the fields of a configuration, so that Python and the command line cannot differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from poscli.config.validate import validated
from poscli.system.errors import UsageError, near

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=BaseModel)
Parts = Mapping[str, type[BaseModel]]


def takes(model: type[BaseModel], parts: Parts | None = None) -> Callable[[F], F]:
    """Show the fields of a model in the signature and the help of a function, in the place of its `**options`.

    `parts` are fields that are tables with a model of their own, such as the shape: their fields are keywords, too.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        fields = {name: field for name, field in model.model_fields.items() if name not in (parts or {})}
        made = [_keyword(name, field.get_default(call_default_factory=True)) for name, field in fields.items()]
        told = [f"    {name}: {field.description}" for name, field in fields.items()]
        for part in (parts or {}).values():
            made += [_keyword(name, None) for name in part.model_fields]
            told += [f"    {name}: {field.description}" for name, field in part.model_fields.items()]
        function.__signature__ = signature.replace(parameters=[*own, *made])  # type: ignore[attr-defined]
        function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *told])
        return function

    return decorate


def read(model: type[M], options: Mapping[str, Any], where: str, parts: Parts | None = None) -> M:
    """A model made of keyword arguments; UsageError, which begins with `where`, for one that is unknown or refused.

    A keyword of None is as good as none. A single text stands for a list of one.
    """
    homes = {name: part for part, kind in (parts or {}).items() for name in kind.model_fields}
    known = [*(name for name in model.model_fields if name not in (parts or {})), *homes]
    values: dict[str, Any] = {}
    for name, value in options.items():
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
