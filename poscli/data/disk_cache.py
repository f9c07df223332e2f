"""Built corpora on disk: one folder per corpus, tokenizer and state of the sources. Safe to delete at any time.

    CACHE/<name>-<key>/   {train,valid,tune}.{tokens,starts}.npy   index.json   tokenizer.json

CACHE is the folder that the caller gives, $POSCLI_CACHE, or the user's cache folder. The key hashes the split rule, the
canonical spec, the source's stamp (paths, sizes and times of files) and the tokenizer's fingerprint. An edited file
therefore changes the key, and a corpus that is found needs neither its sources nor a network. A tokenizer that is
trained on the corpus is in the same folder, in tokenizer.json; other tokenizers have no such file.

index.json holds the size and SHA-256 of every other file, and ends in a SHA-256 of its own content. A folder in which
anything differs from what was written is built again. Folders appear under their final name only after all their files
have reached the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from poscli.data.build import RULE, build_arrays
from poscli.data.corpus import Corpus, Split
from poscli.data.source import PARTS, Source
from poscli.data.tokenizers import TRAINED, Tokenizer, TrainedTokenizer
from poscli.system.console import note
from poscli.system.errors import DataError
from poscli.system.files import cache_folder, make_in_cache, sha256, sync, sync_folder

INDEX = "index.json"
ARRAYS = tuple(f"{split}.{array}.npy" for split in PARTS for array in ("tokens", "starts"))
LARGEST_HASHED_BYTES = 10**9  # of larger files only the size is checked: hashing 20 GB takes longer than starting a run


class Damaged(Exception):
    """Why a folder of the cache cannot be used."""


def load_or_build(source: Source, tokenizer: Tokenizer, cache: Path | None) -> Corpus:
    """Load a corpus from the cache; build it first if it is absent, damaged, or its sources have changed."""
    folder = (cache_folder() if cache is None else Path(cache)) / _folder_name(source, tokenizer)
    try:
        return _load(tokenizer, folder)
    except Damaged:
        pass
    try:
        with _locked(folder):
            try:
                return _load(tokenizer, folder)  # another process may have built it while this one waited
            except Damaged as damage:
                if os.path.lexists(folder):
                    note(f"the cached corpus {folder} is damaged ({damage}): building it again")
            note(f"preparing the corpus {source.spec}, once; it is kept in {folder}")
            _build(source, tokenizer, folder)
            return _load(tokenizer, folder)
    except (OSError, NotImplementedError, Damaged) as error:  # NotImplementedError: no locks on this file system
        raise DataError(
            f"cannot write the corpus cache {folder}: {getattr(error, 'strerror', None) or error}; free space there or "
            "set POSCLI_CACHE to a folder that can be written"
        ) from error


def _folder_name(source: Source, tokenizer: Tokenizer) -> str:
    kind, _, argument = source.spec.partition(":")
    label = re.sub(r"[^A-Za-z0-9.]+", "-", f"{kind}-{argument[-40:]}").strip("-.")
    state = [RULE, source.spec, source.stamp, *([tokenizer.fingerprint] if tokenizer.fingerprint else [])]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]
    return f"{label}-{key}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let only one process build a corpus; the others say that they wait, and wait."""
    make_in_cache(folder.parent)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        note(f"waiting for another process that is preparing {folder.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(source: Source, tokenizer: Tokenizer, folder: Path) -> None:
    """Build beside the final folder, then rename, so that the folder is never half-written. The lock must be held."""
    partial = folder.with_name(f".{folder.name}.partial")
    _remove(partial)  # what a killed process left
    partial.mkdir()
    try:
        documents, origin = source.read()
        built = build_arrays(source, documents, tokenizer, partial)
        names = [*ARRAYS, *([TRAINED] if isinstance(tokenizer, TrainedTokenizer) else [])]
        files = {name: (_synced(partial / name).st_size, sha256(partial / name)) for name in names}
        index = {"key": folder.name, "spec": source.spec, **built, "origin": dict(origin), "files": files}
        text = json.dumps({**index, "checksum": _checksum(index)}, indent=2)
        (partial / INDEX).write_text(text, encoding="utf-8")
        _synced(partial / INDEX)
        sync_folder(partial)
        _remove(folder)
        partial.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _synced(path: Path) -> os.stat_result:
    """Wait until a file has reached the disk."""
    with path.open("r+b") as file:
        sync(file.fileno())
        return os.fstat(file.fileno())


def _remove(path: Path) -> None:
    """Delete whatever has this name; a symbolic link is deleted, not what it points at."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _checksum(index: dict[str, Any]) -> str:
    """The SHA-256 of an index without its checksum, however it is indented."""
    content = {name: value for name, value in index.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _load(tokenizer: Tokenizer, folder: Path) -> Corpus:
    """Map the arrays of a folder; Damaged if the folder is absent or anything in it is not as it was written."""
    try:
        index = json.loads(_regular(folder / INDEX).read_bytes())
        if "checksum" not in index:
            raise Damaged("it has no checksum: an older version wrote it")
        if index["checksum"] != _checksum(index):
            raise Damaged(f"the contents of {INDEX} have changed since it was written")
        if index["key"] != folder.name:
            raise Damaged(f"{INDEX} belongs to {index['key']}")
        for name, (size, digest) in index["files"].items():
            path = _regular(folder / name)
            if path.stat().st_size != size:
                raise Damaged(f"{name} has {path.stat().st_size} bytes, not {size}")
            if size <= LARGEST_HASHED_BYTES and sha256(path) != digest:
                raise Damaged(f"the contents of {name} have changed since it was written")
        if isinstance(tokenizer, TrainedTokenizer):
            tokenizer = tokenizer.trained((folder / TRAINED).read_bytes())
        train, valid, tune = (
            Split(
                np.load(folder / f"{name}.tokens.npy", mmap_mode="r"),
                np.load(folder / f"{name}.starts.npy"),
                index["bytes"][name],
            )
            for name in PARTS
        )
        return Corpus(index["spec"], index["fingerprint"], tokenizer, train, valid, tune, index["origin"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, EOFError) as error:
        raise Damaged(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def _regular(path: Path) -> Path:
    if not path.is_file():  # reading a pipe would wait for ever
        raise Damaged(f"{path.name} is missing or not a file")
    return path
