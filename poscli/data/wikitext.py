"""WikiText on the hub has one row per line of the original files; its documents are articles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

REPO = "Salesforce/wikitext"
_TITLE = re.compile(rb" = (?!= ).* = \n")  # ' = Title = '; sections are ' = = Section = = ', and deeper


def articles(rows: Iterable[bytes]) -> Iterator[bytes]:
    r"""Articles of the original files, from their lines: each begins at a top-level heading after a blank line.

    >>> rows = [b"", b" = A = \n", b"", b" text \n", b"", b" = = B = = \n", b"", b" = C = \n", b""]
    >>> list(articles(rows))
    [b' = A = \n\n text \n\n = = B = = \n\n', b' = C = \n\n']
    """
    lines: list[bytes] = []
    blank = True
    for row in rows:
        line = row.rstrip(b"\n") + b"\n"  # the hub stores blank lines as empty strings
        if blank and lines and _TITLE.fullmatch(line):
            yield b"".join(lines)
            lines = []
        if lines or line.strip():  # no blank line before the first title
            lines.append(line)
        blank = not line.strip()
    if lines:
        yield b"".join(lines)
