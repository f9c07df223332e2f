"""`code`: Python source of pinned wheels, the same bytes on every machine: about 2,000 documents and 42 MB.

The wheels are those of PINNED in wheel.py: SymPy, SQLAlchemy, NetworkX, Django, Pygments and mpmath. Their first
download needs a network, 20 MB. Files of other sizes are left out: shorter ones hold no long-range structure, and
longer ones are mostly tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from poscli.data.corpora import CORPORA, Kind
from poscli.data.corpora.wheel import DEFAULT_GLOB, PINNED, Wheel, texts
from poscli.data.source import Document, Part, Reading, Source

SMALLEST_BYTES, LARGEST_BYTES = 4_000, 120_000


def source(_: str = "") -> Source:
    """The corpus `code`."""
    made_of = frozenset(f"wheel:{name}" for name in PINNED)
    return Source("code", [SMALLEST_BYTES, LARGEST_BYTES, *PINNED.values()], _read, made_of=made_of)


def _read() -> Reading:
    wheels = {name: Wheel.parse(name)[0].file() for name in PINNED}

    def documents() -> Iterator[Document]:
        for name, (path, _) in wheels.items():
            for content in texts(path, DEFAULT_GLOB, f"wheel:{name}"):
                if SMALLEST_BYTES <= len(content) <= LARGEST_BYTES:
                    yield Document(content, _part(content))

    return Reading(documents(), {f"sha256 of {name}": digest for name, (_, digest) in wheels.items()})


def _part(content: bytes) -> Part:
    """The split of a document: two thirds are for training, a quarter is scored, a twelfth is for tuning."""
    share = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64
    return "train" if share < 2 / 3 else "valid" if share < 11 / 12 else "tune"


CORPORA.add(
    "code",
    Kind("code", "Python source of six pinned packages, 42 MB, downloaded once with pip", source),
)
