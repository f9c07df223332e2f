"""`records[:CORPUS]`: JSON lines, one for each function of a module of Python source, by default of `code`.

    {"name": "sub", "in": "Number", "line": 7, "arguments": ["self", "other"], "decorators": [], "calls": ["int"], ...}

Each module is one document. `in` names the classes and functions around the function, `calls` the first eight
functions that it calls, as they are written, `returns` counts its return statements, and `doc` is the first line of its
docstring. Modules are parsed and never run; those with less than 4 kB of records are left out, and so are documents
that the running Python cannot parse. Nothing else depends on its version.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Any

from poscli.data.corpora import CORPORA, Kind, derived_source, of_each
from poscli.data.corpora.prose import PYTHON, parsed
from poscli.data.source import Source

SMALLEST_BYTES = 4_000
MOST_CALLS = 8
LONGEST_NAME, LONGEST_LINE = 40, 120  # characters of a called function, and of the first line of a docstring
VERSION = 1  # raise it when the documents change

Function = ast.FunctionDef | ast.AsyncFunctionDef


def source(argument: str = "") -> Source:
    """The corpus `records[:CORPUS]`."""
    return derived_source("records", argument, [VERSION, *PYTHON], of_each(function_records))


def function_records(content: bytes) -> bytes:
    """A JSON line for each function of a module, in their order; b"" if they are too short."""
    tree = parsed(content)
    if tree is None:
        return b""
    lines = b"".join(json.dumps(_record(node, place)).encode() + b"\n" for node, place in _functions(tree))
    return lines if len(lines) >= SMALLEST_BYTES else b""


def _functions(tree: ast.AST) -> Iterator[tuple[Function, str]]:
    """The functions of a module in their order, each with the names of what it is in."""
    waiting = [(tree, "")]
    while waiting:
        node, place = waiting.pop()
        if isinstance(node, Function):
            yield node, place
        if isinstance(node, Function | ast.ClassDef):
            place = f"{place}.{node.name}".lstrip(".")
        waiting += [(child, place) for child in reversed(list(ast.iter_child_nodes(node)))]


def _record(node: Function, place: str) -> dict[str, Any]:
    inside = list(ast.walk(node))
    called = sorted(
        (call for call in inside if isinstance(call, ast.Call)), key=lambda call: (call.lineno, call.col_offset)
    )
    calls = dict.fromkeys(_written(call.func) for call in called)
    arguments = node.args
    starred = (("*", arguments.vararg), ("**", arguments.kwarg))
    return {
        "name": node.name,
        "in": place,
        "line": node.lineno,
        "arguments": [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        + [stars + each.arg for stars, each in starred if each],
        "decorators": [_written(each) for each in node.decorator_list],
        "calls": [name for name in calls if 0 < len(name) <= LONGEST_NAME][:MOST_CALLS],
        "returns": sum(isinstance(each, ast.Return) for each in inside),
        "doc": (ast.get_docstring(node) or "").partition("\n")[0][:LONGEST_LINE],
    }


def _written(node: ast.AST) -> str:
    """A name with its attributes and calls, such as `a.b().c`; without what they are of, if that is no name.

    It is not made by `ast.unparse`, whose text depends on the version of Python.
    """
    parts = []
    while isinstance(node, ast.Attribute | ast.Call):
        parts.append(f".{node.attr}" if isinstance(node, ast.Attribute) else "()")
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return (node.id if isinstance(node, ast.Name) else "") + "".join(reversed(parts))


CORPORA.add(
    "records",
    Kind("records[:CORPUS]", "JSON lines: one for each function of Python source, by default of code", source),
)
