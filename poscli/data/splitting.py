"""Which documents are held out: their contents alone decide, not their names or the order in which they are read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from poscli.data.source import Part

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
