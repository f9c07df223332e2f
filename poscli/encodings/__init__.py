"""Position encodings: one paper, one file."""

from poscli.encodings.registry import above, at_least, full_name, get, missing, names, register
from poscli.equation import Encoding, Length, Operands, Shape, Unsupported

__all__ = [
    "Encoding",
    "Length",
    "Operands",
    "Shape",
    "Unsupported",
    "above",
    "at_least",
    "full_name",
    "get",
    "missing",
    "names",
    "register",
]
