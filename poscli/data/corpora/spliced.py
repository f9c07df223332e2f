"""`spliced[:CORPUS]`: a control: pieces of many documents of a corpus, by default `code`, end to end.

Each piece has 48 to 160 bytes and comes from a document of its own, so what lies farther back than a piece says nothing
about what comes next, but for what any documents of the corpus have in common. A model that seems to gain from a long
context here shows a fault of the measurement.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from poscli.data.corpora import CORPORA, Kind, derived_source
from poscli.data.source import PARTS, Document, Part, Source

SHORTEST, LONGEST = 48, 160  # bytes of a piece, before it is cut at the end of a line
DOCUMENT_BYTES, DOCUMENTS = 8_000, 200  # of each split
VERSION = 2  # raise it when the documents change


def source(argument: str = "") -> Source:
    """The corpus `spliced[:CORPUS]`."""
    return derived_source("spliced", argument, VERSION, _spliced)


def _spliced(documents: Iterator[Document]) -> Iterator[Document]:
    """Documents of each split, of pieces of documents of that split."""
    parts: dict[Part | None, list[bytes]] = {part: [] for part in PARTS}
    for content, part in documents:
        if len(content) > 2 * LONGEST:
            parts[part].append(content)
    for part, contents in parts.items():
        draw = random.Random(f"spliced {part}")
        for _ in range(DOCUMENTS if contents else 0):
            text = b""
            while len(text) < DOCUMENT_BYTES:
                for content in draw.sample(contents, min(len(contents), DOCUMENT_BYTES // SHORTEST)):
                    text += _piece(content, draw)
            yield Document(text[:DOCUMENT_BYTES].decode(errors="ignore").encode(), part)


def _piece(content: bytes, draw: random.Random) -> bytes:
    """Whole lines from a random place of a document, or what of a line fits LONGEST bytes."""
    drawn = draw.randrange(len(content) - LONGEST)
    first = content.find(b"\n", drawn) + 1
    if first in (0, len(content)):  # no line begins after the place
        first = next(at for at in range(drawn, -1, -1) if content[at] & 0xC0 != 0x80)
    piece = content[first : first + draw.randint(SHORTEST, LONGEST)]
    return piece[: piece.rfind(b"\n") + 1] or piece.decode(errors="ignore").encode()


CORPORA.add(
    "spliced", Kind("spliced[:CORPUS]", "a control: short pieces of many documents, so that no context helps", source)
)
