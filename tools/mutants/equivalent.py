"""The list of mutants that no test can or should tell from poscli: `equivalent.toml`.

A mutant is known by its file and by the text of its line before and after the change, so that the list holds while
other lines are edited. Every entry has one of four kinds, and a sentence that shows it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutants.coverage_map import ROOT
from mutants.run import Outcome

LIST = Path(__file__).with_name("equivalent.toml")
KINDS = {
    "value": "no value that poscli computes, stores or prints can differ",
    "cost": "only time or memory differ: sizes of blocks, thresholds between two exact ways, caches",
    "looks": "a picture or a page differs by what nobody reads: widths of lines, sizes of type, colours, a pixel",
    "draws": "other random numbers are drawn where any would do, or a tolerance is measured with more or fewer of them",
}


@dataclass(frozen=True)
class Equivalent:
    """Changes to one line that need no test; ValueError if the kind is unknown or the reason is missing."""

    file: str  # relative to the repository
    before: str  # the line, without indentation
    after: tuple[str, ...]  # what it may become; "(removed)" for a decorator
    kind: str  # one of KINDS
    because: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.before!r}: kind is {self.kind!r}; use one of {', '.join(KINDS)}")
        if not self.because or not self.after:
            raise ValueError(f"{self.before!r} has no {'reason' if self.after else 'change'}; give one")

    def is_of(self, outcome: Outcome) -> bool:
        """Whether a mutant is one of these changes."""
        return (
            self.file == outcome.mutant.file and self.before == outcome.before and outcome.after.strip() in self.after
        )

    def is_stale(self, root: Path = ROOT) -> bool:
        """Whether the line is no longer in the file."""
        path = root / self.file
        return not path.exists() or self.before not in map(str.strip, path.read_text(encoding="utf-8").splitlines())


def load(path: Path = LIST) -> list[Equivalent]:
    """The entries of a list."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["equivalent"]
    return [Equivalent(**entry | {"after": tuple(entry["after"])}) for entry in entries]


def find(outcome: Outcome, known: list[Equivalent]) -> Equivalent | None:
    """The entry of a mutant; None if it has none."""
    return next((entry for entry in known if entry.is_of(outcome)), None)
