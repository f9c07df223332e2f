"""Suites: TOML files that name encodings and seeds to train and evaluate."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, ValidationError

from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.validate import Frozen, explain
from poscli.system.errors import UsageError, near


class Suite(Frozen):
    """The content of a suite file: every encoding is trained with every seed, and all runs are evaluated alike."""

    title: str
    description: str = ""
    encodings: list[str] = Field(min_length=1)
    seeds: list[int] = Field([0], min_length=1)
    train: TrainRequest = TrainRequest()
    extrapolate: ExtrapolateRequest = ExtrapolateRequest()

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Pairs of encoding and seed, seed by seed, so that encodings can be compared after the first seed."""
        for seed in self.seeds:
            for encoding in self.encodings:
                yield encoding, seed


def load(path: Path) -> Suite:
    """Read a suite. UsageError if there is no such file, it is not TOML, or a key is wrong."""
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


def available(folder: Path) -> dict[Path, str]:
    """The titles of the suites in a folder; that of a file that cannot be read is the error."""
    titles = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            titles[path] = load(path).title
        except UsageError as error:
            titles[path] = f"unreadable: {error}"
    return titles
