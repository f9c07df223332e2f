"""What reaches a person: data on stdout, everything else on stderr.

Library code says things through `note` and `warn`; only commands print data, through `emit`.
`NO_COLOR` and pipes get plain text (Rich decides).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

_said: set[str] = set()


def _console(**options: Any) -> Console:
    """A console; under NO_COLOR without bold and dim too, which Rich would keep."""
    return Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto", **options)


err = _console(stderr=True)


def out() -> Console:
    """The console on stdout; wide enough in a pipe that no table is cut."""
    console = _console()
    return console if console.is_terminal else _console(width=max(console.width, 140))


def note(message: str) -> None:
    """Tell the person what is going on, on stderr."""
    err.print(message, markup=False, style="dim", soft_wrap=True)


def warn_once(message: str) -> None:
    """Announce a fallback or a doubt, once per process and cause."""
    if message not in _said:
        _said.add(message)
        err.print(f"note: {message}", markup=False, style="yellow", soft_wrap=True)


def emit(as_json: bool, payload: Any, render: Callable[[], object]) -> None:
    """Print a command's result: one JSON document, or whatever `render` prints for people."""
    if as_json:
        sys.stdout.write(json.dumps(payload, indent=2, allow_nan=False, default=_plain) + "\n")
        sys.stdout.flush()
    else:
        render()


def _plain(value: Any) -> Any:
    """What json cannot take: paths, numpy scalars, dates."""
    return value.item() if hasattr(value, "item") else str(value)
