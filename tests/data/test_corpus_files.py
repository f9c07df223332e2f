"""Files as sources: compressed and damaged ones, and odd names. Sound ones are in test_snapshots_data.py."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hub_stub import parquet
from pyarrow import RecordBatch
from pyarrow.parquet import ParquetFile

from poscli.data import filesets, load_corpus, source_of
from poscli.data.corpora import stdlib
from poscli.system.errors import DataError

TEXTS = [f"document {n} ".ljust(400 + n, ".") + "\n" for n in range(10)]
ROWS = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)


def zst(content: bytes) -> bytes:
    """Two frames, as `cat a.zst b.zst` gives."""
    half = len(content) // 2
    made = zstandard.ZstdCompressor(write_checksum=True)
    return made.compress(content[:half]) + made.compress(content[half:])


BOMBS = {  # 100 MB and 640 MB
    ".gz": gzip.compress(bytes(10**6).replace(b"\0", b"a"), 1) * 100,
    ".zst": zstandard.ZstdCompressor().compress(b"a" * 64 * 10**6) * 10,
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zst}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the sources."""
    made = tmp_path / "in"
    made.mkdir()
    return made


def test_a_source_of_rows_can_be_read_again(folder: Path) -> None:
    (folder / "rows.jsonl").write_text(ROWS)
    (folder / "rows.parquet").write_bytes(parquet(TEXTS))
    for kind in ("jsonl", "parquet"):
        source = source_of(f"{kind}:{folder}")
        for _ in range(2):
            assert [document.content.decode() for document in source.read().documents] == TEXTS


def refusal(spec: str, cache: Path) -> str:
    """The message with which a corpus is refused."""
    with pytest.raises(DataError) as caught:
        load_corpus(spec, cache=cache)
    message = str(caught.value)
    assert "\n" not in message
    assert not [path for path in cache.glob("*") if path.is_dir()]
    return message


# --- compressed files


@pytest.mark.parametrize("damage", ["halved", "flipped"])
@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_a_damaged_archive_is_named(kind: str, suffix: str, damage: str, folder: Path, cache: Path) -> None:
    content = COMPRESS[suffix](ROWS.encode())
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
    path = folder / f"rows.jsonl{suffix}"
    path.write_bytes(flipped if damage == "flipped" else content[:middle])
    message = refusal(f"{kind}:{path}", cache)
    assert f"rows.jsonl{suffix}" in message
    assert kind == "jsonl" or f"rows.jsonl{suffix} is truncated or damaged" in message or "cannot read" in message


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_a_decompression_bomb_stops_at_the_limit(
    kind: str, suffix: str, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesets, "LARGEST_DOCUMENT_BYTES", 10**6)
    path = folder / f"bomb{suffix}"
    path.write_bytes(BOMBS[suffix])
    tracemalloc.start()
    message = refusal(f"{kind}:{path}", cache)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "GiB in one document" in message
    assert "bomb" in message
    assert peak < 80e6


def test_zstd_frames_are_read_across_the_ends_of_reads(folder: Path, cache: Path) -> None:
    """A frame may end anywhere in a piece that is read; empty frames and empty files hold nothing."""
    made = zstandard.ZstdCompressor()
    content = np.random.default_rng(0).integers(97, 123, 20_000, dtype=np.uint8).tobytes()
    pieces = [content[n : n + 700] for n in range(0, len(content), 700)]
    path = folder / "a.txt.zst"
    path.write_bytes(b"".join(made.compress(piece) for piece in [b"", *pieces]))
    with filesets.open_stream(path) as stream:
        assert stream.read() == content
    path.write_bytes(b"")
    assert "is empty" in refusal(f"text:{path}", cache)


# --- contents


def test_few_rows_of_a_parquet_file_are_in_memory_at_once(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()
    whole = ParquetFile.iter_batches

    def noted(self: ParquetFile, *sizes: int, **options: object) -> Iterator[RecordBatch]:
        for rows in whole(self, *sizes, **options):
            read.append(rows.num_rows)
            yield rows

    monkeypatch.setattr(ParquetFile, "iter_batches", noted)
    (folder / "a.parquet").write_bytes(parquet(20 * TEXTS))
    load_corpus(f"parquet:{folder}", cache=cache)
    assert sum(read) >= 200
    assert max(read) <= 64


def test_a_damaged_page_of_a_parquet_file_is_an_error_that_names_it(folder: Path, cache: Path) -> None:
    content = parquet(TEXTS)
    refused = 0
    for at in range(4, len(content) - 8, max(1, len(content) // 60)):
        (folder / "a.parquet").write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
        try:
            load_corpus(f"parquet:{folder}", cache=cache)
        except DataError as error:
            assert "a.parquet" in str(error)  # noqa: PT017 - some damage goes unnoticed: parquet has no checksum
            refused += 1
    assert refused > 10


# --- names


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_files_with_odd_names_are_read_and_named_in_one_line(folder: Path, cache: Path) -> None:
    for n, name in enumerate([b"caf\xe9.txt", b"a\nb.txt", b"c\rd.txt"]):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text(TEXTS[n])
    corpus = load_corpus(f"text:{folder}", cache=cache)
    assert corpus.train.documents + corpus.valid.documents + corpus.tune.documents == 3
    (folder / "e\nf.txt").write_bytes(b"\0")
    with pytest.raises(DataError, match=r"e\\nf\.txt is binary"):
        load_corpus(f"text:{folder}", cache=cache)


@pytest.mark.skipif(os.name == "nt", reason="no links")
def test_links_that_form_loops_are_passed_over_in_folders(folder: Path, cache: Path) -> None:
    (folder / "a.txt").write_text(TEXTS[0])
    (folder / "b.txt").write_text(TEXTS[1])
    (folder / "up").symlink_to(folder)
    (folder / "self").symlink_to("self")
    assert load_corpus(f"text:{folder}", cache=cache).train.documents == 1


@pytest.mark.skipif(os.name == "nt", reason="no links")
def test_a_link_to_nowhere_is_passed_over_in_the_library(folder: Path) -> None:
    (folder / "gone.py").symlink_to("/nonexistent")
    assert "keeps no library source" in stdlib.available(folder)
    (folder / "module.py").write_text("x = 1\n" * 2000)
    assert [document.content[:5] for document in stdlib.source(library=folder).read().documents] == [b"x = 1"]


def test_brackets_in_the_name_of_a_folder_are_no_pattern(folder: Path) -> None:
    (folder / "[2024]").mkdir()
    (folder / "[2024]" / "a.txt").write_text(TEXTS[0])
    (folder / "b.txt").write_text(TEXTS[1])
    for pattern, text in (("[2024]/*.txt", TEXTS[0]), ("[abc].txt", TEXTS[1])):
        (document,) = source_of(f"text:{folder}/{pattern}").read().documents
        assert document.content.decode() == text


def test_a_folder_that_cannot_be_listed_is_an_error(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.txt").write_text(TEXTS[0])
    (folder / "closed").mkdir()
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert "Permission denied" in refusal(f"text:{folder}", cache)
