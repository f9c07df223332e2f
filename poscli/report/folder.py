"""The folder of a report or a site: a crash cannot mix two of them, and what an earlier one left is removed.

`files.json`, or `site.json`, lists the files with their SHA-256. A file is removed only if that list names it and
its content is still the one listed; whatever else lies in the folder is the user's.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from poscli.system.console import note
from poscli.system.errors import PoscliError, UsageError
from poscli.system.files import TEMPORARY, sha256, write_atomic

PAGE, BROWSER_PAGE, TABLE, LATEX, LIST = "report.md", "report.html", "summary.csv", "tables.tex", "files.json"
PICTURES = "accuracy|gain|perplexity|place|position|recall"
OURS = re.compile(rf"report\.(md|html)|summary\.csv|tables\.tex|({PICTURES})[A-Za-z0-9-]*\.(png|svg|pdf)")
SECONDS_OF_A_WRITE = 60.0  # after which whoever wrote a file under a temporary name is gone
UNFINISHED = """# This report is not finished

poscli was stopped while it wrote this folder, so that the files beside this one may belong to two different reports.
Repeat the command that wrote them.
"""


@dataclass(frozen=True)
class FolderKind:
    """What is written to a folder: the page that is written last, the list of files, and the names they may have."""

    page: str
    list: str
    names: re.Pattern[str]
    unfinished: str  # the content of the page while files of two versions lie side by side


REPORT = FolderKind(PAGE, LIST, OURS, UNFINISHED)
Hashes = dict[str, list[str]]  # name of a file -> the SHA-256 of every content that poscli may have given it


def write_folder(folder: Path, contents: Mapping[str, bytes], kind: FolderKind = REPORT) -> None:
    """Write the files of a report, its page among them, and remove those that only an earlier report had.

    While files of two reports lie side by side, the page says so. Raises PoscliError, and UsageError before anything is
    written if one of the files would replace one that poscli did not write: then the list beside it does not name it.
    """
    old = _listed(folder, kind)
    for name in contents:
        if (folder / name).exists() and name not in old:
            raise _foreign(folder / name)
    _remove_temporaries(folder, kind)
    new = {name: [hashlib.sha256(content).hexdigest()] for name, content in contents.items()}
    _list(folder / kind.list, {name: sorted({*old.get(name, []), *new.get(name, [])}) for name in {**old, **new}})
    write_atomic(folder / kind.page, kind.unfinished)
    for name, content in contents.items():
        if name != kind.page:
            write_atomic(folder / name, content)
    for name in sorted(old.keys() - new.keys()):
        _remove(folder / name, old[name])
    write_atomic(folder / kind.page, contents[kind.page])
    _list(folder / kind.list, new)


def _remove_temporaries(folder: Path, kind: FolderKind) -> None:
    """Remove what a process that was killed left of a report's files; others may be writing theirs at this moment."""
    for path in folder.glob(f".*{TEMPORARY}"):
        name = path.name[1 : -len(TEMPORARY)].rpartition(".")[0]
        ours = name in (kind.page, kind.list) or kind.names.fullmatch(name)
        with suppress(FileNotFoundError):
            if ours and time.time() - path.lstat().st_mtime > SECONDS_OF_A_WRITE:
                path.unlink()


def _list(path: Path, hashes: Hashes) -> None:
    write_atomic(path, json.dumps(hashes, indent=2, sort_keys=True) + "\n")


def _listed(folder: Path, kind: FolderKind) -> Hashes:
    """The files of the report that was in the folder before; UsageError if their list cannot be one of poscli's."""
    try:
        hashes = json.loads((folder / kind.list).read_text(encoding="utf-8"))
        return {name: [str(mark) for mark in marks] for name, marks in hashes.items() if kind.names.fullmatch(name)}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise _foreign(folder / kind.list) from error


def _foreign(path: Path) -> UsageError:
    return UsageError(f"{path} was not written by poscli, which would replace it: choose another folder, or move it")


def _remove(path: Path, hashes: list[str]) -> None:
    """Remove a file of an earlier report, unless someone changed it."""
    if path.is_symlink() or not path.is_file():
        return
    if sha256(path) not in hashes:
        note(f"kept {path}: it belongs to an earlier report, but was changed since")
        return
    try:
        path.unlink()
    except OSError as error:
        raise PoscliError(f"cannot remove {path}: {error.strerror}; choose another folder with --to") from error


FORMATS = ("png", "svg", "pdf")


def known_formats(words: Iterable[str]) -> tuple[str, ...]:
    """The formats that these words name; UsageError for one that pictures cannot have.

    >>> known_formats(["SVG", " pdf ", ""])
    ('svg', 'pdf')
    """
    formats = tuple(word.strip().lower() for word in words if word.strip())
    for word in formats:
        if word not in FORMATS:
            raise UsageError(f"--formats {word}: pictures are written as {', '.join(FORMATS)}; give some of these")
    return formats
