"""`images`: the images of poscli/data/images/, which are no text; the task grid reads them."""

from __future__ import annotations

from poscli.data.corpora import CORPORA, Kind
from poscli.data.images.builtin import available
from poscli.data.images.spec import GRAMMAR
from poscli.data.source import Source
from poscli.system.errors import UsageError


def source(argument: str) -> Source:
    """Refuse to read images as text."""
    spec = f"images:{argument}" if argument else "images"
    raise UsageError(f"the corpus {spec} holds images, not text; add --task grid, or name a text")


CORPORA.add(
    "images",
    Kind(GRAMMAR, "for --task grid: the images that matplotlib ships, or those of a folder", source, available),
)
