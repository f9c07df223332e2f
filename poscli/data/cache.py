"""Built corpora on disk: one folder per corpus and state of its sources, written once, safe to delete at any time.

    CACHE/<name>-<key>/   {train,valid}.{tokens,starts}.npy   index.json

The key hashes the canonical spec and the sources' state (paths, sizes and times of files), so that an edit builds
anew and a hit reads no source and no network. CACHE is the caller's, $POSCLI_CACHE, or the user's cache folder.
Every load checks each file's size and, up to 1 GB, its SHA-256; of larger ones the size only (hashing 20 GB
would take longer than starting the run).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from poscli.console import note
from poscli.data.build import build
from poscli.data.corpus import VOCAB, Corpus, Split
from poscli.data.division import RULE
from poscli.data.source import Source
from poscli.errors import DataError
from poscli.files import sha256

INDEX = "index.json"
HASHED = 10**9  # bytes


def fetch(source: Source, cache: Path | None) -> Corpus:
    """The corpus from the cache, built first if it is not there, has been edited since, or is damaged."""
    folder = _root(cache) / _name(source)
    if _fault(folder):
        try:
            with _locked(folder):
                _rebuild(source, folder)
        except OSError as error:
            raise DataError(
                f"cannot write the corpus cache {folder}: {error.strerror or error}; free space there or set "
                "POSCLI_CACHE to a folder that can be written"
            ) from error
    return _open(folder)


def _root(cache: Path | None) -> Path:
    if cache is not None:
        return Path(cache)
    if named := os.environ.get("POSCLI_CACHE"):
        return Path(named).expanduser()
    variable, usual = ("LOCALAPPDATA", "~/AppData/Local") if sys.platform == "win32" else ("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get(variable) or usual).expanduser() / "poscli"


def _name(source: Source) -> str:
    kind, _, argument = source.spec.partition(":")
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", f"{kind}-{argument[-40:]}").strip("-.")
    key = hashlib.sha256(json.dumps([RULE, source.spec, source.state]).encode()).hexdigest()[:16]
    return f"{readable}-{key}"


def _fault(folder: Path) -> str:
    """Why the folder cannot be used; '' if it can."""
    try:
        files = json.loads((folder / INDEX).read_text())["files"]
        for name, (size, digest) in files.items():
            path = folder / name
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, not {size}"
            if size <= HASHED and sha256(path) != digest:
                return f"{name} is not what was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process builds a corpus; the others wait for it, and say so."""
    folder.parent.mkdir(parents=True, exist_ok=True)
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


def _rebuild(source: Source, folder: Path) -> None:
    """Build beside the final folder, then rename: it is whole or not there. Needs the lock."""
    fault = _fault(folder)
    if not fault:
        return  # another process built it while this one waited
    if folder.exists():
        note(f"the cached corpus {folder} is damaged ({fault}): building it again")
    note(f"preparing the corpus {source.spec}, once; it is kept in {folder}")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
    partial.mkdir()
    try:
        documents, origin = source.read()
        mark = build(source.spec, documents, partial)
        files = {path.name: (path.stat().st_size, sha256(path)) for path in sorted(partial.iterdir())}
        index = {"spec": source.spec, "fingerprint": mark, "origin": dict(origin), "files": files}
        (partial / INDEX).write_text(json.dumps(index, indent=2))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _open(folder: Path) -> Corpus:
    index = json.loads((folder / INDEX).read_text())
    train, valid = (_split(folder, name) for name in ("train", "valid"))
    return Corpus(index["spec"], index["fingerprint"], VOCAB, train, valid, index["origin"])


def _split(folder: Path, name: str) -> Split:
    return Split(np.load(folder / f"{name}.tokens.npy", mmap_mode="r"), np.load(folder / f"{name}.starts.npy"))
