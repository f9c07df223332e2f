"""Suites: what to train and evaluate, as data. One TOML file, strict keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from poscli.config import Frozen, explain
from poscli.errors import UsageError, near
from poscli.requests import ExtrapolateRequest, TrainRequest


class Suite(Frozen):
    """Every encoding with every seed, trained and evaluated alike."""

    title: str
    description: str = ""
    encodings: list[str] = Field(min_length=1)
    seeds: list[int] = Field([0], min_length=1)
    train: TrainRequest = TrainRequest()
    extrapolate: ExtrapolateRequest = ExtrapolateRequest()

    def jobs(self) -> Iterator[tuple[str, int]]:
        """(encoding, seed), seed by seed: after the first round there is something to compare."""
        for seed in self.seeds:
            for encoding in self.encodings:
                yield encoding, seed


@dataclass(frozen=True)
class Entry:
    """A suite file: its name, and what it says or why it cannot be read."""

    name: str
    path: Path
    title: str


def load(path: Path) -> Suite:
    """Read a suite; UsageError says which key is wrong."""
    if not path.is_file():
        folder = Path("suites") if path.parent == Path() else path.parent
        known = near(path.name, [other.name for other in folder.glob("*.toml")])
        raise UsageError(f"there is no suite {str(path)!r}: {known} (in the folder {folder})")
    try:
        return Suite.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        raise UsageError(f"{path}: {explain(Suite, error)}") from error


def available(folder: Path) -> list[Entry]:
    """The suites of a folder."""
    entries = []
    for path in sorted(folder.glob("*.toml")):
        try:
            title = load(path).title
        except UsageError as error:
            title = f"unreadable: {error}"
        entries.append(Entry(path.stem, path, title))
    return entries
