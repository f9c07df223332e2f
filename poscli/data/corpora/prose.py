"""`prose[:CORPUS]`: English: the docstrings of each module of a corpus of Python source, by default `code`.

Modules are parsed and never run. Those with less than 4 kB of docstrings are left out, and so are documents that the
running Python cannot parse. Its version decides the grammar, and how `ast.get_docstring` treats rare white space; all
modules of `code` parse under Python 3.11, and use no syntax that later versions refuse.
"""

from __future__ import annotations

import ast
import sys
import warnings

from poscli.data.corpora import CORPORA, Kind, derived_source, of_each
from poscli.data.source import Source

SMALLEST_BYTES = 4_000
VERSION = 1  # raise it when the documents change
PYTHON = sys.version_info[:2]  # which decides what modules can be parsed


def source(argument: str = "") -> Source:
    """The corpus `prose[:CORPUS]`."""
    return derived_source("prose", argument, [VERSION, *PYTHON], of_each(docstrings))


def docstrings(content: bytes) -> bytes:
    """The docstrings of a module in their order, with blank lines between them; b"" if they are too short."""
    tree = parsed(content)
    if tree is None:
        return b""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    owners = sorted((node for node in ast.walk(tree) if isinstance(node, kinds)), key=lambda node: node.lineno)
    texts = filter(None, (ast.get_docstring(node) for node in [tree, *owners]))
    prose = ("\n\n".join(texts) + "\n").encode("utf-8", "backslashreplace")  # escapes can write half a surrogate pair
    return prose if len(prose) >= SMALLEST_BYTES else b""


def parsed(content: bytes) -> ast.Module | None:
    """A document as Python's syntax tree; None if it is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in strings and the like: the text is not ours to correct
        try:
            return ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


CORPORA.add("prose", Kind("prose[:CORPUS]", "English: the docstrings of Python source, by default of code", source))
