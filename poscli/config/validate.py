"""The base class of all configuration, and error messages for values that it refuses."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from poscli.system.errors import UsageError, near

UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}  # categories: control characters, bytes that are not UTF-8, ends of lines
# The rule behind each kind of error of pydantic; `{...}` are the bounds of the field.
RULES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be greater than or equal to {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be less than or equal to {le}",
    "bool_type": "must be true or false, without quotation marks",
    "bool_parsing": "must be true or false",
    "string_type": "must be a text in quotation marks",
    "string_pattern_mismatch": "must match {pattern}",
    "literal_error": "must be {expected}",
    "list_type": "must be a list in square brackets",
    "tuple_type": "must be a list in square brackets",
    "sequence_str": "must be a list in square brackets",
    "too_short": "the list is empty; give at least one entry",
    "dict_type": "must be a table of keys and values",
    "model_type": "must be a table of keys and values",
}
QUOTED = {"int_type", "float_type"}  # kinds of errors that a number in quotation marks causes


class Frozen(BaseModel):
    """A configuration: immutable, made from keywords only; unknown keys, infinity, NaN and other types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Request(Frozen):
    """What a person writes: its texts have no control characters and are not empty, and no list names a thing twice.

    The fields in `several_lines` may have more than one line.
    """

    several_lines: ClassVar[frozenset[str]] = frozenset()

    @field_validator("*")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        name = str(info.field_name)
        default, ends = cls.model_fields[name].get_default(call_default_factory=True), name in cls.several_lines
        for text in _texts(value):
            if not text.strip() and text != default:
                raise ValueError("an empty text is not allowed; write something, or leave the key out")
            unprintable = (sign for sign in text if unicodedata.category(sign) in UNPRINTABLE)
            if wrong := next((sign for sign in unprintable if not (ends and sign in "\n\t")), ""):
                raise ValueError(f"the character {wrong!r} is not allowed here; leave it out")
        if isinstance(value, list | tuple):
            for place, item in enumerate(value):
                if item in value[:place]:
                    what = f"entry {place + 1}" if isinstance(item, BaseModel) else repr(item)
                    raise ValueError(f"{what} is in the list twice; leave one out")
        return value


def _texts(value: object) -> Iterator[str]:
    """The texts in a value: itself, the items of a list, or the keys and values of a table."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


ConfigT = TypeVar("ConfigT", bound=BaseModel)


def validated(cls: type[ConfigT], values: dict[str, Any], where: str) -> ConfigT:
    """An instance of unchecked values. UsageError begins with `where` and names the key, the value and the rule."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{where}: {refusal_of(cls, error)}") from error


def refusal_of(cls: type[BaseModel], error: ValidationError) -> str:
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
    """The rule that the first refused value breaks, without the words of pydantic."""
    first = error.errors()[0]
    kind = first["type"]
    if kind not in RULES:
        return first["msg"].removeprefix("Value error, ")
    bounds = {name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in first.get("ctx", {}).items()}
    quoted = ", without quotation marks" if kind in QUOTED and isinstance(first["input"], str) else ""
    return RULES[kind].format(**bounds) + quoted


def _keys(cls: type[BaseModel], path: list[str]) -> list[str]:
    """The keys of the table at a path inside a model; the number of a list's item is a part of the path."""
    for part in path:
        kind = cls.model_fields[part].annotation if part in cls.model_fields else cls
        kind = next(iter(get_args(kind)), kind)
        if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
            break
        cls = kind
    return [field.alias or name for name, field in cls.model_fields.items()]
