"""Results, tables and errors as plain texts, for tests that compare whole texts."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping

from rich.console import Console

from poscli.system.errors import PoscliError


def printed(show: Callable[[Console], object], width: int = 120) -> str:
    """What a function prints to a console of this width, without spaces at the ends of lines."""
    console = Console(width=width, file=io.StringIO(), no_color=True)
    show(console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def table(rows: Iterable[Iterable[object]]) -> str:
    """A line per row; decimal numbers have four digits."""
    return "\n".join(" | ".join(map(cell, row)) for row in rows)


def cell(value: object) -> str:
    """A value of a table; a decimal number has four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parts(named: Mapping[str, str]) -> str:
    """Texts, each below its name."""
    return "".join(f"##### {name}\n{text.rstrip()}\n\n" for name, text in named.items())


def refused(do: Callable[[], object]) -> str:
    """The error of poscli that a function raises, in words, or else what it returns."""
    try:
        return str(do())
    except PoscliError as error:
        return f"{type(error).__name__}: {error}"
