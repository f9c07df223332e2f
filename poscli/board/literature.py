"""What others measured: their tables as data, one file of `published/` per source, and what they cannot be asked here.

Only facts and figures, with their citation and how certain the reading is. `published/scope.toml` names the pairs that
are hard to tell apart, and what models of the size that poscli trains cannot test.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from poscli.config.validate import Frozen, validated
from poscli.system.errors import DataError, UsageError

FOLDER = Path(__file__).parent / "published"
SCOPE = "scope.toml"
NEAR = math.log(1.1)  # a published length stands for the multiple that it is within 10 % of


class PublishedTable(Frozen):
    """A table of a source: losses by encoding and length, or, in `columns`, of models that read what they trained on.

    `inf` is a bound that the source prints, such as ">100", and `nan` what it does not give. Encodings have poscli's
    names, where it has them; `X as Y` was trained as X and read as Y.
    """

    model_config = ConfigDict(allow_inf_nan=True)

    id: str = Field(min_length=1)
    model: str
    params: str
    corpus: str
    train_length: int | None = Field(None, ge=1)
    protocol: str
    like: Literal["sliding", "nonoverlapping", ""] = ""  # the protocol of poscli that reads windows in this way
    metric: Literal["perplexity", "loss"]  # the loss is in nats per token
    seeds: int = Field(ge=1)
    lengths: list[int] = Field([])
    columns: list[str] = Field([])
    values: dict[str, list[float]] = Field(min_length=1)

    @model_validator(mode="after")
    def _complete(self) -> PublishedTable:
        if bool(self.lengths) == bool(self.columns):
            raise ValueError(f"{self.id} needs either lengths or columns")
        if self.lengths and self.train_length is None:
            raise ValueError(f"{self.id} has lengths and no train_length; add it")
        count = len(self.lengths or self.columns)
        for name, row in self.values.items():
            if len(row) != count:
                raise ValueError(f"{self.id} has {count} columns and {len(row)} values of {name}; correct one of them")
            if self.metric == "perplexity" and any(value < 1 for value in row):
                raise ValueError(f"{self.id} has a perplexity of {name} below 1")
        return self

    def losses(self, multiple: float) -> list[dict[str, float]]:
        """Nats per token by encoding at a multiple of the training length; at 1, a dictionary for each column.

        The length is the nearest one, by its ratio, if it is within 10 %; the list is empty if there is none.
        """
        if self.columns:
            return [self._column(n) for n in range(len(self.columns))] if multiple == 1 else []
        assert self.train_length is not None
        off = [abs(math.log(length / (multiple * self.train_length))) for length in self.lengths]
        return [self._column(off.index(min(off)))] if min(off) <= NEAR else []

    def _column(self, n: int) -> dict[str, float]:
        """Nats per token by encoding in one column, without what the source does not give."""
        found = {name: row[n] for name, row in self.values.items() if not math.isnan(row[n])}
        return found if self.metric == "loss" else {name: math.log(value) for name, value in found.items()}


class Origin(Frozen):
    """Where tables come from: the title, how to cite it, where it appeared, and how certain the reading is."""

    title: str
    cite: str = Field(min_length=1)
    venue: str
    certainty: str = Field(min_length=1)
    second_hand: bool = False  # then its tables enter no number
    note: str = ""


class PublishedSource(Frozen):
    """A paper, or a repository, with its tables."""

    source: Origin
    table: list[PublishedTable] = Field(min_length=1)


class Limit(Frozen):
    """Something that models of the size that poscli trains cannot test, with the reason and who states it."""

    what: str
    why: str
    source: str


class Scope(Frozen):
    """The encodings whose pairs are hard to tell apart, and the limits."""

    hard: list[str]
    limit: list[Limit]


@dataclass(frozen=True)
class Literature:
    """All sources by their key, which is the name of the file, and the scope of the comparison."""

    sources: dict[str, PublishedSource]
    scope: Scope

    @cached_property
    def first_hand(self) -> dict[str, list[PublishedTable]]:
        """The tables by source, of those sources that enter numbers."""
        return {key: each.table for key, each in self.sources.items() if not each.source.second_hand}

    @property
    def names(self) -> list[str]:
        """Every name in a table that enters numbers."""
        return sorted({name for tables in self.first_hand.values() for table in tables for name in table.values})

    def cite(self, key: str) -> str:
        """The citation of a source, with its key: `kerple (arXiv:2205.09921)`."""
        return f"{key} ({self.sources[key].source.cite})"


def read_literature(folder: Path = FOLDER) -> Literature:
    """The sources of a folder and its scope. DataError, in one line, for a file that cannot be read or is wrong."""
    if not (folder / SCOPE).is_file():
        raise DataError(f"{folder} has no {SCOPE}; name the folder of the published tables")
    sources = {path.stem: path for path in sorted(folder.glob("*.toml")) if path.name != SCOPE}
    return Literature(
        {key: _read(path, PublishedSource) for key, path in sources.items()}, _read(folder / SCOPE, Scope)
    )


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        return validated(kind, tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} is not TOML: {error}; correct the file") from error
    except UsageError as error:
        raise DataError(str(error)) from error


def tables_like(tables: list[PublishedTable], like: str | None) -> Iterator[PublishedTable]:
    """The tables read like a protocol of poscli; all of them for None."""
    return (table for table in tables if like in (None, table.like))
