"""The base class of all configuration, how people write numbers of tokens, and messages for values that are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from poscli.system.errors import UsageError, near
from poscli.system.text import in_no_line

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
    """A configuration: immutable, made from keywords only; unknown keys, infinity, NaN and other types are errors.

    What checks it is built when it is first needed: --help needs none of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True, defer_build=True)


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
            if wrong := in_no_line(text, "\n\t" if ends else ""):
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
    """One line about the first key that a model refused: its name, its value and the rule, or the nearest known key.

    The entries of a list count from 1, as the parts of a suite do in other messages.
    """
    first = error.errors()[0]
    *path, key = [str(part + 1 if isinstance(part, int) else part) for part in first["loc"]] or ["?"]
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


# Numbers of tokens as people write them: 4096, 500k, 2M, or 8x for a multiple of the training length

MOST = 2**63 - 1  # of anything that a table holds as int64: tokens, seeds
LONGEST_WINDOW = 2**20  # tokens of a training window or of a memory
LARGEST_BATCH = 2**20  # windows
LONGEST_TEXT = 100  # characters of a number; Python refuses to print integers of more than 4300 digits
LARGEST_MULTIPLE = MOST // LONGEST_WINDOW  # of the training length, so that the product is at most MOST
FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}  # of amounts of text


def read_count(value: object) -> object:
    """The number of tokens that a text such as "2M" or "640_000" stands for; other values are left to pydantic.

    >>> read_count("2M"), read_count("16.1k"), read_count("4096"), read_count("640_000"), read_count(7)
    (2000000, 16100, 4096, 640000, 7)
    """
    if not isinstance(value, str):
        return value
    if len(value) > LONGEST_TEXT:
        raise ValueError("too long for a number of tokens; write 4096, 500k or 2M")
    match = re.fullmatch(r"(\d+(?:_\d+)*(?:\.\d+)?)([kmg]?)", value.strip(), re.IGNORECASE)
    if not match:
        raise ValueError("no number of tokens; write 4096, 500k or 2M")
    number = Decimal(match[1]) * FACTORS[match[2].lower()]  # exact, where 16.1 * 1000 is 16100.000000000002
    if number < 1 or number != int(number):
        raise ValueError("not allowed; it must be a whole number of tokens, at least 1")
    return int(number)


def write_count(number: int) -> str:
    """The shortest way to write a number of tokens.

    >>> write_count(2_000_000), write_count(500_000), write_count(4096)
    ('2M', '500k', '4096')
    """
    factor, suffix = max((factor, suffix) for suffix, factor in FACTORS.items() if number % factor == 0)
    return f"{number // factor}{suffix.upper() if factor > FACTORS['k'] else suffix}"


def read_longest(value: object) -> int | str:
    """The canonical form of a longest window: a number of tokens, or a multiple of the training length.

    >>> read_longest(4096), read_longest("4_096"), read_longest("8x"), read_longest("1.50X")
    (4096, 4096, '8x', '1.5x')
    """
    text = str(value).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x|(\d+(?:_\d+)*)", text, re.IGNORECASE | re.ASCII)
    if isinstance(value, bool) or len(text) > LONGEST_TEXT or not match:
        raise ValueError("no length; write a number of tokens such as 4096, or 8x for 8 times the training length")
    if match[1]:
        multiple = Decimal(match[1])
        if not 1 <= multiple <= LARGEST_MULTIPLE:
            raise ValueError(f"the multiple must be greater than or equal to 1 and at most {LARGEST_MULTIPLE}")
        return f"{multiple.normalize():f}x"
    number = int(match[2])
    if not 1 <= number <= MOST:
        bound = "greater than or equal to 1" if number < 1 else f"less than or equal to {MOST}"
        raise ValueError(f"the number of tokens must be {bound}")
    return number


def longest_window(longest: int | str, length: int) -> int:
    """The tokens of a longest window, in its canonical form, for a training length.

    >>> longest_window(4096, 512), longest_window("8x", 512), longest_window("1.5x", 512)
    (4096, 4096, 768)
    """
    return longest if isinstance(longest, int) else round(Decimal(longest.removesuffix("x")) * length)


Longest = Annotated[int | str, BeforeValidator(read_longest)]
TokenCount = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(read_count)]
