"""A season: one choice of texts, models, budgets and seeds, under which encodings are comparable.

Seeds follow from the season's name, so that nobody picks them, and are the same for all encodings, so that encodings
are compared pair by pair. They do not follow from an encoding's source: a changed comment would draw other seeds.
"""

from __future__ import annotations

import hashlib
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.suite import Suite, SuitePart, changed_by
from poscli.config.validate import Request, validated
from poscli.system.errors import UsageError, near

SEASON = Path(__file__).with_name("season.toml")  # the current one
STAR = Path(__file__).with_name("star.toml")  # around it, for `poscli predict`


class SeasonTable(Request):
    """One table of a season: encodings that are trained as models of one shape, and ranked among each other."""

    name: str = Field(description="A short name, as in the names of cells.")
    title: str = Field(description="What the table is called on the page.")
    encodings: list[str] = Field(min_length=1, description="The specs that are trained at L.")
    ceilings: list[str] = Field(
        [], description="The specs that are trained on the longest windows, which say what there is to win."
    )
    readings: dict[str, list[str]] = Field({}, description="By a trained spec, the specs that it is read as.")
    train: TrainRequest = Field(TrainRequest(), description="What this table trains otherwise.")
    extrapolate: ExtrapolateRequest = Field(ExtrapolateRequest(), description="What this table scores otherwise.")


class SeasonTask(Request):
    """A task with right answers, on which all encodings of a table are trained and scored as well; no rank follows."""

    name: str = Field(description="A short name, as in the names of cells.")
    table: str = Field(description="The table whose encodings are asked.")
    train: TrainRequest = Field(description="How models of their own are trained for it.")
    extrapolate: ExtrapolateRequest = Field(ExtrapolateRequest(), description="How they are scored.")


class Season(Request):
    """The content of season.toml."""

    name: str = Field(description="What the season is called; its seeds follow from it.")
    texts: list[str] = Field(min_length=1, description="The corpora whose mean ranks the encodings.")
    control: str = Field(
        "",
        description="A corpus that is scored as well, on which no context beyond L can help. Tables with ceilings, "
        "whose encodings are ranked, need one.",
    )
    encodings: list[str] = Field([], description="The specs that are trained in tables which name none.")
    train: TrainRequest = Field(description="How models are trained.")
    extrapolate: ExtrapolateRequest = Field(description="How they are scored, on each of the texts.")
    table: list[SeasonTable] = Field(min_length=1, description="The tables, written [[table]].")
    task: list[SeasonTask] = Field([], description="Tasks whose accuracies stand beside the ranks, written [[task]].")

    @property
    def scored(self) -> list[str]:
        """The corpora that models are scored on: the texts, and the control if there is one."""
        return [*self.texts, self.control] if self.control else self.texts

    def seeds(self, count: int) -> list[int]:
        """The first seeds of the season."""
        digests = [hashlib.sha256(f"poscli board {self.name} {number}".encode()).digest() for number in range(count)]
        return [int.from_bytes(digest[:4], "big") for digest in digests]

    @model_validator(mode="before")
    @classmethod
    def _with_encodings(cls, content: Any) -> Any:
        """What a file says, with the season's encodings in the tables that name none."""
        if isinstance(content, dict) and "encodings" in content and isinstance(content.get("table"), list):
            tables = [{"encodings": content["encodings"], **table} for table in content["table"]]
            return {**content, "table": tables}
        return content

    @model_validator(mode="after")
    def _is_whole(self) -> Season:
        if self.train.length is None or self.train.batch is None:
            raise ValueError("the table [train] needs length and batch; add them")
        longest = [self.scoring_of(table).max_len for table in self.table if table.ceilings]
        if not all(isinstance(each, int) for each in longest):
            raise ValueError("ceilings are trained on windows of max_len tokens; add it to [extrapolate], such as 1024")
        if any(table.ceilings for table in self.table) and not self.control:
            raise ValueError("tables with ceilings are ranked, and need a control: add it, such as 'spliced'")
        names = [*(table.name for table in self.table), *(task.name for task in self.task)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two tables or tasks are called {twice[0]!r}; give one another name")
        for table in self.table:
            for spec in table.readings:
                if spec not in table.encodings:
                    known = near(spec, table.encodings)
                    raise ValueError(f"table {table.name!r} has readings of {spec!r}, which it does not train; {known}")
        for task in self.task:
            if task.table not in [table.name for table in self.table]:
                raise ValueError(f"the task {task.name!r} is of table {task.table!r}, which is not there; correct it")
        return self

    def table_named(self, name: str) -> SeasonTable:
        """The table of this name, which the season has."""
        return next(table for table in self.table if table.name == name)

    def suite(
        self,
        table: SeasonTable,
        seeds: list[int],
        encodings: list[str] | None = None,
        *,
        task: SeasonTask | None = None,
        tuned: bool = False,
    ) -> Suite:
        """The training and evaluation of a table's encodings as a suite, or those on a task; of some only, if given.

        Where none are given, the models that say what there is to win are trained, too, but on no task. They read as
        many tokens in a step as the others, in longer windows. With `tuned`, tuning has chosen the learning rates.
        """
        train, extrapolate = self.training_of(table), self.scoring_of(table)
        chosen = table.encodings if encodings is None else encodings
        plain = [spec for spec in chosen if spec not in table.readings]
        parts = [SuitePart(encodings=plain)] if plain else []
        if task is not None:
            train, extrapolate = task.train, task.extrapolate
        elif encodings is None and table.ceilings:
            longest, tokens = extrapolate.max_len, (train.length or 0) * (train.batch or 0)
            assert isinstance(longest, int)
            longer = TrainRequest(length=longest, batch=max(1, tokens // longest))
            parts.append(SuitePart(encodings=table.ceilings, train=longer))
        parts += [
            SuitePart(encodings=[trained], extrapolate=ExtrapolateRequest.model_validate({"as": others}))
            for trained, others in table.readings.items()
            if trained in chosen
        ]
        return Suite(
            title=f"The board, season {self.name}: {table.title}",
            encodings=chosen,
            seeds=seeds,
            recipe="tuned" if tuned else "published",
            train=train,
            extrapolate=extrapolate,
            part=parts,
        )

    def training_of(self, table: SeasonTable) -> TrainRequest:
        """How the models of a table are trained at L."""
        return changed_by(self.train, table.train)

    def scoring_of(self, table: SeasonTable) -> ExtrapolateRequest:
        """How the models of a table are scored, on which texts."""
        changed = changed_by(self.extrapolate, table.extrapolate)
        return changed.model_copy(update={"on": self.scored})


@cache
def current_season() -> Season:
    """The season that this version of poscli ranks in."""
    return validated(Season, tomllib.loads(SEASON.read_text(encoding="utf-8")), SEASON.name)


def season_of(path: Path | None) -> Season:
    """The season of a file, the current one for None, or the one around it for `star`; UsageError for others."""
    if path is None:
        return current_season()
    if str(path) == STAR.stem and not path.exists():
        path = STAR
    if not path.is_file():
        raise UsageError(f"there is no season {str(path)!r}; write one like {SEASON}, or leave --season out")
    try:
        return validated(Season, tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def table_names(season: Season, chosen: list[str]) -> list[str]:
    """The names of the chosen tables of a season, or of all; UsageError for one that it does not have."""
    names = [table.name for table in season.table]
    for name in chosen:
        if name not in names:
            raise UsageError(f"--table {name!r}: season {season.name} has no such table; {near(name, names)}")
    return chosen or names
