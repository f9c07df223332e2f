"""Cells: what one trained model lost on one text of the season, document by document. The board is made of these alone.

A cell is a file of a few kB that is written once and never changed, so that any mix of machines can add to one folder:

    FOLDER/SEASON/ENCODING/TABLE-at-L-RECIPE-TEXT-SEED-KEY.json       one model on one text
    FOLDER/SEASON/documents/TEXT-KEY.json                             what was scored there: the sizes of the documents
    FOLDER/SEASON/tasks/TASK-ENCODING-SEED-KEY.json                   the right answers of one model to a task
    FOLDER/SEASON/texts/TEXT.json                                     how far back it repeats itself
    FOLDER/SEASON/costs/TABLE-ENCODING.json                           seconds of a step and of a reading over none's

Each file ends with the SHA-256 of what it says. A file that was edited or damaged is an error that names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from poscli.config.run import slug
from poscli.config.validate import Frozen, refusal_of
from poscli.drawing.text import listed
from poscli.system.errors import CorruptError, DataError
from poscli.system.files import parse_object, read_bytes, write_atomic

ELSEWHERE = "give --cells CLONE/results/board/cells of a clone of poscli"  # where cells are missing
RESTORE = "restore it from where the cells are kept"
CURE = f"{RESTORE}, or delete it: `poscli board run` makes it again"
# What a cell is of: its key is a hash of these fields.
OF_CELL = ("season", "table", "configuration", "encoding", "source", "recipe", "trained_at", "seed", "text")
OF_TASK = ("season", "task", "configuration", "encoding", "source", "trained_at", "seed")
PER_NAT = 100  # losses are kept in hundredths of a nat per document; seeds move them by tens of hundredths
DOCUMENTS, COSTS, TEXTS, TASKS_FOLDER = "documents", "costs", "texts", "tasks"


MADE_ON = ("poscli", "commit", "machine", "cpu", "torch")  # what a cell and a row of eval.csv say by the same names


class MadeBy(Frozen):
    """Where, when and with which code a cell was made."""

    poscli: str
    commit: str
    code: str  # hash of the code that trains, and of the code that measures
    machine: str
    cpu: str
    torch: str
    date: str  # in UTC: the end of the training, or for costs the time when they were measured


class Scored(Frozen):
    """The documents of a text that are scored, with tokens and bytes of each; spans of tokens where they are few."""

    season: str
    text: str
    fingerprint: str
    units: tuple[str, ...]  # their names, as in units.csv
    tokens: tuple[int, ...]
    bytes: tuple[int, ...]

    @property
    def key(self) -> str:
        """A hash of everything in it."""
        return _hash(self.model_dump(mode="json"))


class Cell(Frozen):
    """The losses of one model on one text.

    `hundredths[l][d]` are the nats lost on document d with windows of `lengths[l]` tokens, times 100. The tokens that
    count are the same at every length; the context cut to L is the reading at L. A reading that failed has no losses,
    and `status` and `reason` say why.
    """

    season: str
    table: str
    configuration: str = Field(description="Hash of everything that models of a table have in common.")
    encoding: str = Field(description="The spec, or `rope as yarn` where a model of rope is read as yarn.")
    source: str = Field(description="Hash of the source of the encodings in the spec.")
    recipe: dict[str, float] = Field({}, description="Learning rates that tuning chose; empty for those as published.")
    trained_at: int = Field(description="Tokens of the training windows.")
    seed: int
    text: str
    documents: str = Field(description="The key of the documents that were scored.")
    lengths: tuple[int, ...] = Field(description="Tokens of the windows, ascending; the first one is L.")
    status: tuple[str, ...] = Field(description="For every length: ok, or why there is no loss.")
    reason: str = ""
    hundredths: tuple[tuple[int, ...], ...]
    nonoverlapping: tuple[float | None, ...] = Field((), description="By length: nats per token without sliding.")
    parameters: int
    origin: MadeBy

    @property
    def key(self) -> str:
        """A hash of what the cell is of, whatever it says."""
        return key_of(**{name: getattr(self, name) for name in OF_CELL})

    @property
    def file(self) -> Path:
        """Where it lies in the folder of cells."""
        marks = (self.table, f"at-{self.trained_at}", "tuned" if self.recipe else "published", self.text, self.seed)
        return Path(
            slug(self.season), encoding_folder(self.encoding), "-".join([*map(_plain, marks), self.key]) + ".json"
        )


class TaskCell(Frozen):
    """The right answers of one model to a task of the season, as shares by length."""

    season: str
    task: str
    configuration: str
    encoding: str
    source: str
    trained_at: int
    seed: int
    lengths: tuple[int, ...]
    status: tuple[str, ...]
    reason: str = ""
    accuracy: tuple[float | None, ...]
    chance: float = Field(description="The share that a guess gets right which knows the task and not the text.")
    learned_at: int | None = Field(None, description="The step from which on 90 % are right to the end of training.")
    origin: MadeBy

    @property
    def key(self) -> str:
        """A hash of what the cell is of, whatever it says."""
        return key_of(**{name: getattr(self, name) for name in OF_TASK})

    @property
    def file(self) -> Path:
        """Where it lies in the folder of cells."""
        name = "-".join([_plain(self.task), encoding_folder(self.encoding), str(self.seed), self.key])
        return Path(slug(self.season), TASKS_FOLDER, f"{name}.json")


class CostCell(Frozen):
    """What an encoding costs over none, timed in turns with it on one core: the median ratio and its quartiles."""

    season: str
    table: str
    encoding: str
    training: tuple[float, float, float]  # a training step at L
    reading: tuple[float, float, float]  # a window of the largest length
    origin: MadeBy


class TextProfile(Frozen):
    """How far back a text repeats itself, and what an n-gram with a cache of the window wins by 16 L (R0)."""

    season: str
    text: str
    ngram: int  # tokens that must occur again
    octaves: tuple[tuple[int, int], ...]  # first and last distance, in tokens
    density: tuple[float, ...]  # of the tokens that could be copied, the share per token of distance
    exponent: tuple[float, float, float] | None  # the density falls as d ** -exponent, with its 95 % interval
    won: tuple[float, float, float] | None  # bits per byte, with its 95 % interval


Kept = TypeVar("Kept", Cell, Scored, TaskCell, CostCell, TextProfile)


def encoding_folder(encoding: str) -> str:
    """The name of the folder of an encoding's cells, unique also where names of files ignore case."""
    return f"{slug(encoding)}-{_hash(encoding)[:6]}"


def write_kept(path: Path, kept: Kept) -> bool:
    """Write a file of the folder of cells, unless it is there; returns whether it was written.

    Cells are never changed: what another training or another machine has made is left as it is, whatever it says.
    CorruptError if one of the same origin says something else.
    """
    content = kept.model_dump(mode="json", exclude_defaults=True)
    if path.exists():
        known = _read(path, type(kept))
        if known != kept and getattr(known, "origin", None) == getattr(kept, "origin", None):
            raise CorruptError(f"{path} says something else than the run that it is of; {CURE}")
        return False
    lines = [f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in content.items()]
    lines.append(f'"sha256": "{_hash(content, digits=64)}"')
    write_atomic(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return True


def read_cells(folder: Path, season: str) -> list[Cell]:
    """All cells of a season in a folder, in the order of their files' names."""
    here = Path(folder) / slug(season)
    return list(_read_all(here, Cell, skip=(DOCUMENTS, COSTS, TEXTS, TASKS_FOLDER)))


def read_documents(folder: Path, season: str) -> dict[str, Scored]:
    """The documents that the cells of a season score, by their keys."""
    return {each.key: each for each in _read_all(Path(folder) / slug(season) / DOCUMENTS, Scored)}


def read_with_documents(folder: Path, season: str) -> tuple[list[Cell], dict[str, Scored]]:
    """All cells of a season in a folder, and the documents that they score, by their keys; DataError if these lack."""
    cells, documents = read_cells(folder, season), read_documents(folder, season)
    refuse_without_documents(cells, documents)
    return cells, documents


def refuse_without_documents(
    cells: Iterable[Cell], documents: Mapping[str, Scored], *, of: str = "", cure: str = "restore them"
) -> None:
    """DataError if cells score documents whose sizes are not among these; `of` says which cells these are."""
    if absent := sorted({cell.text for cell in cells if cell.documents and cell.documents not in documents}):
        raise DataError(f"the sizes of the documents of {listed(absent)} are missing among the cells{of}; {cure}")


def read_answers(folder: Path, season: str) -> list[TaskCell]:
    """All cells of tasks of a season in a folder."""
    return list(_read_all(Path(folder) / slug(season) / TASKS_FOLDER, TaskCell))


def read_costs(folder: Path, season: str) -> list[CostCell]:
    """All costs of a season in a folder."""
    return list(_read_all(Path(folder) / slug(season) / COSTS, CostCell))


def keys_in(folder: Path, season: str) -> set[str]:
    """The keys of all cells of a season in a folder, from the names of their files."""
    return {path.stem.rpartition("-")[2] for path in (Path(folder) / slug(season)).glob("*/*.json")}


def key_of(**what: Any) -> str:
    """The key of a cell: a hash of what it is of (`OF_CELL`, `OF_TASK`), whatever it says."""
    return _hash(what)


def documents_file(scored: Scored) -> Path:
    """Where the sizes of documents lie in the folder of cells."""
    return Path(slug(scored.season), DOCUMENTS, f"{_plain(scored.text)}-{scored.key}.json")


def read_profiles(folder: Path, season: str) -> dict[str, TextProfile]:
    """The profiles of the season's texts, as far as they are measured."""
    return {each.text: each for each in _read_all(Path(folder) / slug(season) / TEXTS, TextProfile)}


def profile_file(season: str, text: str) -> Path:
    """Where the profile of a text lies in the folder of cells."""
    return Path(slug(season), TEXTS, f"{_plain(text)}.json")


def cost_file(season: str, table: str, encoding: str) -> Path:
    """Where the costs of an encoding lie in the folder of cells."""
    return Path(slug(season), COSTS, f"{_plain(table)}-{encoding_folder(encoding)}.json")


def _read_all(folder: Path, kind: type[Kept], skip: tuple[str, ...] = ()) -> Iterator[Kept]:
    for path in sorted(folder.rglob("*.json")):
        if path.relative_to(folder).parts[0] not in skip:
            yield _read(path, kind)


def _read(path: Path, kind: type[Kept]) -> Kept:
    """The content of a file; CorruptError if it is not what was written."""
    cure = RESTORE if kind is Scored else CURE  # documents are written with cells that are new, and not for old ones
    content = parse_object(read_bytes(path, cure), path, cure)
    known = content.pop("sha256", None)
    if known != _hash(content, digits=64):
        raise CorruptError(f"{path} was edited or damaged: its SHA-256 is not the one that it states; {cure}")
    try:
        return kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise CorruptError(
            f"{path} is not a {kind.__name__.lower()} of this version ({refusal_of(kind, error)}); {cure}"
        ) from error


def _hash(content: Mapping[str, Any] | str, digits: int = 8) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _plain(text: object) -> str:
    return slug(str(text)).replace("-", "_")
