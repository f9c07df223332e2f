"""Values of a config.json, checked as they are read: a wrong one is one line that states it and the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from poscli.system.errors import DataError

T = TypeVar("T", int, float)
Config = Mapping[str, Any]  # the content of a config.json
MOST, LARGEST = 2**40, 1e30  # a whole number and a number above these is a mistake, and would fill the memory


def whole(config: Config, names: Sequence[str], default: int | None = None, most: int = MOST, *, least: int = 1) -> int:
    """The whole number of the first of these names that the configuration has.

    DataError if it has none and there is no default, or if it is not a whole number from `least` to `most`.
    """
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        if default is None:
            raise DataError(f"config.json has none of the keys {', '.join(names)}: it belongs to no language model")
        return default
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, value, f"a whole number of at least {least} and at most {most}")
    return value


def positive_number(config: Config, name: str, default: float) -> float:
    """A positive number of the configuration; DataError if it is something else."""
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
        raise _wrong(name, value, f"a number above 0 and at most {LARGEST:g}")
    return float(value)


def section(config: Config, name: str) -> dict[str, Any]:
    """An object inside the configuration, empty if there is none; DataError if it is something else."""
    value = config.get(name)
    if value is not None and not isinstance(value, dict):
        raise _wrong(name, value, "an object of keys and values")
    return dict(value or {})


def items(config: Config, name: str) -> list[Any] | None:
    """A list of the configuration, None if there is none; DataError if it is something else."""
    value = config.get(name)
    if value is not None and not isinstance(value, list):
        raise _wrong(name, value, "a list with an entry for each layer")
    return value


def _wrong(name: str, value: object, rule: str) -> DataError:
    return DataError(f"config.json says {name} = {value!r}, and it must be {rule}")
