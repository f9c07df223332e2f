"""The options of commands: those that several share, and those made from the fields of classes.

A command and its configuration cannot differ, as the options are made from the fields of a pydantic model.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from poscli.cli import complete
from poscli.config.request import Ratio
from poscli.config.validate import MOST, Longest, TokenCount, rule, validated, write_count
from poscli.system.errors import UsageError

__all__ = [
    "MOST", "AddedOptions", "Device", "Json", "Out", "TextArgument", "TokenizerOption", "carried",
    "from_model", "read_option", "with_added",
]  # fmt: skip

Out = Annotated[Path, typer.Option("--out", help="Folder of runs and reports.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
TextArgument = Annotated[
    str,
    typer.Argument(
        help="A text, such as stdlib or text:FOLDER; `poscli ls corpora` shows all.", autocompletion=complete.corpora
    ),
]
TokenizerOption = Annotated[
    str,
    typer.Option(
        "--tokenizer",
        help="Such as bytes or bpe:4096; `poscli ls tokenizers` shows all.",
        autocompletion=complete.tokenizers,
    ),
]
Device = Annotated[str, typer.Option("--device", help="Where to compute: auto, cpu, cuda or cuda:N.")]


def carried(out: Path) -> str:
    """The end of a suggested command that is to work on the same folder: empty for the default folder."""
    return "" if out == Path("results") else f" --out {shlex.quote(str(out))}"


Command = Callable[..., None]
Flags = Mapping[str, tuple[str, ...]]
Parts = Mapping[str, type[BaseModel]]


@dataclass(frozen=True)
class FieldOption:
    """The option of one field: the parameter for typer, the keys that lead to the field, and how its value is read."""

    parameter: inspect.Parameter
    path: tuple[str, ...]
    read: Callable[[Any], Any]


def from_model(flags: Flags, parts: Parts | None = None) -> Callable[[Command], Command]:
    """Replace the parameters of a command that are annotated with a pydantic model by options, one for each field.

    The name, type, default and help of an option come from the field; the model itself checks the bounds. `flags` has
    the options that are not called like their field, and `parts` the models of the fields that are tables, such
    as the shape of a preset: each of their own fields is an option.
    The command is called with an instance of the model, made of the options given on the command line; UsageError if
    the model refuses them.
    """

    def decorate(command: Command) -> Command:
        parameters: list[inspect.Parameter] = [_parameter("context", typer.Context)]
        models: dict[str, tuple[type[BaseModel], list[FieldOption]]] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            kind = parameter.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                options = list(_options(kind, flags, parts or {}))
                models[parameter.name] = kind, options
                parameters += [option.parameter for option in options]
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @wraps(command)
        def wrapper(context: typer.Context, **values: Any) -> None:
            for name, (model, options) in models.items():
                values[name] = validated(model, _pop_values(options, values, context), command.__name__)
            command(**values)

        return _with_parameters(wrapper, parameters)

    return decorate


def _pop_values(options: list[FieldOption], values: dict[str, Any], context: typer.Context) -> dict[str, Any]:
    """The values of the options that stand on the command line, as a table; all options are removed from `values`."""
    read: dict[str, Any] = {}
    for option in options:
        value, source = values.pop(option.parameter.name), context.get_parameter_source(option.parameter.name)
        if source is None or source.name == "DEFAULT":
            continue  # the model has its own defaults, and some of them depend on other fields
        table = read
        for key in option.path[:-1]:
            table = table.setdefault(key, {})
        table[option.path[-1]] = option.read(value)
    return read


def _options(model: type[BaseModel], flags: Flags, parts: Parts) -> Iterator[FieldOption]:
    """The options of a model, in the order of its fields; a part is replaced by the options of its fields."""
    for name, field in model.model_fields.items():
        if name in parts:
            for inner, inner_field in parts[name].model_fields.items():
                yield _option(inner, (name, inner), inner_field, flags, shown="the preset's")
        else:
            yield _option(name, (field.alias or name,), field, flags)


def _option(name: str, path: tuple[str, ...], field: FieldInfo, flags: Flags, shown: str = "") -> FieldOption:
    """The option of a field. With `shown`, the option has no default, and --help shows that text as the default."""
    names = flags.get(name) or ("--" + path[-1].replace("_", "-"),)
    kind, default, read = _type(field, names[0])
    option = typer.Option(
        *names,
        help=field.description,
        show_default=shown or True,
        autocompletion=complete.OF_FIELDS.get(name),
    )
    default = None if shown else default
    return FieldOption(
        _parameter(name, Annotated[kind | None if default is None else kind, option], default), path, read
    )


def _type(field: FieldInfo, flag: str) -> tuple[Any, Any, Callable[[Any], Any]]:
    """The type and the default that typer takes for a field, and the function that reads the option's value.

    A token count is given as a text such as 2M, a longest window as one such as 8x, a tuple of numbers as one text with
    commas, any other list by repeating the option, and a table of numbers by repeating it with `key=value` pairs.
    """
    choices = get_args(field.annotation)
    kind = choices[0] if NoneType in choices else field.annotation  # `int | None` is an int that may be left out
    default = field.get_default(call_default_factory=True)
    if get_origin(kind) is dict:
        return list[str], None, lambda pairs: assignments(pairs, flag)
    if kind is Longest:
        return str, default, lambda text: read_option(kind, text, flag)
    if get_origin(kind) is tuple and get_args(kind)[0] in (TokenCount, Ratio):
        return str, None, lambda text: read_option(kind, text.split(","), flag)
    if get_origin(kind) in (list, tuple):
        return list[str], None, get_origin(kind) or list
    if kind == TokenCount:  # one that may be left out
        return str, None, lambda text: read_option(TokenCount, text, flag)
    if any(isinstance(item, BeforeValidator) for item in field.metadata):
        return str, write_count(default), lambda text: read_option(TokenCount, text, flag)
    return kind, default, lambda value: value


def read_option(kind: Any, value: Any, flag: str) -> Any:
    """The value that pydantic makes of the text of an option; UsageError names the option and what it refuses."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise UsageError(f"{flag} {error.errors()[0]['input']!r}: {rule(error)}") from error


def assignments(pairs: list[str], flag: str) -> dict[str, float]:
    """Numbers by name, from `key=value` pairs.

    >>> assignments(["matrix_lr=0.02"], "--set")
    {'matrix_lr': 0.02}
    """
    values = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            values[key.strip()] = float(value if key.strip() else "")
        except ValueError as error:
            raise UsageError(f"{flag} {pair!r}: write key=number, such as {flag} matrix_lr=0.02") from error
    return values


class AddedOptions:
    """Options that a satellite or another package adds to commands: the fields of a dataclass, annotated for typer.

    A command has a parameter for a list of instances, whose class says what else they must be able to do. All options
    of classes that are derived from it are added to the command.
    """

    @classmethod
    def arguments(cls, arguments: list[str]) -> list[str]:
        """The command's arguments as typer reads them, made from those on the command line."""
        return arguments


def with_added(command: Command, added: Sequence[type[AddedOptions]]) -> Command:
    """A command with the fields of added options in place of its parameter for a list of them.

    Those that are of the kind of the list are the attribute `added` of the command.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    place = ""
    for parameter in signature.parameters.values():
        kind = next(iter(get_args(parameter.annotation)), None) if get_origin(parameter.annotation) is list else None
        if isinstance(kind, type) and issubclass(kind, AddedOptions):
            place = parameter.name
            added = [cls for cls in added if issubclass(cls, kind)]
            parameters += [option for cls in added for option in _fields_as_options(cls)]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    if not place:
        return command

    @wraps(command)
    def wrapper(**values: Any) -> None:
        values[place] = [cls(**{each.name: values.pop(each.name) for each in _fields_as_options(cls)}) for cls in added]
        command(**values)

    wrapper.added = added  # type: ignore[attr-defined]
    return _with_parameters(wrapper, parameters)


def _fields_as_options(cls: type[AddedOptions]) -> list[inspect.Parameter]:
    annotations = get_type_hints(cls, include_extras=True)
    return [_parameter(field.name, annotations[field.name], field.default) for field in fields(cls)]  # type: ignore[arg-type]


def _with_parameters(function: Command, parameters: list[inspect.Parameter]) -> Command:
    """The function, with these parameters for typer, which reads signature and annotations."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
