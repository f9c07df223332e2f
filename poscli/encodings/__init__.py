"""Position encodings: one paper, one file. `base.py` is the equation they fill in, `spec.py` the grammar of specs."""

from poscli.encodings.base import BLANKS, TIERS, Encoding, Shape, Unsupported
from poscli.encodings.registry import get, names, register
from poscli.encodings.spec import Spec, build, check, parse

__all__ = [
    "BLANKS",
    "TIERS",
    "Encoding",
    "Shape",
    "Spec",
    "Unsupported",
    "build",
    "check",
    "get",
    "names",
    "parse",
    "register",
]
