"""Files whose SHA-256 sums stand in the MANIFEST.json of their folder: a changed digit or a lost row is noticed.

The manifest is written before the file. It holds the sum of the new content and that of the content which the new one
replaces: a process that dies between the two writes leaves a file that is whole and known. `settle` drops the latter.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poscli.system.errors import CorruptError
from poscli.system.files import make_folder, parse_object, read_bytes, read_object, storing, sync_folder, write_atomic

MANIFEST = "MANIFEST.json"


class Sealed:
    """The sealed files of one folder. Only the process that holds the folder's lock may write.

    `cure` is the end of the error messages: what a user can do about a damaged file.
    """

    def __init__(self, folder: Path, cure: str) -> None:
        self.folder, self.cure = folder, cure

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file and its sum; StorageError if that fails, which leaves the old file valid."""
        content = content.encode() if isinstance(content, str) else content
        sums, path = self._sums(), self.folder / name
        replaced = _sum(read_bytes(path, self.cure)) if path.is_file() else ""
        kept = [replaced] if replaced in sums.get(name, []) else []  # a damaged file does not become valid
        sums[name] = list(dict.fromkeys([_sum(content), *kept]))
        self._write_sums(sums)
        _make_room(path)
        write_atomic(path, content)

    def settle(self, *names: str) -> None:
        """From now on only the last content of these files is valid: they were written together, and are whole."""
        sums = self._sums()
        self._write_sums(sums | {name: sums[name][:1] for name in names})

    def read(self, name: str) -> bytes:
        """The content of a file; CorruptError if it is missing or not what was written."""
        while True:
            sums = self._sums()
            content = read_bytes(self.folder / name, self.cure)
            if _sum(content) in sums.get(name, []):
                return content
            if sums == self._sums():  # else another process has just written the file
                raise CorruptError(
                    f"{self.folder / name} is not the file that was written (its SHA-256 differs from that in "
                    f"{MANIFEST}); {self.cure}"
                )

    def read_object(self, name: str) -> dict[str, Any]:
        """The JSON object in a file; CorruptError if it is missing, or not what was written."""
        return parse_object(self.read(name), self.folder / name, self.cure)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name, damaged or not."""
        return os.path.lexists(self.folder / name)  # true for a symlink that leads nowhere

    def was_written(self, name: str) -> bool:
        """Whether a file of this name was ever written here, removed since or not."""
        return name in self._sums()

    def remove(self, name: str) -> None:
        """Remove a file durably, if there is one."""
        with storing(self.folder / name):
            _make_room(self.folder / name)
            (self.folder / name).unlink(missing_ok=True)
            sync_folder(self.folder)

    def forget(self, *names: str) -> None:
        """Remove files, and that they were ever written here."""
        for name in names:
            self.remove(name)
        self._write_sums({name: sums for name, sums in self._sums().items() if name not in names})

    def forget_damaged(self) -> None:
        """Remove a manifest that cannot be read. All files then count as damaged until they are written again."""
        try:
            self._sums()
        except CorruptError:
            self.remove(MANIFEST)

    def _sums(self) -> dict[str, list[str]]:
        """The valid sums of each file: a list, or in a folder that `write_sealed` has made a single one."""
        path = self.folder / MANIFEST
        if not os.path.lexists(path):
            return {}
        stored = read_object(path, self.cure)
        if not all(isinstance(known, list | str) for known in stored.values()):
            raise CorruptError(f"{path} does not hold SHA-256 sums; {self.cure}")
        return {name: [known] if isinstance(known, str) else known for name, known in stored.items()}

    def _write_sums(self, sums: dict[str, list[str]]) -> None:
        write_atomic(self.folder / MANIFEST, json.dumps(sums, indent=2, sort_keys=True) + "\n")


def write_sealed(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files of a new folder, and their sums; StorageError if that fails."""
    make_folder(folder)
    for name, content in files.items():
        write_atomic(folder / name, content)
    write_atomic(folder / MANIFEST, json.dumps({name: _sum(content) for name, content in files.items()}, indent=2))


def _make_room(path: Path) -> None:
    """Remove an empty folder that stands where a file belongs; StorageError if it is not empty."""
    if path.is_dir() and not path.is_symlink():
        with storing(path):
            path.rmdir()


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
