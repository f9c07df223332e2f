"""The base class of all configuration, and error messages for values that it refuses."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from poscli.system.errors import UsageError, near


class Frozen(BaseModel):
    """A configuration: immutable, made from keywords only; unknown keys, infinity and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


ConfigT = TypeVar("ConfigT", bound=BaseModel)


def validated(cls: type[ConfigT], values: dict[str, Any], where: str) -> ConfigT:
    """An instance of unchecked values. UsageError begins with `where` and names the key, the value and the rule."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{where}: {explain(cls, error)}") from error


def explain(cls: type[BaseModel], error: ValidationError) -> str:
    """One line about the first key that a model refused: its name, its value and the rule, or the nearest known key."""
    first = error.errors()[0]
    *path, key = [str(part) for part in first["loc"]] or ["?"]
    name = ".".join([*path, key])
    if first["type"] == "extra_forbidden":
        return f"there is no key {name!r}: {near(key, _keys(cls, path))}"
    if first["type"] == "missing":
        return f"the key {name!r} is missing"
    return f"{name} = {first['input']!r}: {rule(error)}" if first["loc"] else rule(error)


def rule(error: ValidationError) -> str:
    """The rule that the first refused value breaks."""
    return error.errors()[0]["msg"].removeprefix("Value error, ")


def _keys(cls: type[BaseModel], path: list[str]) -> list[str]:
    """The keys of the table at a path inside a model; the number of a list's item is a part of the path."""
    for part in path:
        kind = cls.model_fields[part].annotation if part in cls.model_fields else cls
        kind = next(iter(get_args(kind)), kind)
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            break
        cls = kind
    return [field.alias or name for name, field in cls.model_fields.items()]
