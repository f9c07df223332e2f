"""Documents into arrays: spool them to disk, divide them, write the tokens. Memory holds one document at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from poscli.console import note
from poscli.data.corpus import END
from poscli.data.division import Piece, cut, divide, fingerprint
from poscli.data.source import Document
from poscli.errors import DataError


def build(spec: str, documents: Iterable[Document], folder: Path) -> str:
    """Write {train,valid}.{tokens,starts}.npy into an empty folder; return the corpus' fingerprint.

    Documents without a byte are dropped: they hold nothing to score. OSError where the disk fails.
    """
    path = folder / "documents.bin"
    with path.open("w+b") as spool:
        pieces = _collect(documents, spool)
        if not pieces:
            raise DataError(f"{spec} holds no text; check what it names")
        alone = len(pieces) == 1 and pieces[0].part is None
        train, valid = _halves(spec, pieces[0], spool) if alone else divide(pieces)
        for name, part in (("train", train), ("valid", valid)):
            if not part:
                raise DataError(f"{spec} holds no text for the {name} split; name splits that do as @TRAIN[,VALID]")
            _write(folder / f"{name}.tokens.npy", part, spool)
            starts = np.cumsum([0, *(1 + piece.size for piece in part)], dtype=np.int64)
            np.save(folder / f"{name}.starts.npy", starts)
    path.unlink()
    return fingerprint(train, valid)


def _collect(documents: Iterable[Document], spool: BinaryIO) -> list[Piece]:
    """Append every document to the spool once; a copy is dropped, the held-out one of two is kept."""
    pieces: dict[bytes, Piece] = {}
    copies = 0
    for content, part in documents:
        digest = hashlib.sha256(content).digest()
        known = pieces.get(digest)
        if known:
            copies += 1
            pieces[digest] = Piece(digest, known.offset, known.size, "valid" if part == "valid" else known.part)
        elif content:
            pieces[digest] = Piece(digest, spool.tell(), len(content), part)
            spool.write(content)
    if copies:
        note(f"dropped {copies} documents that are exact copies of another")
    return list(pieces.values())


def _halves(spec: str, piece: Piece, spool: BinaryIO) -> tuple[list[Piece], list[Piece]]:
    """The only document of a corpus, cut in two."""
    content = _content(piece, spool)
    at = cut(content)
    if at == 0:
        raise DataError(f"{spec} holds {piece.size} bytes in all, too few to hold any out; add text to it")
    note(f"{spec} is one document: its first {at} bytes are for training, its last {piece.size - at} are held out")
    digests = [hashlib.sha256(half).digest() for half in (content[:at], content[at:])]
    return [Piece(digests[0], piece.offset, at)], [Piece(digests[1], piece.offset + at, piece.size - at)]


def _write(path: Path, pieces: list[Piece], spool: BinaryIO) -> None:
    """A .npy file of END, byte, byte, ... Not through a memory map: on a full disk that is a SIGBUS, not an OSError."""
    tokens = sum(1 + piece.size for piece in pieces)
    end = np.array([END], dtype="<u2").tobytes()
    with path.open("wb") as file:
        header = {"descr": "<u2", "fortran_order": False, "shape": (tokens,)}
        np.lib.format.write_array_header_1_0(file, header)
        for piece in pieces:
            file.write(end)
            file.write(np.frombuffer(_content(piece, spool), np.uint8).astype("<u2").tobytes())


def _content(piece: Piece, spool: BinaryIO) -> bytes:
    spool.seek(piece.offset)
    return spool.read(piece.size)
