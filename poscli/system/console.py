"""Output: the data of a command on stdout, everything else on stderr.

Any code may report with `note` and `warn_once`; only commands print data, with `emit`. In pipes and under NO_COLOR, the
output has no colours and no styles.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

_warned: set[str] = set()  # messages of this process, so that none is repeated


def _console(**options: Any) -> Console:
    """A Rich console. Rich keeps bold and dim under NO_COLOR; this one drops them too."""
    return Console(highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto", **options)


err = _console(stderr=True)


def out() -> Console:
    """The console on stdout. In a pipe it is at least 140 characters wide, so that tables are not cut."""
    console = _console()
    return console if console.is_terminal else _console(width=max(console.width, 140))


def note(message: str) -> None:
    """Report on stderr what is being done."""
    err.print(message, markup=False, style="dim", soft_wrap=True)


def warn_once(message: str) -> None:
    """Report a fallback or a doubt on stderr, once per process for each message."""
    if message not in _warned:
        _warned.add(message)
        err.print(f"note: {message}", markup=False, style="yellow", soft_wrap=True)


def emit(as_json: bool, payload: Any, render: Callable[[], object]) -> None:
    """Print the result of a command: `payload` as one JSON document, or, for people, whatever `render` prints."""
    if as_json:
        sys.stdout.write(json.dumps(payload, indent=2, allow_nan=False, default=_plain) + "\n")
        sys.stdout.flush()
    else:
        render()


def _plain(value: Any) -> Any:
    """A JSON value for what json cannot encode: numpy scalars, paths, dates."""
    return value.item() if hasattr(value, "item") else str(value)
