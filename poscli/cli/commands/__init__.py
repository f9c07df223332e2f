"""The commands, one per file, and the door through which satellites and other packages add theirs.

A file registers its command with `@command("name")`. The files `commands.py` of satellites do the same, and another
package offers a function, or a typer app, as an entry point of the group `poscli.cli.commands`. A class derived from
`poscli.cli.options.AddedOptions` adds options to a command that is there already.

Each function imports torch and other heavy packages itself, so that --help answers at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import typer

from poscli.cli.options import AddedOptions
from poscli.system.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])


LAST = "doctor"  # the command after which others stand in the help that do not say where they stand


@dataclass(frozen=True)
class Command:
    """A command: a function with options as typer reads them, or an app with commands of its own.

    `after` is the name of the command below which it stands in `poscli --help`; "" for the first one.
    """

    function: Callable[..., Any] | typer.Typer
    after: str = LAST


def _is_one(plugin: Any) -> bool:
    added = isinstance(plugin, type) and issubclass(plugin, AddedOptions)
    return added or isinstance(plugin, Command | typer.Typer) or inspect.isfunction(plugin)


COMMANDS: Registry[Any] = Registry("command", "poscli.cli.commands", _is_one)


def command(name: str, after: str = LAST) -> Callable[[F], F]:
    """A decorator that makes a function the command `name`, which stands below the command `after` in the help."""

    def add(function: F) -> F:
        COMMANDS.add(name, Command(function, after))
        return function

    return add


def usable() -> tuple[dict[str, Command], list[type[AddedOptions]]]:
    """Every command by its name, in the order of the help, and all options that are added to them."""
    plugins = [(name, COMMANDS.get(name)) for name in COMMANDS.names() if not COMMANDS.missing(name)]
    added = [plugin for _, plugin in plugins if isinstance(plugin, type)]
    commands = {
        name: plugin if isinstance(plugin, Command) else Command(plugin)
        for name, plugin in plugins
        if not isinstance(plugin, type)
    }

    def below(name: str) -> Iterator[str]:
        for each, other in commands.items():
            known = other.after if other.after in ("", *commands) else LAST
            if known == name:
                yield each
                yield from below(each)

    return {name: commands[name] for name in below("")}, added
