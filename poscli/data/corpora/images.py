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
    Kind(
        GRAMMAR,
        "for --task grid: the images that matplotlib ships, or those of a folder",
        source,
        available,
        unit="cell",
        explained="**images**: a token is a cell of an image, and losses are in bits per cell. A window of l tokens is "
        "a grid of l cells, as square as the divisors of l allow (16 x 16 for 256, 16 x 32 for 512), read row by row "
        "from the top left. The cropped context is the smaller grid that ends at the same cell; a baseline that limits "
        "attention to the last tokens counts them row by row. Under *fixed*, even the longest grid touches neither the "
        "top nor the left of its image.",
    ),
)
