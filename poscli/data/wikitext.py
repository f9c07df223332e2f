"""WikiText: the hub has one row per line of the original files, and the documents are articles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

REPO = "Salesforce/wikitext"
_TITLE = re.compile(rb" = (?!= ).* = \n")  # ' = Title = '; headings of sections have more signs: ' = = Section = = '


def articles(rows: Iterable[bytes]) -> Iterator[bytes]:
    r"""Join lines to articles. An article begins at a top-level heading that follows a blank line.

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
        if lines or line.strip():  # skip blank lines before the first title
            lines.append(line)
        blank = not line.strip()
    if lines:
        yield b"".join(lines)
