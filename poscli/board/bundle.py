"""Bundles: the cells of one encoding with its source, in a file of less than 100 kB that others can check."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import scipy  # whose parts are loaded when they are used
from numpy.typing import NDArray

from poscli.board.cells import (
    PER_NAT,
    Cell,
    Scored,
    documents_file,
    read_cells,
    read_documents,
    read_with_documents,
    refuse_without_documents,
    write_kept,
)
from poscli.board.ranking import SPENT
from poscli.board.season import Season
from poscli.runs.run import AS
from poscli.specs import parse
from poscli.statistics.comparison import LN2
from poscli.system.errors import CorruptError, UsageError, near
from poscli.system.files import make_folder, parse_object, write_atomic

LARGEST = 100_000  # bytes
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
NAME = r"[\w.+|(),=-]+"  # of an encoding
ENTRY, SOURCE, CELLS = "entry.json", "source", "cells"  # a file and two folders
EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of every file in it, so that equal bundles are equal bytes
CURE = "ask whoever made it for another one"
REFUSED = 0.01  # of true cells that were made again on another CPU


@dataclass(frozen=True)
class Bundle:
    """What a bundle says: who entered what, how many sources were ranked before it, and the cells."""

    name: str
    spec: str
    season: str
    table: str
    tried: tuple[str, ...]  # hashes of all sources that were ranked under this name, with this one
    source: str  # the text of its file; "" for a spec of registered encodings
    source_file: Path | None  # where it was unpacked to
    cells: tuple[Cell, ...]
    documents: Mapping[str, Scored]
    digest: str  # SHA-256 of the file, or of the keys of its cells

    def drawn(self, count: int = 2) -> list[Cell]:
        """The cells that are made again to check it, of as many models, drawn by its own hash."""
        order = sorted(self.cells, key=lambda cell: hashlib.sha256((self.digest + cell.key).encode()).digest())
        of_model = {(cell.seed, bool(cell.recipe)): cell for cell in reversed(order)}
        return sorted(of_model.values(), key=order.index)[:count]


def write_bundle(
    path: Path,
    *,
    name: str,
    spec: str,
    season: Season,
    table: str,
    tried: Sequence[str],
    folder: Path,
    source: tuple[str, str] | None,
) -> Path:
    """Write the cells of a folder, all of one source of an entry, as a bundle; returns its path.

    `source` is the name of its file and the text that it had when the cells were made, and `tried` the hashes of all
    sources that were ranked under its name. UsageError if the bundle would be larger than 100 kB, which only a large
    source can make it.
    """
    cells, documents = read_with_documents(folder, season.name)
    content = {"name": name, "spec": spec, "season": season.name, "table": table, "tried": list(tried)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        _add(archive, ENTRY, json.dumps(content, indent=1) + "\n")
        if source is not None:
            _add(archive, f"{SOURCE}/{source[0]}", source[1])
        needed = [documents[key] for key in sorted({cell.documents for cell in cells if cell.documents})]
        for file in [cell.file for cell in cells] + [documents_file(each) for each in needed]:
            _add(archive, f"{CELLS}/{file.as_posix()}", (folder / file).read_text(encoding="utf-8"))
    if len(buffer.getvalue()) > LARGEST:
        size = len(buffer.getvalue()) / 1000
        raise UsageError(f"the bundle of {name} has {size:.0f} kB, and 100 kB are the limit; shorten its source")
    write_atomic(path, buffer.getvalue())
    return path


def read_bundle(path: Path, unpack: Path) -> Bundle:
    """Read a bundle, and put its source and its cells into the folder `unpack`.

    UsageError if there is no such file; CorruptError if it is not a bundle, or a digit of it was changed.
    """
    if not path.is_file():
        raise UsageError(f"there is no bundle {str(path)!r}; `poscli rank` writes one")
    content = path.read_bytes()
    if len(content) > LARGEST:
        raise CorruptError(f"{path} has {len(content) / 1000:.0f} kB, and a bundle at most 100 kB; {CURE}")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if sum(each.file_size for each in members) > 50 * LARGEST:
                raise CorruptError(f"{path} unpacks to more than a bundle may have; {CURE}")
            if any(each.compress_type not in PACKED for each in members):  # 100 kB of bzip2 may hold 100 GB
                raise CorruptError(f"{path} is not a bundle: it is packed in another way; {CURE}")
            files = {each.filename: archive.read(each) for each in members if not each.is_dir()}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:  # the last one: encrypted
        raise CorruptError(f"{path} is not a bundle ({error}); {CURE}") from error
    if ENTRY not in files:
        raise CorruptError(f"{path} is not a bundle: it has no {ENTRY}; {CURE}")
    known = parse_object(files[ENTRY], path, CURE)
    try:
        fields: dict[str, Any] = {name: str(known[name]) for name in ("name", "spec", "season", "table")}
        tried = tuple(map(str, known["tried"]))
    except (KeyError, TypeError) as error:
        raise CorruptError(f"{path} is not a bundle: {ENTRY} lacks {error}; {CURE}") from error
    if not re.fullmatch(NAME, fields["name"]):
        raise CorruptError(f"{path} is not a bundle: its name is {fields['name']!r}; {CURE}")
    make_folder(unpack)
    for name, text in files.items():
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or (parts[:1] not in ((CELLS,), (SOURCE,)) and name != ENTRY):
            raise CorruptError(f"{path} is not a bundle: it holds {name!r}; {CURE}")
        write_atomic(unpack / name, text)
    cells = tuple(read_cells(unpack / CELLS, fields["season"]))
    documents = read_documents(unpack / CELLS, fields["season"])
    source = next((name for name in files if name.startswith(f"{SOURCE}/")), "")
    return Bundle(
        **fields,
        tried=tried,
        source=files.get(source, b"").decode(errors="replace"),
        source_file=unpack / source if source else None,
        cells=cells,
        documents=documents,
        digest=hashlib.sha256(content).hexdigest(),
    )


def entry_on_board(encoding: str, season: Season, board: Path) -> Bundle:
    """The cells of an encoding that are on the board, as a bundle: those of its newest source, trained at L.

    UsageError for an encoding that the season does not train, or if the board has no cells of it.
    """
    trained, is_reading, _ = encoding.partition(AS)
    if is_reading:
        raise UsageError(f"{encoding} is read off the models of {trained}; check {trained}")
    spec = str(parse(trained))
    tables = {str(parse(each)): table.name for table in reversed(season.table) for each in table.encodings}
    if spec not in tables:
        raise UsageError(f"{encoding}: season {season.name} does not train it: {near(spec, tables)}")
    cells, documents = read_with_documents(board, season.name)
    own = [cell for cell in cells if (cell.encoding, cell.table) == (spec, tables[spec])]
    if not own:
        raise UsageError(f"the board in {board} has no cells of {spec}; `poscli board run --enc` makes them")
    newest = max(own, key=lambda cell: cell.origin.date).source
    shortest = min(cell.trained_at for cell in own)  # others of them say what longer training windows are worth
    chosen = [cell for cell in own if (cell.source, cell.trained_at) == (newest, shortest)]
    return Bundle(
        name=spec,
        spec=spec,
        season=season.name,
        table=tables[spec],
        tried=(newest,),
        source="",
        source_file=None,
        cells=tuple(chosen),
        documents=documents,
        digest=hashlib.sha256("".join(sorted(cell.key for cell in chosen)).encode()).hexdigest(),
    )


def refuse_bundle(bundle: Bundle, season: Season, board: Sequence[Cell]) -> None:
    """UsageError or CorruptError for a bundle of another season or other texts, or of a name that is taken."""
    if bundle.season != season.name:
        raise UsageError(
            f"the bundle is of season {bundle.season}, and this version ranks in {season.name}; rank it anew"
        )
    if not bundle.cells:
        raise CorruptError(f"the bundle of {bundle.name} has no cells; {CURE}")
    strange = {cell.encoding for cell in bundle.cells} - {bundle.name}
    if strange:
        raise CorruptError(f"the bundle of {bundle.name} has cells of {min(strange)}; {CURE}")
    refuse_without_documents(bundle.cells, bundle.documents, of=f" of the bundle of {bundle.name}", cure=CURE)
    refuse_taken(bundle.name, {cell.source for cell in bundle.cells}, board)
    seeds = Counter((cell.text, bool(cell.recipe)) for cell in bundle.cells)
    if (fewest := min(seeds.values())) < min(SPENT):
        raise CorruptError(f"the bundle of {bundle.name} has {fewest} of {min(SPENT)} seeds of a text; {CURE}")
    known = {(cell.table, cell.trained_at): cell.configuration for cell in board}
    texts = {cell.text: cell.documents for cell in board if cell.documents}
    for cell in bundle.cells:
        if known.get((cell.table, cell.trained_at), cell.configuration) != cell.configuration:
            raise UsageError(f"{cell.file} was trained or scored otherwise than the cells of the board; rank it anew")
        if cell.documents and texts.get(cell.text, cell.documents) != cell.documents:
            raise UsageError(
                f"{cell.file} scored other documents of {cell.text} than the board: another corpus; rank it anew"
            )


def refuse_taken(name: str, sources: set[str], board: Sequence[Cell], ranked: Collection[str] = ()) -> None:
    """UsageError if the board has an encoding of this name from another source, or the season ranks one (`ranked`)."""
    taken = {cell.source for cell in board if cell.encoding == name}
    if name in ranked or (taken and not taken & sources):
        raise UsageError(f"the name {name!r} is taken on the board, by another source; choose one with --name")


@dataclass(frozen=True)
class Again:
    """A cell that was made again: by how much its loss differs, in bits per byte, and by how much it may.

    The difference is infinite where only one of the two has a loss.
    `alike` says that both were made with the same code and torch on CPUs of one name, where nothing may differ.
    """

    cell: Cell
    identical: bool
    alike: bool
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the cell is what its source gives."""
        return self.identical or (not self.alike and self.difference <= self.allowed)


def compare_again(bundle: Bundle, made: Cell) -> Again:
    """Hold a cell that was made again against that in the bundle, at the length at which they differ most.

    Other CPUs round otherwise, and a training amplifies that until it is like another seed. So there the two losses may
    differ as much as those of two seeds do in 99 of 100 cases. How much that is follows from the variance over the
    bundle's seeds, mean over the texts. It has the degrees of freedom of two texts, however many there are, because a
    model that is lucky on one text tends to be lucky on others. A model without a loss, which may have diverged, must
    have none again. UsageError if other documents were scored.
    """
    then = next(cell for cell in bundle.cells if cell.key == made.key)
    alike = all(getattr(made.origin, name) == getattr(then.origin, name) for name in ("code", "cpu", "torch"))
    if not (made.documents and then.documents):
        both = made.documents == then.documents
        return Again(then, both, alike, 0.0 if both else math.inf, 0.0)
    if made.documents != then.documents:
        raise UsageError(
            f"{then.file} scored other documents of {then.text} than this machine has: its corpus is another one; "
            "check it with the season's corpora"
        )
    kind, by_text = (then.trained_at, bool(then.recipe)), dict[str, list[NDArray[np.float64]]]()
    for cell in bundle.cells:
        if cell.documents and (cell.trained_at, bool(cell.recipe)) == kind:
            by_text.setdefault(cell.text, []).append(_bits(cell, bundle))
    seeds = min(map(len, by_text.values()))
    allowed = np.zeros(len(then.lengths))
    if seeds > 1:
        variance = np.mean([np.var(losses, axis=0, ddof=1) for losses in by_text.values()], axis=0)
        allowed = scipy.special.stdtrit(2 * (seeds - 1), 1 - REFUSED / 2) * np.sqrt(2 * variance)
    apart = np.abs(_bits(made, bundle) - _bits(then, bundle))
    worst = int(np.argmax(apart - allowed))
    return Again(then, made.hundredths == then.hundredths, alike, float(apart[worst]), float(allowed[worst]))


def _bits(cell: Cell, bundle: Bundle) -> NDArray[np.float64]:
    """The loss of a cell at each of its lengths, in bits per byte."""
    size = sum(bundle.documents[cell.documents].bytes) * PER_NAT * LN2
    return np.array([sum(losses) / size for losses in cell.hundredths])


def add_to_board(bundle: Bundle, folder: Path) -> int:
    """Write the cells of a bundle to the folder of cells; returns how many were new."""
    for scored in bundle.documents.values():
        write_kept(folder / documents_file(scored), scored)
    return sum(write_kept(folder / cell.file, cell) for cell in bundle.cells)


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, EPOCH), text, zipfile.ZIP_DEFLATED)
