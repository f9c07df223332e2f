"""Which code made a result: hashes of what trains and what measures, for reports that outlive a version of poscli.

Comments, docstrings and formatting do not change a hash, and neither does another version of Python. Code of plugins is
not in it: that is part of a run's configuration (plugins.py).
"""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cache
from pathlib import Path

import poscli
from poscli.encodings import get, names
from poscli.encodings.registry import broken
from poscli.specs import names_in

HOUSE = Path(poscli.__file__).parent
# What makes the text of a corpus is not here, as its fingerprint says that, but what draws windows from it is.
ENGINES = (
    *("attention", "equation", "model", "native", "specs", "system/seeds.py"),
    *("data/corpus.py", "grids/images.py", "tasks", "checkpoints/tasks.py", "grids/tasks.py"),
)
TRAINING = (*ENGINES, "training")
MEASURING = (*ENGINES, "evaluation", "checkpoints/checkpoint_model.py", "data/profile.py", "statistics/intervals.py")
DIGITS = 8  # of each hash


@cache
def code_of(spec: str, rooms: tuple[str, ...]) -> str:
    """The hash of the code of a spec's encodings, and that of these rooms of poscli, joined by a dash.

    The first is empty for a spec of other names than those of this version. The code of an encoding is its file and
    those of the encodings that it builds on. The spec is not parsed, so that no plugin that it names is run.
    """
    classes = [get(name) for name in names_in(spec) if name in names() and not broken(name)]
    modules = sorted({module for cls in classes for module in _with_imports(cls.__module__)})
    own = code_hash([_file(module) for module in modules]) if modules else ""
    return f"{own}-{_of_rooms(rooms)}"


@cache
def _of_rooms(rooms: tuple[str, ...]) -> str:
    inside = [path for room in rooms for path in (HOUSE / room).rglob("*")]
    files = [*inside, *(HOUSE / room for room in rooms)]
    return code_hash(sorted(path for path in files if path.is_file() and path.suffix in (".py", ".h", ".cpp")))


def _with_imports(module: str, known: frozenset[str] = frozenset()) -> set[str]:
    """A module of encodings with those that it imports; empty for modules of plugins, and for what only finds them."""
    if not re.match(r"poscli\.(grids\.)?encodings\.(?!registry\b)\w", module) or module in known:
        return set()
    tree = ast.parse(_file(module).read_bytes())
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {module}.union(*(_with_imports(other, known | {module}) for other in named))


def _file(module: str) -> Path:
    return HOUSE.parent / Path(*module.split(".")).with_suffix(".py")


def code_hash(files: list[Path]) -> str:
    """The hash of the content of files of Python and C++, 8 hex digits."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode())
        if path.suffix == ".py":
            words: list[str] = []
            _add_meaning(words, ast.parse(path.read_bytes()))
            digest.update(" ".join(words).encode())
        else:
            code = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            digest.update("".join(code.split()).encode())
    return digest.hexdigest()[:DIGITS]


def _add_meaning(words: list[str], node: object) -> None:
    """Add a tree of Python code in words, without docstrings, and without the fields that differ by Python's version.

    Every training waits for it: words are added to one list, as generators within generators take three times as long.
    """
    if isinstance(node, ast.AST):
        words.append(type(node).__name__)
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in ("kind", "type_comment", "type_params", "ctx"):
                continue
            if name == "body" and isinstance(value, list) and _is_text(value[0]):
                value = value[1:]
            words.append(name)
            _add_meaning(words, value)
    elif isinstance(node, list):
        for each in node:
            _add_meaning(words, each)
    else:
        words.append(repr(node))


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
