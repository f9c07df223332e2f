"""Suites: TOML files that name encodings and seeds to train and evaluate."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from poscli.config.claim import Claim
from poscli.config.request import ExtrapolateRequest, TrainRequest
from poscli.config.validate import MOST, Request, refusal_of
from poscli.system.errors import UsageError, near

RequestT = TypeVar("RequestT", bound=Request)
Seed = Annotated[int, Field(ge=0, le=MOST)]
Lengths = Literal["published", "scaled", "both"]
Rates = Literal["published", "tuned", "both"]


class SuitePart(Request):
    """What one part of a suite does otherwise: keys of its own [train] and [extrapolate] replace those of the suite."""

    encodings: list[str] = Field(
        [], min_length=1, description="The encodings of this part; by default those of the suite."
    )
    lengths: Lengths | None = Field(None, description="The lengths of these; by default as the suite has them.")
    recipe: Rates | None = Field(None, description="The learning rates of this part; by default as the suite has them.")
    seeds: list[Seed] = Field([], min_length=1, description="The seeds of this part; by default those of the suite.")
    train: TrainRequest = Field(TrainRequest(), description="How the runs of this part are trained, where it differs.")
    extrapolate: ExtrapolateRequest = Field(
        ExtrapolateRequest(), description="How the runs of this part are evaluated, where it differs."
    )


class Suite(Request):
    """The content of a suite file: every encoding is trained with every seed, and all runs are evaluated alike.

    With parts, such as one for each corpus, all of that is done for every part, which may name encodings and seeds of
    its own.
    """

    several_lines = frozenset({"description"})

    title: str = Field(description="Title of the suite, which `poscli ls suites` shows.")
    description: str = Field("", description="What the suite asks, in a sentence or two.")
    encodings: list[str] = Field(
        min_length=1, description="Encoding specs, such as alibi, 'rope+window(128)' or 'rope|none'."
    )
    lengths: Lengths = Field(
        "published",
        description="Options of encodings that are lengths, where no value is given: as published, in tokens; scaled "
        "to L in the proportion of the paper, where known, such as t5(far=0.25L); or both, as encodings of their own.",
    )
    recipe: Rates = Field(
        "published",
        description="Learning rates: as published, those of [train.recipe]; tuned, the best of nine trials of equal "
        "budget of every encoding, which are made first, as by `poscli tune`; or both, as lines of their own.",
    )
    seeds: list[Seed] = Field([0], min_length=1, description="Seeds; every encoding is trained with each of them.")
    train: TrainRequest = Field(TrainRequest(), description="How every run is trained.")
    extrapolate: ExtrapolateRequest = Field(ExtrapolateRequest(), description="How every run is evaluated.")

    part: list[SuitePart] = Field(
        [],
        description="Parts, written [[part]], such as one for each corpus; each has all encodings and all seeds "
        "unless it names its own.",
    )

    claim: list[Claim] = Field(
        [],
        description="Published statements, written [[claim]], that the report holds against the results.",
    )

    @field_validator("part", "claim", mode="before")
    @classmethod
    def _list(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, dict):
            raise ValueError(
                f"a {info.field_name} of a suite begins with [[{info.field_name}]], in two pairs of brackets"
            )
        return value

    def parts(self) -> list[Suite]:
        """A suite without parts for each part; the suite itself if it has none."""
        changed = [
            {
                "train": changed_by(self.train, part.train),
                "extrapolate": changed_by(self.extrapolate, part.extrapolate),
                "encodings": part.encodings or self.encodings,
                "lengths": part.lengths or self.lengths,
                "recipe": part.recipe or self.recipe,
                "seeds": part.seeds or self.seeds,
            }
            for part in self.part
        ]
        return [self.model_copy(update=changes | {"part": []}) for changes in changed] or [self]


def changed_by(request: RequestT, other: RequestT) -> RequestT:
    """A request with the values that the other one sets instead; of a table, with the keys that it sets."""
    values = {name: getattr(other, name) for name in other.model_fields_set}
    tables = {name: getattr(request, name) | value for name, value in values.items() if isinstance(value, dict)}
    return request.model_copy(update=values | tables)


def load_suite(path: Path) -> Suite:
    """Read a suite. UsageError if there is no such file, it is not TOML, or a key is wrong."""
    if not path.is_file():
        folder = Path("suites") if path.parent == Path() else path.parent
        known = near(path.name, [other.name for other in folder.glob("*.toml")])
        raise UsageError(f"there is no suite {str(path)!r}: {known} (in the folder {folder})")
    try:
        return Suite.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        raise UsageError(f"{path}: {refusal_of(Suite, error)}") from error


# Folders of the results that are not reports of suites.
TAKEN = ("runs", "advise", "bench", "report", "tune", "corpus", "generated", "inspect", "board", "rank")


def report_folder(out: Path, suite: Path) -> Path:
    """The folder of a suite's report in the results folder `out`, named like the suite's file without `.toml`.

    UsageError if a folder of this name would hold something else, or the name has other characters than letters,
    digits and `._+-`.
    """
    name = suite.stem
    if name.lower() in TAKEN:
        raise UsageError(f"the report of {suite} would go into {out / name}, which has other files; name one with --to")
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise UsageError(f"{name!r} is no plain name for the folder of a report; name one with --to")
    return out / name


def suite_titles(folder: Path) -> dict[Path, tuple[str, str]]:
    """The titles of the suites in a folder, and why a file has none, which is empty for those that can be read."""
    titles = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            titles[path] = load_suite(path).title, ""
        except UsageError as error:
            titles[path] = "", str(error)
    return titles
