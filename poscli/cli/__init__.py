"""The command line; one file per command."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import typer

from poscli import __version__
from poscli.cli.commands import COMMANDS, usable
from poscli.cli.options import AddedOptions, with_added
from poscli.system import plugins
from poscli.system.console import err, only_data, silence
from poscli.system.errors import FAILED, INTERRUPTED, USAGE, PoscliError, UsageError, one_line
from poscli.system.plugins import blamed, suspects
from poscli.system.ranks import ranks, shared, silence_libraries, spoken_by
from poscli.system.signals import MESSAGE, Interruption, end_silently, pending_exit_code
from poscli.system.streams import OutputError, ReaderLeft

ON_SEVERAL_RANKS = {"train", "extrapolate"}  # commands that torchrun may start
MAY_BE_EMPTY = {"prompt"}  # a text that a model continues
COMPLETION = {"--install-completion", "--show-completion"}


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"poscli {__version__}\n")
        raise typer.Exit


GLOBAL_OPTIONS = ("--debug", "--quiet", "--no-plugins")  # they may stand anywhere


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Options that stand before the command."""


@cache
def command_tree(only: str | None = None) -> Any:
    """The commands as typer makes them from the functions, once per process: it reads every signature for that.

    With `only`, the name of a command or an empty text, all others have their place and their help, and no options.
    No option takes an empty text, which a variable of a shell that is not set leaves, but for those in MAY_BE_EMPTY.
    While a command works, stdout takes nothing but its result.
    """
    app = typer.Typer(
        name="poscli",
        help="Which position encoding still works past the length it was trained on? Trains tiny language models with "
        "each encoding on short contexts and evaluates them on contexts 2 to 16 times as long.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback(
        epilog="Every command takes --debug, to show the traceback of an error, --quiet, to hide progress, and "
        "--no-plugins, to use nothing that other packages offer."
    )(_options)
    commands, added = usable()
    for name, command in commands.items():
        if isinstance(command.function, typer.Typer):
            for each in command.function.registered_commands:
                assert each.callback is not None
                each.callback = with_added(each.callback, added)
            app.add_typer(command.function, name=name)
        elif only not in (None, name):
            app.command(name, help=inspect.getdoc(command.function))(lambda: None)
        else:
            app.command(name)(with_added(command.function, added))
    tree: Any = typer.main.get_command(app)
    for leaf in _leaves(tree):
        for options in getattr(leaf.callback, "added", ()):
            _rewriting_arguments(leaf, options)
        leaf.callback = only_data()(leaf.callback)
        for parameter in leaf.params:
            if parameter.name not in MAY_BE_EMPTY:
                parameter.process_value = _refusing_empty(parameter)
    return tree


def _rewriting_arguments(command: Any, options: type[AddedOptions]) -> None:
    """Let added options rewrite the arguments of a command before it reads them."""
    read = command.parse_args
    command.parse_args = lambda context, arguments: read(context, options.arguments(arguments))


def _leaves(command: Any) -> Iterator[Any]:
    """The commands below a group, or the command itself."""
    for each in getattr(command, "commands", {}).values():
        yield from _leaves(each)
    if not hasattr(command, "commands"):
        yield command


def _refusing_empty(parameter: Any) -> Callable[[Any, Any], Any]:
    """What reads the value of an option or an argument, with a UsageError for an empty text."""
    read = parameter.process_value
    is_option = parameter.param_type_name == "option"
    name = max(parameter.opts, key=len) if is_option else parameter.metavar or parameter.name.upper()
    fix = "write something after it, or leave it out" if is_option else "write something in its place"

    def process_value(context: Any, value: Any) -> Any:
        source = context.get_parameter_source(parameter.name)
        if "" in (value, *(value if isinstance(value, tuple | list) else ())) and source.name == "COMMANDLINE":
            raise UsageError(f"{name} '' is empty; {fix}")
        return read(context, value)

    return process_value


def main() -> None:
    """Run a command; every error becomes one line on stderr and an exit code."""
    arguments = [a for a in sys.argv[1:] if a not in GLOBAL_OPTIONS]
    debug, quiet = "--debug" in sys.argv, "--quiet" in sys.argv
    if quiet:
        os.environ["POSCLI_QUIET"] = "1"
    if "--no-plugins" in sys.argv:
        os.environ[plugins.SWITCH] = "1"  # processes that are started from here inherit it
    sys.exit(_run(arguments, debug))


def _run(arguments: list[str], debug: bool) -> int:
    """The exit code of a command, whose error, if any, has been printed."""
    try:
        _check_ranks(arguments)
        with blamed():
            code = _call(arguments)
        sys.stdout.flush()
        if code == INTERRUPTED:  # typer says nothing
            return _fail(arguments, KeyboardInterrupt(), code, debug, MESSAGE)
        return code
    except ReaderLeft:
        return 0
    except OutputError as error:
        return _fail([], error, error.exit_code, debug)  # a document of --json has no way out
    except PoscliError as error:
        return _fail(arguments, error, error.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort) as error:
        return _fail(arguments, error, INTERRUPTED, debug, MESSAGE)
    except Interruption as interruption:
        return _fail(arguments, interruption, interruption.exit_code, debug, MESSAGE)
    except Exception as error:  # noqa: BLE001 - a bug becomes one line, too; --debug shows its traceback
        if hasattr(error, "format_message"):  # raised by typer: an unknown option, a value out of range
            return _fail(arguments, error, USAGE, debug, _usage(error))
        if code := pending_exit_code():  # an extension module has made another error of the interruption
            return _fail(arguments, error, code, debug, MESSAGE)
        if isinstance(error, OSError) and error.filename:  # a path that nothing has refused, as a name that is too long
            path = str(error.filename)[:200]
            return _fail(arguments, error, FAILED, debug, f"{path!r}: {error.strerror}; give another path")
        cause = f": {str(error).splitlines()[0]}" if str(error) else ""
        words = f"{type(error).__name__}{cause} (a bug of poscli{suspects()}; --debug shows where)"
        return _fail(arguments, error, FAILED, debug, words)


def _call(arguments: list[str]) -> int:
    """The exit code of a command; every error is raised."""
    if os.environ.get("NO_COLOR") and ("--help" in arguments or not arguments):
        from typer import rich_utils  # slow to import

        rich_utils.COLOR_SYSTEM = None  # typer keeps bold and dim under NO_COLOR
    command = next((word for word in arguments if not word.startswith("-")), "")
    if why := COMMANDS.missing(command):  # a plugin that cannot be used
        raise UsageError(f"the command {command} {why}")
    try:
        tree = command_tree() if "_POSCLI_COMPLETE" in os.environ else command_tree(command)
        code = tree(arguments or ["--help"], prog_name="poscli", standalone_mode=False)
    except SystemExit as end:  # typer ends so after completing a word, or installing the completion of a shell
        if "_POSCLI_COMPLETE" not in os.environ and not COMPLETION.intersection(arguments):
            raise
        code = end.code
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> str:
    """The message of an error of typer, and the command that shows what is allowed."""
    from pydantic import ValidationError

    from poscli.config.validate import rule

    help_ = f"; {error.ctx.command_path} --help shows what there is" if getattr(error, "ctx", None) else ""
    refused, option = error.__cause__, getattr(error, "param", None)
    if isinstance(refused, ValidationError) and option is not None:  # typer's own message leaves the value out
        return f"{option.opts[0]} {refused.errors()[0]['input']!r}: {rule(refused).rstrip('.')}{help_}"
    return error.format_message().replace(": Value error, ", ": ").rstrip(".") + help_


def _check_ranks(arguments: list[str]) -> None:
    """Leave the output to the first of several ranks; UsageError for a command that runs in one process only."""
    if ranks().count == 1:
        return
    silence_libraries()
    if not ranks().first:
        silence()
    command = next((word for word in arguments if not word.startswith("-")), "--help")
    if command not in ON_SEVERAL_RANKS:
        these = " and ".join(sorted(ON_SEVERAL_RANKS))
        raise shared(UsageError(f"poscli {command} runs in one process: leave out torchrun, which is for {these}"))


def _fail(arguments: list[str], error: BaseException, code: int, debug: bool, message: str = "") -> int:
    """Print one line on stderr, and under --json a document on stdout, on one of the ranks. Returns the exit code."""
    before = spoken_by(error)
    end_silently()
    if before is None:
        return code
    err.quiet = False
    if debug and sys.exc_info()[0] is not None:  # typer ends some interruptions without an exception
        err.print_exception()
    message = one_line(before + (message or str(error)))
    err.print(f"error: {message}", style="red", soft_wrap=True)
    with contextlib.suppress(OutputError, ReaderLeft):  # the first error counts
        if any(each.partition("=")[0] == "--json" for each in arguments):
            sys.stdout.write(json.dumps({"error": message, "exit_code": code}) + "\n")
        sys.stdout.flush()
    return code
