"""Text that is safe to show: in a terminal, in a message of one line, in a report."""

from __future__ import annotations

import time
import unicodedata


def in_no_line(text: str, allowed: str = "") -> str:
    r"""The first character that cannot stand in a line of a file or of a message, except those in `allowed`; else "".

    These are control characters, separators of lines, and what Python reads bytes as that are not UTF-8.

    >>> in_no_line("one line"), in_no_line("two\nlines"), in_no_line("two\nlines", "\n")
    ('', '\n', '')
    """
    refused = (sign for sign in text if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp"))
    return next((sign for sign in refused if sign not in allowed), "")


def printable(text: object, keep: str = "") -> str:
    r"""A text whose characters without a shape of their own are written as escapes, except those in `keep`.

    These are control characters, separators of lines, marks that join letters or change the direction of writing, and
    the halves of surrogate pairs by which Python stands for bytes that are not UTF-8. Spaces of any width stay.

    >>> printable("red\x1b[31m\r\n")
    'red\\x1b[31m\\r\\n'
    """
    whole = str(text)
    if whole.isprintable():
        return whole
    shown = []
    for sign in whole:
        has_shape = sign.isprintable() or unicodedata.category(sign) == "Zs"  # Python calls only one space printable
        shown.append(sign if sign in keep or has_shape else sign.encode("unicode_escape", "surrogatepass").decode())
    return "".join(shown)


def printable_line(text: object) -> str:
    r"""A printable text on one line: runs of white space become one space.

    >>> printable_line("two\n lines, \x1b[31mred")
    'two lines, \\x1b[31mred'
    """
    return printable(" ".join(str(text).split()))


def counted(number: int, noun: str) -> str:
    """A number and a noun in the singular or the plural.

    >>> counted(1, "layer"), counted(2, "layer")
    ('1 layer', '2 layers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def utc_stamp() -> str:
    """The time, as 2026-01-31T12:00:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
