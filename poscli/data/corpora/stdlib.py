"""`stdlib`: the source of the running interpreter's own library, about 230 documents and 8 MB."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from poscli.data.corpora import CORPORA, Kind
from poscli.data.filesets import read_file, stamps
from poscli.data.source import Document, Reading, Source
from poscli.system.errors import DataError

# Shorter modules are left out: they hold no window of 16 times the default training length, 512, with its stride.
SMALLEST_MODULE_BYTES = 8704
LEFT_OUT_FOLDERS = {
    *("test", "tests", "idle_test"),
    *("idlelib", "lib2to3", "turtledemo", "ensurepip"),  # programs, and vendored wheels
    *("site-packages", "dist-packages"),  # differ from machine to machine
    *("encodings", "pydoc_data", "msilib"),  # generated tables
}
# Beginnings of the paths, relative to the library, of modules that are mostly tables.
TABLES = ("_sysconfigdata", "html/entities.py", "locale.py", "stringprep.py", "_opcode_metadata.py")


def source(_: str = "", library: Path | None = None) -> Source:
    """The corpus `stdlib`, from the interpreter's library folder unless another one is given."""
    files = modules(library or _library())
    if not files:
        raise DataError(available(library))
    version = platform.python_version()
    return Source(
        "stdlib",
        [version, stamps(files)],
        lambda: Reading(_documents(files), {"python": version}),
        made_of=frozenset(str(path.resolve()) for path in files),  # as `text:` names them
    )


def available(library: Path | None = None) -> str:
    """Why the library cannot be read as source files, and what to do; "" if it can."""
    library = library or _library()
    if modules(library):
        return ""
    return (
        f"this Python keeps no library source in {library} (an embedded or zipped build): "
        "name a corpus, such as text:FOLDER, or use a full Python"
    )


def modules(library: Path) -> list[Path]:
    """The modules below a folder, without tests, tables and small modules."""
    paths_kept = []
    for folder, folders, names in os.walk(library):
        folders[:] = sorted(set(folders) - LEFT_OUT_FOLDERS)  # os.walk enters only the folders that this list keeps
        paths = [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
        paths_kept += [path for path in paths if not path.relative_to(library).as_posix().startswith(TABLES)]
    # A link may point nowhere.
    return [path for path in paths_kept if path.is_file() and path.stat().st_size >= SMALLEST_MODULE_BYTES]


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _documents(files: list[Path]) -> Iterator[Document]:
    return (Document(read_file(path)) for path in files)


CORPORA.add("stdlib", Kind("stdlib", "the running Python's own library source, about 8 MB", source, available))
