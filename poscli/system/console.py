"""Output: the data of a command on stdout, everything else on stderr.

Any code may report with `note` and `warn_once`; only commands print data, with `emit`. In pipes and under NO_COLOR, the
output has no colours and no styles.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, Literal, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from poscli.system.text import printable

_warned: set[str] = set()  # messages of this process, so that none is repeated
_collecting: list[list[str]] = []  # where messages go beside stderr


class PlainConsole(Console):
    """A Rich console that prints data as it is: no markup, no emoji names, and control characters as escapes."""

    def __init__(self, **options: Any) -> None:
        # Rich keeps bold and dim under NO_COLOR; without a colour system it drops them too.
        colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        super().__init__(highlight=False, markup=False, emoji=False, color_system=colors, **options)

    def render(  # every part of a table or a text passes through here, before it is measured
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, keep="\n"), segment.style)


err = PlainConsole(stderr=True)
_silent = False  # whether this process leaves all output to another one
_data: TextIO | None = None  # the stream that only `emit`, `out` and `data` write to; None: stdout


def silence() -> None:
    """Print nothing from now on but the error that ends the command: another rank prints what all have to say."""
    global _silent
    _silent = err.quiet = True


def data() -> TextIO:
    """The stream for the result of a command: stdout as it was before `only_data`."""
    return sys.stdout if _data is None else _data


@contextmanager
def only_data() -> Iterator[None]:
    """In the block, stdout holds the result of the command only: what any other code prints goes to stderr."""
    global _data
    _data = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _data = None


def out() -> PlainConsole:
    """The console on stdout. In a pipe it is at least 140 characters wide, so that tables are not cut."""
    console = PlainConsole(file=data())
    return console if console.is_terminal else PlainConsole(file=data(), width=max(console.width, 140))


def note(message: str) -> None:
    """Report on stderr what is being done, in one line."""
    err.print(printable(message), style="dim", soft_wrap=True)


def warn_once(message: str) -> None:
    """Report a fallback or a doubt on stderr, once per process for each message."""
    for collected in _collecting:
        if message not in collected:
            collected.append(message)
    if message not in _warned:
        _warned.add(message)
        err.print(f"note: {printable(message)}", style="yellow", soft_wrap=True)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """The messages of `warn_once` in the block, also those that were reported before. All are reported as well."""
    collected: list[str] = []
    _collecting.append(collected)
    try:
        yield collected
    finally:
        _collecting.pop()


def emit(as_json: bool, payload: Any, render: Callable[[], object]) -> None:
    """Print the result of a command: `payload` as one JSON document, or, for people, whatever `render` prints."""
    if _silent:
        return
    if as_json:
        data().write(json.dumps(payload, indent=2, allow_nan=False, default=_plain) + "\n")
        data().flush()
    else:
        render()


def _plain(value: Any) -> Any:
    """A JSON value for what json cannot encode: numpy scalars, paths, dates."""
    return value.item() if hasattr(value, "item") else str(value)
