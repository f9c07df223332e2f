"""Documents into arrays: spool the documents to disk, decide which are held out, write their tokens.

The contents of documents alone decide which are held out, not their names or the order in which they are read. One
document at a time is held in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from poscli.data.source import Document, Part
from poscli.data.tokenizers import TRAINED, Tokenizer, TrainedTokenizer
from poscli.system.console import note, warn_once
from poscli.system.errors import DataError, UsageError

RULE = "split rule 1"  # in every fingerprint and cache key: raise it when splitting or building gives other arrays


@dataclass(frozen=True)
class StoredDocument:
    """A document in the spool file: the SHA-256 of its bytes, where they begin, how many there are."""

    digest: bytes
    offset: int
    size: int
    part: Part | None = None


def split_documents(documents: list[StoredDocument]) -> tuple[list[StoredDocument], list[StoredDocument]]:
    """Training and validation documents, both in the order of their SHA-256.

    A split that the source comes with is kept. Otherwise `hold_out` chooses among the documents in that order.
    """
    ordered = sorted(documents, key=lambda document: document.digest)
    if all(document.part is None for document in ordered):
        held = hold_out([document.size for document in ordered])
    else:
        held = {n for n, document in enumerate(ordered) if document.part == "valid"}
    train = [document for n, document in enumerate(ordered) if n not in held]
    return train, [ordered[n] for n in sorted(held)]


def hold_out(sizes: list[int]) -> set[int]:
    """Indices of the documents to hold out, given the sizes in bytes of at least two documents.

    Documents are taken in order until they hold a tenth of all bytes. A document that would raise the share above a
    fifth is passed over.

    >>> sorted(hold_out([500, 60, 300, 60, 80]))
    [1, 3]
    >>> hold_out([500, 400])
    {1}
    """
    total, taken, held = sum(sizes), 0, set()
    for n, size in enumerate(sizes):
        if 10 * taken >= total:
            break
        if 5 * (taken + size) <= total:
            held.add(n)
            taken += size
    return held or {sizes.index(min(sizes))}  # if every document is more than a fifth: the smallest


def cut_point(content: bytes) -> int:
    r"""The offset at which a corpus of a single document is cut into a training and a held-out part.

    It lies at 90 % of the bytes, moved back to the start of a line if there is one in the 5 % before, else to the
    start of a UTF-8 character.

    >>> cut_point(b"one line\n" * 101), cut_point(b"x" * 1000), cut_point(b"x" + "é".encode() * 50)
    (810, 900, 89)
    """
    goal = len(content) * 9 // 10
    line = content.rfind(b"\n", goal - len(content) // 20, goal)
    if line >= 0:
        return line + 1
    while goal > 0 and content[goal] & 0xC0 == 0x80:  # 10xxxxxx continues a character
        goal -= 1
    return goal


def fingerprint(train: list[StoredDocument], valid: list[StoredDocument], tokenizer: str) -> str:
    """16 hex digits that identify the documents, their split and, by its fingerprint, the tokenizer."""
    digest = hashlib.sha256(RULE.encode())
    for name, documents in (("train", train), ("valid", valid)):
        digest.update(f"\n{name} {len(documents)}\n".encode())
        digest.update(b"".join(document.digest for document in documents))
    if tokenizer:
        digest.update(f"\ntokenizer {tokenizer}\n".encode())
    return digest.hexdigest()[:16]


class Built(NamedTuple):
    """Properties of a built corpus that cannot be read off its arrays."""

    fingerprint: str
    bytes: dict[str, int]  # bytes of all documents, by split


def build_arrays(spec: str, documents: Iterable[Document], tokenizer: Tokenizer, folder: Path) -> Built:
    """Write {train,valid}.{tokens,starts}.npy into an empty folder, and TRAINED if the tokenizer is to be trained.

    Empty documents are dropped. Raises DataError if a split would be empty, and OSError if the disk fails.
    """
    path = folder / "documents.bin"
    with path.open("w+b") as spool:
        stored = _store(documents, spool)
        if not stored:
            raise DataError(f"{spec} holds no text; check what it names")
        alone = len(stored) == 1 and stored[0].part is None
        train, valid = _cut_in_two(spec, stored[0], spool) if alone else split_documents(stored)
        for name, part in (("train", train), ("valid", valid)):
            if not part:
                raise DataError(f"{spec} holds no text for the {name} split; name splits that do as @TRAIN[,VALID]")
        if isinstance(tokenizer, TrainedTokenizer) and not tokenizer.content:
            size = sum(document.size for document in train)
            note(f"training the tokenizer {tokenizer.name} on {size} bytes")
            tokenizer = tokenizer.trained(tokenizer.train(_read(document, spool) for document in train))
        if isinstance(tokenizer, TrainedTokenizer):
            (folder / TRAINED).write_bytes(tokenizer.content)
        for name, part in (("train", train), ("valid", valid)):
            lengths = _write_tokens(folder / f"{name}.tokens.npy", part, spool, tokenizer)
            np.save(folder / f"{name}.starts.npy", np.cumsum([0, *lengths], dtype=np.int64))
    path.unlink()
    sizes = {"train": sum(document.size for document in train), "valid": sum(document.size for document in valid)}
    return Built(fingerprint(train, valid, tokenizer.fingerprint), sizes)


def _store(documents: Iterable[Document], spool: BinaryIO) -> list[StoredDocument]:
    """Append every distinct document to the spool file. Of copies, one is kept: the held-out one, if there is one."""
    stored: dict[bytes, StoredDocument] = {}
    copies = copied_bytes = 0
    for content, part in documents:
        digest = hashlib.sha256(content).digest()
        known = stored.get(digest)
        if known:
            copies += 1
            copied_bytes += known.size
            stored[digest] = StoredDocument(
                digest, known.offset, known.size, "valid" if part == "valid" else known.part
            )
        elif content:
            stored[digest] = StoredDocument(digest, spool.tell(), len(content), part)
            spool.write(content)
    if copies:
        note(f"dropped {copies} documents that are exact copies of another")
    if copied_bytes > spool.tell():
        warn_once(
            f"{copied_bytes} of {copied_bytes + spool.tell()} bytes of the corpus were copies and are dropped: "
            f"{spool.tell()} bytes are left; check that it names what was meant"
        )
    return list(stored.values())


def _cut_in_two(
    spec: str, document: StoredDocument, spool: BinaryIO
) -> tuple[list[StoredDocument], list[StoredDocument]]:
    """Training and held-out part of a corpus that is a single document."""
    content, size = _read(document, spool), document.size
    at = cut_point(content)
    if at == 0:
        raise DataError(f"{spec} holds {size} bytes in all, too few to hold any out; add text to it")
    note(f"{spec} is one document: its first {at} bytes are for training, its last {size - at} are held out")
    digests = [hashlib.sha256(half).digest() for half in (content[:at], content[at:])]
    train = StoredDocument(digests[0], document.offset, at)
    return [train], [StoredDocument(digests[1], document.offset + at, size - at)]


def _write_tokens(path: Path, documents: list[StoredDocument], spool: BinaryIO, tokenizer: Tokenizer) -> list[int]:
    """Write the tokens of all documents as one .npy file; return the number of tokens of each, `end` included.

    The file is not written through a memory map, where a full disk would be a SIGBUS instead of an OSError.
    """
    kind = "<u2" if tokenizer.vocab <= 2**16 else "<u4"
    lengths = []
    with path.open("wb") as file:
        _write_header(file, kind, 0)
        for document in documents:
            content = _read(document, spool)
            ids = tokenizer.encode(content)
            size = int(tokenizer.token_bytes[ids].sum()) - len(tokenizer.lead(content))
            if size != len(content):
                raise UsageError(
                    f"the tokenizer {tokenizer.name} is not lossless: it turns a document of {len(content)} bytes into "
                    f"tokens that stand for {size}; correct its encode or its token_bytes"
                )
            file.write(np.array([tokenizer.end], kind).tobytes())
            file.write(ids.astype(kind).tobytes())
            lengths.append(1 + len(ids))
        file.seek(0)
        _write_header(file, kind, sum(lengths))  # numpy pads headers, so that a count never changes their size
    return lengths


def _write_header(file: BinaryIO, kind: str, tokens: int) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": (tokens,)})


def _read(document: StoredDocument, spool: BinaryIO) -> bytes:
    spool.seek(document.offset)
    return spool.read(document.size)
