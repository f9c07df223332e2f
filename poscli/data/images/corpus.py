"""A corpus of images: for each split, images as grids of grey levels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.data.images import cells as convert
from poscli.data.images.cells import Cells, Picture
from poscli.data.images.spec import ImageSpec
from poscli.data.splitting import StoredDocument, fingerprint, split_documents
from poscli.system.console import note
from poscli.system.errors import DataError

VERSION = 1  # raise it when the cells or the levels of an image change


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Images of one split; each is a document."""

    images: tuple[Cells, ...]  # the level of each cell, from 0: [rows, columns]

    @cached_property
    def shapes(self) -> NDArray[np.int64]:
        """The rows and columns of each image, `[images, 2]`."""
        return np.array([image.shape for image in self.images], dtype=np.int64).reshape(-1, 2)

    @property
    def cells(self) -> int:
        """The number of cells of all images."""
        return int(self.shapes.prod(axis=1).sum())

    def fits(self, rows: int, columns: int) -> NDArray[np.bool_]:
        """Which images hold a grid of so many rows and columns."""
        return (self.shapes[:, 0] >= rows) & (self.shapes[:, 1] >= columns)

    @property
    def largest(self) -> tuple[int, int]:
        """The rows and columns of the image with the largest square in it."""
        rows, columns = self.shapes[self.shapes.min(axis=1).argmax()].tolist()
        return rows, columns


@dataclass(frozen=True, eq=False)
class ImageCorpus:
    """Training and held-out images. Equal fingerprints mean equal images, cell for cell."""

    spec: str  # canonical: equal corpora have equal specs
    fingerprint: str  # 16 hex digits of a SHA-256 over the images, their split and the thresholds of the levels
    greys: Cells  # the grey value of each level, `[levels]`
    train: ImageSplit
    valid: ImageSplit

    @property
    def start(self) -> int:
        """The token that opens a window."""
        return len(self.greys)

    @property
    def vocab(self) -> int:
        """Number of tokens in the vocabulary: the levels and `start`."""
        return len(self.greys) + 1

    def describe(self) -> dict[str, Any]:
        """The corpus in env.json and in `--json`; a cell counts as one byte."""
        splits = {"train": self.train, "valid": self.valid}
        sizes = {name: {"documents": len(split.images), "bytes": split.cells} for name, split in splits.items()}
        return {"spec": self.spec, "fingerprint": self.fingerprint, "vocab": self.vocab, **sizes}


def build(spec: ImageSpec, pictures: Sequence[Picture]) -> ImageCorpus:
    """Split pictures and quantise them; of copies, one is kept. DataError if none is left to hold out.

    The thresholds of the levels come from the training images alone.
    """
    stored = {digest: n for n, digest in enumerate(map(_digest, pictures))}
    if copies := len(pictures) - len(stored):
        note(f"dropped {copies} image{'s' * (copies != 1)} of {spec}: exact copies of another")
    if len(stored) < 2:
        raise DataError(f"{spec} holds one image, and one more is needed to hold it out; add images")
    documents = [StoredDocument(digest, n, pictures[n].cells.size, pictures[n].part) for digest, n in stored.items()]
    train, valid = split_documents(documents)
    trained = [pictures[document.offset].cells for document in train]
    bounds = convert.thresholds(trained, spec.levels)
    tokenizer = f"images {VERSION} levels {bounds.tolist()}"
    return ImageCorpus(
        str(spec),
        fingerprint(train, valid, tokenizer),
        convert.greys(trained, bounds),
        *(
            ImageSplit(tuple(convert.quantised(pictures[document.offset].cells, bounds) for document in part))
            for part in (train, valid)
        ),
    )


def _digest(picture: Picture) -> bytes:
    """The SHA-256 of an image's shape and cells."""
    return hashlib.sha256(f"{picture.cells.shape}\n".encode() + picture.cells.tobytes()).digest()
