"""What functions return, print and raise, as lines of text to compare with kept ones: rounded, a line a case."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from torch import Tensor

from poscli.system.console import collected_warnings
from poscli.system.errors import PoscliError


def told(value: Any) -> str:
    """A value in one line: floats with four decimals, `-` for NaN, and the elements of lists with spaces between."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return told(value.tolist())
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{round(value, 4) + 0.0:.4f}"  # adding 0 makes -0.0 0.0
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {told(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + " ".join(map(told, sorted(value) if isinstance(value, set | frozenset) else value)) + "]"
    return str(value)


def outcome(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """What a call returns, or the kind and the message of the error with which it refuses."""
    try:
        return told(call(*arguments, **options))
    except (PoscliError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def printed(show: Callable[[Console], object], width: int = 120) -> str:
    """What a function prints to a console of this width, without spaces at the ends of lines."""
    console = Console(width=width, file=io.StringIO(), no_color=True)
    show(console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def bare_table(rows: Iterable[Iterable[object]]) -> str:
    """Rows without names of columns; decimal numbers have four significant digits."""
    return "\n".join(" | ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row) for row in rows)


def plain_table(rows: Iterable[Iterable[object]]) -> str:
    """A line for every row, with its cells between bars."""
    return "".join(" | ".join(map(str, row)).rstrip() + "\n" for row in rows)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows under the names of their columns; columns whose value never changes are told once, above."""
    found = [{name: told(value) for name, value in row.items()} for row in rows]
    names = list(dict.fromkeys(name for row in found for name in row))
    values = {name: [row.get(name, "/") for row in found] for name in names}
    same = {name: each[0] for name, each in values.items() if len(found) > 1 and len(set(each)) == 1}
    others = [name for name in names if name not in same]
    lines = [f"every row: {', '.join(f'{name}={value}' for name, value in same.items())}"] if same else []
    lines += [" | ".join(others), *(" | ".join(values[name][n] for name in others) for n in range(len(found)))]
    return "\n".join(lines) + "\n"


def sections(parts: Mapping[str, str]) -> str:
    """Several texts, each under its title."""
    return "".join(f"##### {title}\n{text.rstrip()}\n\n" for title, text in parts.items())


def heard(capsys: pytest.CaptureFixture[str], call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """What a call returns or refuses with, after its notes and warnings."""
    with collected_warnings() as warned:
        found = outcome(call, *arguments, **options)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    return "\n".join([*(f"  said: {line}" for line in lines), *(f"  warned: {line}" for line in warned), found])


def outline(value: Any, path: str = "") -> Iterator[str]:
    """A line for every list of plain values, and for every value beside it, with the keys that lead there."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from outline(each, f"{path}.{key}")
    elif isinstance(value, list | tuple) and any(isinstance(each, dict | list | tuple) for each in value):
        for number, each in enumerate(value):
            yield from outline(each, f"{path}[{number}]")
    else:
        yield f"{path[1:]}: {json.dumps(value, ensure_ascii=False)}"
