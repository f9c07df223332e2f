"""The weight files of a checkpoint: which ones there are, whether they are whole, and a digest of their content.

A safetensors file begins with the length of its header (8 bytes), then the header: the name, type, shape and place of
every tensor, as JSON. The tensors follow, and end where the file does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from poscli.system.errors import CorruptError, DataError
from poscli.system.files import read_object
from poscli.system.text import printable

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # one file, or the list of several
FETCH = "delete it and fetch it again"  # the hub's client keeps a file that arrived damaged
LARGEST_HEADER_BYTES = 100_000_000  # the format's own limit
SAMPLE_BYTES = 1024  # read of every tensor for the digest


def weight_files(folder: Path, files: Collection[str]) -> tuple[str, ...]:
    """The names of the weight files that transformers would read; CorruptError if the list of them is damaged.

    `files` are the names of all files of the checkpoint. Other weights in it, such as a second copy in another format,
    are not read.
    """
    if WHOLE in files:
        return (WHOLE,)
    names = read_object(folder / INDEX, FETCH).get("weight_map")
    if not isinstance(names, dict) or not names or not all(_is_plain(name) for name in names.values()):
        raise CorruptError(f"{printable(folder / INDEX)} lists no weight files of its own folder; {FETCH}")
    found = tuple(sorted(set(names.values())))
    missing = [name for name in found if name not in files]
    if missing:
        raise DataError(
            f"{printable(folder)} lacks {len(missing)} of its {len(found)} weight files, such as {missing[0]}; "
            "fetch what is missing"
        )
    return found


def add_to(digest: Any, path: Path) -> None:
    """Hash the size and the header of a weight file, and 1 KiB from the middle of each of its tensors.

    So the digests of two checkpoints of one architecture differ, and 15 GB are told apart by reading some hundred
    kilobytes. CorruptError if the file is truncated or is no safetensors file.
    """
    try:
        with path.open("rb") as file:
            start, header, tensors = _header(file, path)
            digest.update(json.dumps([path.name, path.stat().st_size]).encode())
            digest.update(header)
            for begin, end in sorted(tensors):
                file.seek(start + max(begin, (begin + end - SAMPLE_BYTES) // 2))
                digest.update(file.read(min(SAMPLE_BYTES, end - begin)))
    except OSError as error:
        raise DataError(f"{printable(path)} cannot be read ({error.strerror or error}); check it") from error


def _header(file: BinaryIO, path: Path) -> tuple[int, bytes, list[tuple[int, int]]]:
    """Where the tensors begin, the header, and the first and last byte of each tensor, counted from that place."""
    length = int.from_bytes(file.read(8), "little")
    size = path.stat().st_size
    if size < 8 or length > min(size - 8, LARGEST_HEADER_BYTES):
        raise CorruptError(f"{printable(path)} is truncated or no safetensors file; {FETCH}")
    header = file.read(length)
    try:
        entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        tensors = [_place(entry) for entry in entries.values()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{printable(path)} has a damaged header; {FETCH}") from error
    expected = 8 + length + max((end for _, end in tensors), default=0)
    if size != expected:
        raise CorruptError(f"{printable(path)} has {size} bytes, and its header describes {expected}; {FETCH}")
    return 8 + length, header, tensors


def _place(entry: Any) -> tuple[int, int]:
    """The first and last byte of a tensor; ValueError, KeyError or TypeError if its entry in the header is damaged."""
    begin, end = entry["data_offsets"]
    if not 0 <= int(begin) <= int(end):
        raise ValueError
    return int(begin), int(end)


def _is_plain(name: object) -> bool:
    """Whether this is the name of a file in the folder itself, which no list of weights may leave."""
    return isinstance(name, str) and name != "" and Path(name).name == name


def digest_of(folder: Path, texts: Collection[str], weights: Collection[str]) -> str:
    """A SHA-256, 64 hex digits, of a checkpoint: the whole content of `texts`, and of `weights` what `add_to` reads."""
    digest = hashlib.sha256()
    for name in sorted(texts):
        content = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        digest.update(json.dumps([name, content]).encode())
    for name in weights:
        add_to(digest, folder / name)
    return digest.hexdigest()
