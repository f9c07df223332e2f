"""Encodings as they may be named in Python: by a spec, or by their class."""

from __future__ import annotations

from poscli.equation import Encoding
from poscli.system.errors import UsageError
from poscli.system.plugins import is_outside


def spec_of(encoding: str | type[Encoding]) -> str:
    """The spec of an encoding that is given as a spec or as a class, such as one defined in a notebook's cell.

    UsageError for anything else, and for a class inside a function, which no name leads to.
    """
    if isinstance(encoding, str):
        return encoding
    if not (isinstance(encoding, type) and issubclass(encoding, Encoding)):
        raise UsageError(f"{encoding!r} names no encoding; give a spec, such as 'alibi', or a subclass of api.Encoding")
    if not is_outside(encoding):
        return encoding.name
    if "." in encoding.__qualname__:
        raise UsageError(f"{encoding.__qualname__} is defined inside a function or a class; define it outside")
    return f"{encoding.__module__}:{encoding.__name__}"
