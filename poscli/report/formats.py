"""The formats in which pictures are written."""

from __future__ import annotations

from collections.abc import Iterable

from poscli.system.errors import UsageError

FORMATS = ("png", "svg", "pdf")


def known_formats(words: Iterable[str]) -> tuple[str, ...]:
    """The formats that these words name; UsageError for one that pictures cannot have.

    >>> known_formats(["SVG", " pdf ", ""])
    ('svg', 'pdf')
    """
    found = tuple(word.strip().lower() for word in words if word.strip())
    for word in found:
        if word not in FORMATS:
            raise UsageError(f"--formats {word}: pictures are written as {', '.join(FORMATS)}; give some of these")
    return found
