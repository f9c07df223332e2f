"""Corpora whose sources or cached files have been damaged at random.

`mutate_and_load(seed)` builds a small corpus, damages one of its files and loads the corpus again. A damaged cache must
give the arrays of the first build. Damaged sources must give what they now hold, or an error of poscli; once they are
repaired, the arrays of the first build. Nothing else may be raised, and nothing may take long.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow
import zstandard
from pyarrow import parquet

from poscli.data import Corpus, load_corpus
from poscli.system.errors import PoscliError

from .harms import HARMS, flip

MOST_SECONDS = 10.0
KINDS = ("text", "gz", "zst", "jsonl", "parquet")


class Outcome(NamedTuple):
    """What one damage led to."""

    what: str  # such as "cache index.json: flip"
    result: str  # "same", "other" (of damaged sources) or "refused"
    fault: str  # what is wrong with poscli; "" if nothing is
    seconds: float  # of the loads after the damage


def mutation(folder: Path, seed: int) -> list[str]:
    """A trial of the torture suite: the faults that one damage finds. The corpus lies in a folder of its own."""
    outcome = mutate_and_load(seed)
    return [f"{outcome.what}: {outcome.fault}"] if outcome.fault else []


def mutate_and_load(seed: int) -> Outcome:
    """Damage one corpus as the seed says, and load it."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = _write_sources(draw.choice(KINDS), folder / "in", draw)
        first = _content(load_corpus(spec, cache=folder / "cache"))
        where = draw.choice(["cache", "cache", "source"])
        if where == "source":
            shutil.copytree(folder / "in", folder / "sound")  # keeps the times of change
        files = sorted(path for path in (folder / ("cache" if where == "cache" else "in")).rglob("*") if path.is_file())
        files = [path for path in files if path.suffix != ".lock"]
        path, harm = draw.choice(files), draw.choice(OF_A_CORPUS)
        harm(draw, path)
        begin = time.monotonic()
        result, fault = _attempt(spec, folder / "cache", first, changed=where == "source")
        if where == "source":
            (folder / "in").rename(folder / "damaged")
            (folder / "sound").rename(folder / "in")
            again, after = _attempt(spec, folder / "cache", first, changed=False)
            fault = fault or after or ("" if again == "same" else f"the repaired sources are {again}")
        elif not fault and result != "same":
            fault = f"a damaged cache is {result}"
        seconds = time.monotonic() - begin
    if seconds > MOST_SECONDS:
        fault = fault or f"took {seconds:.0f} s"
    return Outcome(f"{spec.partition(':')[0]} {where} {path.name}: {harm.__name__}", result, fault, seconds)


def _attempt(spec: str, cache: Path, first: object, changed: bool) -> tuple[str, str]:
    """The result and the fault of one load. `changed`: whether the sources may hold something else by now."""
    try:
        corpus = load_corpus(spec, cache=cache)
        found = _content(corpus)
    except PoscliError as error:
        return "refused", "" if "\n" not in str(error) and error.exit_code == 4 else f"a bad error: {error!r}"
    except Exception as error:  # noqa: BLE001 - any other exception is what this looks for
        return "refused", f"{type(error).__name__}: {error}"
    if found == first:
        return "same", ""
    if changed and spec.startswith("text:") and not _holds_the_files(corpus, Path(spec.removeprefix("text:"))):
        return "other", "other text than that of the files"
    return "other", "" if changed else "other tokens than those of the sources"


def _holds_the_files(corpus: Corpus, path: Path) -> bool:
    """Whether the documents of a corpus of bytes are the files below a path, without copies."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    readers = {".gz": gzip.decompress, ".zst": lambda content: zstandard.ZstdDecompressor().decompress(content)}
    wanted = {readers.get(file.suffix, bytes)(file.read_bytes()) for file in files}
    splits = (corpus.train, corpus.valid, corpus.tune)
    parts = [bytes(split.tokens.astype("u2")[split.tokens < 256].astype("u1")) for split in splits]
    if len(wanted) == 1:  # one document is cut in three
        return b"".join(parts) in wanted
    return sum(map(len, wanted)) == sum(map(len, parts)) and all(any(text in part for part in parts) for text in wanted)


def _content(corpus: Corpus) -> object:
    """All that a load returns, to be compared."""
    splits = (corpus.train, corpus.valid, corpus.tune)
    return [*((split.tokens.tobytes(), split.starts.tobytes()) for split in splits), corpus.describe()]


def _write_sources(kind: str, folder: Path, draw: random.Random) -> str:
    """Write a few files of random prose; return the spec that names them."""
    folder.mkdir()
    texts = ["".join(draw.choices("etaoin shrdlu\n", k=draw.randint(50, 400))) for _ in range(12)]
    if kind == "parquet":
        for n in range(2):
            parquet.write_table(pyarrow.table({"text": texts[6 * n : 6 * n + 6]}), folder / f"{n}.parquet")
        return f"parquet:{folder}"
    if kind == "jsonl":
        for n, suffix in enumerate(["", ".gz", ".zst"]):
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[4 * n : 4 * n + 4])
            _write(folder / f"{n}.jsonl{suffix}", lines.encode())
        return f"jsonl:{folder}"
    suffix = "" if kind == "text" else f".{kind}"
    for n, text in enumerate(texts):
        _write(folder / f"{n}.txt{suffix}", text.encode())
    return f"text:{folder}"


def _write(path: Path, content: bytes) -> None:
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".zst":
        content = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    path.write_bytes(content)


def quiet_flip(draw: random.Random, path: Path) -> None:
    """Change bits, and keep the time of change."""
    times = path.stat()
    flip(draw, path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def append(draw: random.Random, path: Path) -> None:
    """Add bytes at the end."""
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randint(1, 100)))


def exchange(draw: random.Random, path: Path) -> None:
    """Exchange the contents of two files of a folder."""
    other = draw.choice(sorted(each for each in path.parent.iterdir() if each.is_file() and each.suffix != ".lock"))
    mine, yours = path.read_bytes(), other.read_bytes()
    path.write_bytes(yours)
    other.write_bytes(mine)


def no_folder(draw: random.Random, path: Path) -> None:
    """Put a file in place of the folder."""
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"a file\n")


OF_A_CORPUS = (*HARMS, quiet_flip, append, exchange, no_folder)
