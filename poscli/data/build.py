"""Documents into arrays: spool the documents to disk, decide which are held out, write their tokens.

A corpus has three splits: `train`; `valid`, whose documents evaluations score; and `tune`, whose documents are only
for choosing recipes and are never scored, so that a choice cannot suit the documents by which it is judged. The
contents of documents alone decide which are held out, not their names or the order in which they are read. One document
at a time is held in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from poscli.data.source import PARTS, Document, Part, Reading, Source
from poscli.data.tokenizers import TRAINED, Tokenizer, TrainedTokenizer
from poscli.system.console import note, warn_once
from poscli.system.errors import DataError, UsageError

RULE = "split rule 2"  # in every fingerprint and cache key: raise it when splitting or building gives other arrays


@dataclass(frozen=True)
class StoredDocument:
    """A document in the spool file: the SHA-256 of its bytes, where they begin, how many there are."""

    digest: bytes
    offset: int
    size: int
    part: Part | None = None


Parts = Mapping[Part, list[StoredDocument]]  # the documents of each split


def split_documents(documents: Sequence[StoredDocument], whole: bool = False) -> Parts:
    """The documents of each split, in the order of their SHA-256.

    With `whole` none is for training, and every fourth, from the second on, is for tuning. Else a split that the source
    comes with is kept; where it has no documents for tuning, `tune` is cut from `train`, so that `valid` stays the text
    on which others publish: in that order until it holds a third of the bytes of `valid` or a twelfth of those of
    `train`. Otherwise `hold_out` chooses among the documents in that order, and every fourth of the chosen ones, from
    the second on, is for tuning. `tune` is empty where only one document can be held out.
    """
    ordered = sorted(documents, key=lambda document: document.digest)
    if whole:
        return {"train": [], "valid": [each for n, each in enumerate(ordered) if n % 4 != 1], "tune": ordered[1::4]}
    if all(document.part is None for document in ordered):
        held = hold_out([document.size for document in ordered])
        tuning = set(held[1::4])
        part_of = {n: "tune" if n in tuning else "valid" for n in held}
        return {part: [each for n, each in enumerate(ordered) if part_of.get(n, "train") == part] for part in PARTS}
    parts: dict[Part, list[StoredDocument]] = {part: [] for part in PARTS}
    for document in ordered:
        parts[document.part or "train"].append(document)
    if not parts["tune"]:
        sizes = {part: sum(document.size for document in parts[part]) for part in PARTS}
        wanted, most = sizes["valid"] / 3, sizes["train"] / 12
        taken, chosen = 0, set()
        for document in parts["train"]:
            if taken < wanted and taken + document.size <= most:
                chosen.add(document.digest)
                taken += document.size
        parts["tune"] = [document for document in parts["train"] if document.digest in chosen]
        parts["train"] = [document for document in parts["train"] if document.digest not in chosen]
    return parts


def divided(source: Source) -> Reading:
    """The documents of a source, each with the split that it has in this corpus; a single one in its three parts.

    What is made of a document belongs to the document's split, so that no model that has trained on one of the two is
    scored on the other. The source is read twice; a document that only the second reading has is for training.
    """
    documents, origin = source.read()
    known: dict[bytes, StoredDocument] = {}
    for content, part in documents:
        digest = hashlib.sha256(content).digest()
        if content:
            kept = _held_out_first(part, known[digest].part) if digest in known else part
            known[digest] = StoredDocument(digest, 0, len(content), kept)
    alone = len(known) == 1 and all(document.part is None for document in known.values())
    parts = split_documents(list(known.values()), source.whole) if known and not alone else {}
    part_of = {document.digest: part for part, chosen in parts.items() for document in chosen}

    def again() -> Iterator[Document]:
        for content, _ in source.read().documents:
            if not alone:
                yield Document(content, part_of.get(hashlib.sha256(content).digest(), "train"))
            elif content:
                yield from (Document(content[a:b], part) for part, (a, b) in _bounds(source, content).items())

    return Reading(again(), origin)


def hold_out(sizes: Sequence[int]) -> list[int]:
    """Indices, ascending, of the documents to hold out, given the sizes in bytes of at least two documents.

    Documents are taken in order until they hold three tenths of all bytes. A document that would raise the share above
    a third is passed over, and so is one that is more than twice as large as the average: intervals need many
    documents, and a large one would take the place of several.

    >>> hold_out([500, 60, 300, 60, 80])
    [1, 3, 4]
    >>> hold_out([500, 400])
    [1]
    """
    total, taken, held = sum(sizes), 0, list[int]()
    for n, size in enumerate(sizes):
        if 10 * taken >= 3 * total:
            break
        if 3 * (taken + size) <= total and len(sizes) * size <= 2 * total:
            held.append(n)
            taken += size
    return held or [sizes.index(min(sizes))]  # if every document is more than a third: the smallest


def cut_points(content: bytes, whole: bool = False) -> tuple[int, int]:
    r"""The offsets at which a corpus of a single document is cut into its parts for training, scoring and tuning.

    They lie at two thirds and at eleven twelfths of the bytes, with `whole` at 0 and at three quarters, each moved back
    to the start of a line if there is one in the 5 % before, else to the start of a UTF-8 character.

    >>> cut_points(b"one line\n" * 101), cut_points(b"x" * 1200), cut_points(b"x" + "é".encode() * 50)
    ((603, 828), (800, 1100), (67, 91))
    """
    goals = (0, len(content) * 3 // 4) if whole else (len(content) * 2 // 3, len(content) * 11 // 12)
    return _boundary(content, goals[0]), _boundary(content, goals[1])


def _boundary(content: bytes, goal: int) -> int:
    """The start of a line shortly before an offset, else of the UTF-8 character there."""
    line = content.rfind(b"\n", goal - len(content) // 20, goal)
    if line >= 0:
        return line + 1
    while goal > 0 and content[goal] & 0xC0 == 0x80:  # 10xxxxxx continues a character
        goal -= 1
    return goal


def fingerprint(parts: Parts, tokenizer: str) -> str:
    """16 hex digits that identify the documents, their split and, by its fingerprint, the tokenizer."""
    digest = hashlib.sha256(RULE.encode())
    for name, documents in parts.items():
        digest.update(f"\n{name} {len(documents)}\n".encode())
        digest.update(b"".join(document.digest for document in documents))
    if tokenizer:
        digest.update(f"\ntokenizer {tokenizer}\n".encode())
    return digest.hexdigest()[:16]


def build_arrays(source: Source, documents: Iterable[Document], tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Write {train,valid,tune}.{tokens,starts}.npy into an empty folder, and TRAINED if the tokenizer is to be trained.

    Returns what cannot be read off the arrays: the fingerprint of the corpus, and the bytes of all documents by split.
    Empty documents are dropped. Raises DataError if nothing would be left to train on, unless the source is `whole`, or
    to score, and OSError if the disk fails.
    """
    spec = source.spec
    needed: tuple[Part, ...] = ("valid",) if source.whole else ("train", "valid")
    path = folder / "documents.bin"
    with path.open("w+b") as spool:
        stored = _store(documents, spool)
        if not stored:
            raise DataError(f"{spec} holds no text; check what it names")
        alone = len(stored) == 1 and stored[0].part is None
        parts = _cut(source, stored[0], spool) if alone else split_documents(stored, source.whole)
        for name in needed:
            if not parts[name]:
                cure = "name splits that do as @TRAIN[,VALID]" if "hf" in spec.split(":") else "add text to it"
                raise DataError(f"{spec} holds no text for the {name} split; {cure}")
        if isinstance(tokenizer, TrainedTokenizer) and not tokenizer.content:
            if not parts["train"]:
                raise DataError(
                    f"{spec} holds no text to train the tokenizer {tokenizer.name} on; give another --tokenizer"
                )
            size = sum(document.size for document in parts["train"])
            note(f"training the tokenizer {tokenizer.name} on {size} bytes")
            tokenizer = tokenizer.trained(tokenizer.train(_read(document, spool) for document in parts["train"]))
        if isinstance(tokenizer, TrainedTokenizer):
            (folder / TRAINED).write_bytes(tokenizer.content)
        for name, part in parts.items():
            lengths = _write_tokens(folder / f"{name}.tokens.npy", part, spool, tokenizer)
            np.save(folder / f"{name}.starts.npy", np.cumsum([0, *lengths], dtype=np.int64))
    path.unlink()
    sizes = {str(name): sum(document.size for document in part) for name, part in parts.items()}
    return {"fingerprint": fingerprint(parts, tokenizer.fingerprint), "bytes": sizes}


def _store(documents: Iterable[Document], spool: BinaryIO) -> list[StoredDocument]:
    """Append every distinct document to the spool file. Of copies, one is kept: the held-out one, if there is one.

    Of copies to be scored and for tuning, the one that is scored is kept.
    """
    stored: dict[bytes, StoredDocument] = {}
    copies = copied_bytes = 0
    for content, part in documents:
        digest = hashlib.sha256(content).digest()
        known = stored.get(digest)
        if known:
            copies += 1
            copied_bytes += known.size
            stored[digest] = StoredDocument(digest, known.offset, known.size, _held_out_first(part, known.part))
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


def _held_out_first(part: Part | None, other: Part | None) -> Part | None:
    """The split of a document of which two copies have these ones."""
    return next((held for held in ("valid", "tune") if held in (part, other)), other)


def _bounds(source: Source, content: bytes) -> dict[Part, tuple[int, int]]:
    """Where the parts of a corpus that is a single document begin and end, in bytes."""
    spec, size = source.spec, len(content)
    first, second = cut_points(content, source.whole)
    if first >= second or (first == 0 and not source.whole):
        raise DataError(f"{spec} holds {size} bytes in all, too few to hold any out; add text to it")
    trained = f"its first {first} bytes are for training, the next" if first else "its first"
    note(
        f"{spec} is one document: {trained} {second - first} are held out, and its last {size - second} are for tuning"
    )
    return dict(zip(PARTS, ((0, first), (first, second), (second, size)), strict=True))


def _cut(source: Source, document: StoredDocument, spool: BinaryIO) -> Parts:
    """The parts of a corpus that is a single document."""
    content = _read(document, spool)
    return {
        part: [StoredDocument(hashlib.sha256(content[a:b]).digest(), document.offset + a, b - a)] if a < b else []
        for part, (a, b) in _bounds(source, content).items()
    }


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
