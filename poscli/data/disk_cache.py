"""Built corpora on disk: one folder per corpus, tokenizer and state of the sources. Safe to delete at any time.

    CACHE/<name>-<key>/   {train,valid}.{tokens,starts}.npy   index.json

CACHE is the folder that the caller gives, $POSCLI_CACHE, or the user's cache folder. The key hashes the split rule, the
canonical spec, the source's stamp (paths, sizes and times of files) and the tokenizer's fingerprint. An edited file
therefore changes the key, and a corpus that is found needs neither its sources nor a network.
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

from poscli.data.build import build_arrays
from poscli.data.corpus import Corpus, Split
from poscli.data.source import Source
from poscli.data.splitting import RULE
from poscli.data.tokenizers import Tokenizer
from poscli.system.console import note
from poscli.system.errors import DataError
from poscli.system.files import sha256

INDEX = "index.json"
LARGEST_HASHED_BYTES = 10**9  # of larger files only the size is checked: hashing 20 GB takes longer than starting a run


def load_or_build(source: Source, tokenizer: Tokenizer, cache: Path | None) -> Corpus:
    """Load a corpus from the cache; build it first if it is absent, damaged, or its sources have changed."""
    folder = _root(cache) / _folder_name(source, tokenizer)
    if _damage(folder):
        try:
            with _locked(folder):
                _build(source, tokenizer, folder)
        except OSError as error:
            raise DataError(
                f"cannot write the corpus cache {folder}: {error.strerror or error}; free space there or set "
                "POSCLI_CACHE to a folder that can be written"
            ) from error
    return _load(tokenizer, folder)


def _root(cache: Path | None) -> Path:
    if cache is not None:
        return Path(cache)
    if named := os.environ.get("POSCLI_CACHE"):
        return Path(named).expanduser()
    variable, usual = ("LOCALAPPDATA", "~/AppData/Local") if sys.platform == "win32" else ("XDG_CACHE_HOME", "~/.cache")
    return Path(os.environ.get(variable) or usual).expanduser() / "poscli"


def _folder_name(source: Source, tokenizer: Tokenizer) -> str:
    kind, _, argument = source.spec.partition(":")
    label = re.sub(r"[^A-Za-z0-9.]+", "-", f"{kind}-{argument[-40:]}").strip("-.")
    state = [RULE, source.spec, source.stamp, *([tokenizer.fingerprint] if tokenizer.fingerprint else [])]
    key = hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]
    return f"{label}-{key}"


def _damage(folder: Path) -> str:
    """Why the folder cannot be used; "" if it can."""
    try:
        files = json.loads((folder / INDEX).read_text())["files"]
        for name, (size, digest) in files.items():
            path = folder / name
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, not {size}"
            if size <= LARGEST_HASHED_BYTES and sha256(path) != digest:
                return f"the contents of {name} have changed since it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let only one process build a corpus; the others say that they wait, and wait."""
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


def _build(source: Source, tokenizer: Tokenizer, folder: Path) -> None:
    """Build beside the final folder, then rename, so that the folder is never half-written. The lock must be held."""
    damage = _damage(folder)
    if not damage:
        return  # another process built it while this one waited
    if folder.exists():
        note(f"the cached corpus {folder} is damaged ({damage}): building it again")
    note(f"preparing the corpus {source.spec}, once; it is kept in {folder}")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
    partial.mkdir()
    try:
        documents, origin = source.read()
        built = build_arrays(source.spec, documents, tokenizer, partial)
        files = {path.name: (path.stat().st_size, sha256(path)) for path in sorted(partial.iterdir())}
        index = {"spec": source.spec, **built._asdict(), "origin": dict(origin), "files": files}
        (partial / INDEX).write_text(json.dumps(index, indent=2))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _load(tokenizer: Tokenizer, folder: Path) -> Corpus:
    index = json.loads((folder / INDEX).read_text())
    train, valid = (_split(folder, name, index.get("bytes", {})) for name in ("train", "valid"))
    return Corpus(index["spec"], index["fingerprint"], tokenizer, train, valid, index["origin"])


def _split(folder: Path, name: str, sizes: dict[str, int]) -> Split:
    tokens, starts = np.load(folder / f"{name}.tokens.npy", mmap_mode="r"), np.load(folder / f"{name}.starts.npy")
    # An index without sizes is from before tokenizers existed: every token but the first of a document was a byte.
    return Split(tokens, starts, sizes.get(name, len(tokens) - (len(starts) - 1)))
