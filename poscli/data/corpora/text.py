"""`text:PATH`: a file, a folder or a glob pattern of UTF-8 text files; each file is one document."""

from __future__ import annotations

from pathlib import Path

from poscli.data.corpora import CORPORA, Kind
from poscli.data.filesets import check_text, find_files, read_file, stamps
from poscli.data.source import Document, Reading, Source
from poscli.system.errors import DataError
from poscli.system.text import printable


def source(argument: str) -> Source:
    """The corpus `text:PATH`."""
    path, files = find_files("text", argument)

    def read() -> Reading:
        return Reading((Document(_text(file)) for file in files), {})

    return Source(f"text:{path}", stamps(files), read, made_of=frozenset(map(str, files)))


def _text(path: Path) -> bytes:
    """The bytes of a text file. A file that is not UTF-8 text is an error: nothing is converted or skipped."""
    content, name = read_file(path), printable(path)
    if not content:
        raise DataError(
            f"{name} is empty; delete it, or name the files to read with a pattern like 'text:FOLDER/*.txt'"
        )
    return check_text(content, name, "text")


CORPORA.add(
    "text",
    Kind("text:PATH", "UTF-8 text, also .gz or .zst: a file, a folder or a pattern; one document per file", source),
)
