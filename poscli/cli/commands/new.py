"""`poscli new`: a file to begin an encoding of one's own from, and its test."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from enum import StrEnum
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from poscli.cli import complete
from poscli.cli.commands import command
from poscli.cli.options import Json
from poscli.system.console import emit, out
from poscli.system.errors import StorageError, UsageError
from poscli.system.files import check_folder, write_atomic

LONGEST = 40  # characters of a name
IMPORTED = {"Encoding", "Shape", "Tensor"}  # what the file imports under these names


class Start(StrEnum):
    """What the encoding begins with; each has its templates."""

    BIAS = "bias"
    ABSOLUTE = "absolute"
    ROTARY = "rotary"
    RELATIVE = "relative"


def _names(name: str) -> dict[str, str]:
    """The names of the module, the files and the class of a new encoding, by the names that the templates use.

    >>> _names("my-encoding")["test_file"], _names("my-encoding")["cls"]
    ('test_my_encoding.py', 'MyEncoding')
    """
    module, cls = name.replace("-", "_"), "".join(part[:1].upper() + part[1:] for part in re.split("[-_]", name))
    return {"name": name, "module": module, "file": f"{module}.py", "test_file": f"test_{module}.py", "cls": cls}


@command("new", after="verify")
def new(
    name: Annotated[str, typer.Argument(help="The encoding's name: letters, digits, - and _, such as my-encoding.")],
    kind: Annotated[
        Start,
        typer.Option(
            help="What it begins with: a bias of the scores, something added to the embedding, a rotation of queries "
            "and keys, or a vector for each distance."
        ),
    ] = Start.BIAS,
    to: Annotated[Path, typer.Option("--to", help="Folder of the two files.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files of these names.")] = False,
    json_: Json = False,
) -> None:
    """Write an encoding of your own that works as it is, with comments that say what to change, and its test."""
    names = _checked(name, to)
    check_folder(to, "--to")
    paths = [to / names["file"], to / names["test_file"]]
    if taken := [path for path in paths if path.exists() and not force]:
        raise UsageError(f"{taken[0]} exists already; choose another name, or overwrite it with --force")
    for path, template in zip(paths, (f"{kind}.py.jinja", "test.py.jinja"), strict=True):
        _write(path, _rendered(template, names, kind))
    steps = _next(names, to)
    payload = {"files": [str(path) for path in paths], "encoding": names["file"], "class": names["cls"], "next": steps}
    emit(json_, payload, lambda: _show(paths, steps))


def _checked(name: str, to: Path) -> dict[str, str]:
    """The names made of a name; UsageError for one that cannot be a module, or that something else has."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*", name) or len(name) > LONGEST:
        raise UsageError(
            f"{name[: 2 * LONGEST]!r} cannot name an encoding: a name has at most {LONGEST} letters, digits, - and _, "
            "and begins with a letter, such as my-encoding"
        )
    names, spelled = _names(name), name.lower().replace("_", "-")
    if spelled in complete.registered("poscli.encodings"):
        raise UsageError(f"{name!r} is the name of an encoding that poscli has; choose another, such as my-{spelled}")
    if keyword.iskeyword(names["module"]):
        raise UsageError(
            f"{name!r} is a keyword of Python, which cannot name a module; choose another, such as my-{name}"
        )
    if names["cls"] in IMPORTED or _is_taken(names["module"], to):
        raise UsageError(
            f"{name!r} would hide something that Python or the encoding imports by this name; choose another, such as "
            f"my-{name}"
        )
    return names


def _is_taken(module: str, to: Path) -> bool:
    """Whether a module of this name exists elsewhere, which a file in the current folder would hide."""
    here = {Path.cwd(), to.resolve()}
    elsewhere = [path for path in sys.path if Path(path).resolve() not in here]
    spec = PathFinder.find_spec(module, elsewhere)
    return module in sys.stdlib_module_names or (spec is not None and spec.origin is not None)


def _rendered(template: str, names: dict[str, str], kind: Start) -> str:
    """A template, filled in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loaded = Environment(  # Python, not HTML: nothing is to be escaped
        loader=PackageLoader("poscli.cli"), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return loaded.get_template(template).render(kind=kind.value, **names)


def _write(path: Path, content: str) -> None:
    try:
        write_atomic(path, content)
    except StorageError as error:
        cause = getattr(error.__cause__, "strerror", None) or error.__cause__
        raise StorageError(f"cannot write {path}: {cause}; choose another folder with --to") from error


def _next(names: dict[str, str], to: Path) -> list[str]:
    """The commands to run next."""
    inside = [] if to.resolve() == Path.cwd().resolve() else [f"cd {shlex.quote(str(to))}"]
    return [
        *inside,
        f"poscli verify {names['file']}",
        f"pytest {names['test_file']}",
        f"poscli inspect {names['file']}",
        f"poscli train --enc {names['file']}",
        "poscli extrapolate",
        "poscli report",
    ]


def _show(paths: list[Path], steps: list[str]) -> None:
    encoding, test = paths
    out().print(f"wrote {encoding}: the encoding, which works as it is; comments say what to change", soft_wrap=True)
    out().print(f"wrote {test}: its test, which needs pytest", soft_wrap=True)
    out().print("next:")
    for step in steps:
        out().print(f"  {step}", soft_wrap=True)
