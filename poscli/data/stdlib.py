"""`stdlib`: the running interpreter's own library source. About 150 documents and 7 MB on every machine."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from poscli.data.filesets import read, state
from poscli.data.source import Document, Reading, Source
from poscli.errors import DataError

SMALLEST = 16 * 1024  # bytes: shorter modules hold no long-range structure
LEFT_OUT = {  # folders
    *("test", "tests", "idle_test"),
    *("idlelib", "lib2to3", "turtledemo", "ensurepip"),  # programs, and vendored wheels
    *("site-packages", "dist-packages"),  # differ from machine to machine
    *("encodings", "pydoc_data", "msilib"),  # generated tables
}
GENERATED = ("_sysconfigdata", "html/entities.py", "locale.py", "stringprep.py", "_opcode_metadata.py")


def source(_: str = "") -> Source:
    """The corpus `stdlib`; its state is the interpreter and its modules' sizes and times."""
    files = modules(_library())
    if not files:
        raise DataError(available())
    version = platform.python_version()
    return Source("stdlib", [version, state(files)], lambda: Reading(_documents(files), {"python": version}))


def available() -> str:
    """'' if this interpreter keeps its library as source files, else why not and what to do."""
    library = _library()
    if modules(library):
        return ""
    return (
        f"this Python keeps no library source in {library} (an embedded or zipped build): "
        "name a corpus, such as text:FOLDER, or use a full Python"
    )


def modules(library: Path) -> list[Path]:
    """The modules that are text a person wrote, large enough to matter."""
    found = []
    for folder, folders, names in os.walk(library):
        folders[:] = sorted(set(folders) - LEFT_OUT)  # os.walk does not enter what is not in this list
        paths = [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
        found += [path for path in paths if not path.relative_to(library).as_posix().startswith(GENERATED)]
    return [path for path in found if path.stat().st_size >= SMALLEST]


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _documents(files: list[Path]) -> Iterator[Document]:
    return (Document(read(path)) for path in files)
