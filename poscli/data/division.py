"""Which documents are held out: decided by their contents alone, never by names or order of arrival."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from poscli.data.source import Part

RULE = "split rule 1"  # part of every fingerprint and cache key: change it with anything below or in build.py


@dataclass(frozen=True)
class Piece:
    """A stored document: where its bytes lie in the spool file, and their SHA-256."""

    digest: bytes
    offset: int
    size: int
    part: Part | None = None


def divide(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Training and validation documents, both in the order of their SHA-256.

    A source's own split is kept. Otherwise documents are held out in that order until they hold a tenth of the
    bytes, passing over any that would make it more than a fifth.
    """
    ordered = sorted(pieces, key=lambda piece: piece.digest)
    if all(piece.part is None for piece in ordered):
        held = hold_out([piece.size for piece in ordered])
    else:
        held = {n for n, piece in enumerate(ordered) if piece.part == "valid"}
    train = [piece for n, piece in enumerate(ordered) if n not in held]
    return train, [ordered[n] for n in sorted(held)]


def hold_out(sizes: list[int]) -> set[int]:
    """Indices of the documents to hold out, given sizes in bytes of at least two documents.

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
    return held or {sizes.index(min(sizes))}  # every document is more than a fifth: the smallest


def cut(content: bytes) -> int:
    r"""Where to cut a corpus of one document: 90 % of its bytes, back to a line start if one is near.

    Without a line end in the last 5 % before that, back to the start of a UTF-8 character.

    >>> cut(b"one line\n" * 101), cut(b"x" * 1000), cut(b"x" + "é".encode() * 50)
    (810, 900, 89)
    """
    goal = len(content) * 9 // 10
    line = content.rfind(b"\n", goal - len(content) // 20, goal)
    if line >= 0:
        return line + 1
    while goal > 0 and content[goal] & 0xC0 == 0x80:  # 10xxxxxx continues a character
        goal -= 1
    return goal


def fingerprint(train: list[Piece], valid: list[Piece]) -> str:
    """16 hex digits that name the contents and their split."""
    digest = hashlib.sha256(RULE.encode())
    for name, pieces in (("train", train), ("valid", valid)):
        digest.update(f"\n{name} {len(pieces)}\n".encode())
        digest.update(b"".join(piece.digest for piece in pieces))
    return digest.hexdigest()[:16]
