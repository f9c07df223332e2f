"""Files that may be compressed: `.gz` and `.zst` are decompressed piece by piece, and only up to a limit."""

from __future__ import annotations

import gzip
import importlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from poscli.system.errors import DataError
from poscli.system.text import printable

SUFFIXES = (".gz", ".zst")
LARGEST_DOCUMENT_BYTES = 2**30  # of a compressed file or of one line: documents are held in memory one at a time
ZSTD_READ_BYTES = 1024  # zstd expands by at most 32768, so that one read gives at most 32 MiB


@contextmanager
def open_stream(path: Path) -> Iterator[BinaryIO]:
    """The content of a file, decompressed if its name ends in .gz or .zst.

    Raises DataError if the compressed data is truncated or damaged, or if a package is missing, and OSError if the file
    cannot be read.
    """
    with path.open("rb") as file:
        if path.suffix not in SUFFIXES:
            yield file
            return
        zstandard = _zstandard(path) if path.suffix == ".zst" else None
        damage = (gzip.BadGzipFile, zlib.error, EOFError, *([zstandard.ZstdError] if zstandard else []))
        try:
            yield io.BufferedReader(_Zstd(file, zstandard)) if zstandard else gzip.GzipFile(fileobj=file)  # type: ignore[misc]
        except damage as error:
            raise DataError(
                f"{printable(path)} is truncated or damaged ({error}); fetch it again, or leave it out of the corpus"
            ) from error


def too_large(where: str) -> DataError:
    """The error for a document that expands beyond the limit."""
    return DataError(
        f"{where} holds more than {LARGEST_DOCUMENT_BYTES / 2**30:g} GiB in one document; split it into documents"
    )


def _zstandard(path: Path) -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise DataError(
            f"{printable(path)} needs the package zstandard, which is not installed: pip install 'poscli[zst]'"
        ) from error


class _Zstd(io.RawIOBase):
    """The decompressed content of a file of zstd frames. zstandard's own reader takes a truncated frame for whole."""

    def __init__(self, file: BinaryIO, zstandard: Any) -> None:
        self.file, self.start = file, zstandard.ZstdDecompressor().decompressobj
        self.frame = self.start()
        self.begun = False  # whether the frame has got any input
        self.waiting = b""  # input that belongs to the next frame
        self.ready = memoryview(b"")  # output that has not been read; slices of it copy nothing

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready:
            content = self.waiting or self.file.read(ZSTD_READ_BYTES)
            if not content:
                if self.begun and not self.frame.eof:
                    raise EOFError("the last frame has no end")
                return 0
            if self.frame.eof:
                self.frame = self.start()
            self.begun = True
            self.ready = memoryview(self.frame.decompress(content))
            self.waiting = self.frame.unused_data
        count = min(len(buffer), len(self.ready))
        buffer[:count], self.ready = self.ready[:count], self.ready[count:]
        return count
