"""One call of `poscli inspect`: from specs or runs to numbers and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from poscli.config.resolve import model_config
from poscli.config.run import ModelConfig, slug
from poscli.inspect.figure import MOST_COLUMNS, draw_sheet
from poscli.inspect.properties import Properties, measure_properties
from poscli.inspect.settings import InspectSettings
from poscli.inspect.subject import Subject, fresh_subjects, trained_subjects
from poscli.inspect.trained import Trained, load
from poscli.inspect.views import Inspected, inspect
from poscli.specs import parse
from poscli.system.console import note
from poscli.system.errors import UsageError
from poscli.system.files import write_atomic
from poscli.system.memory import unaffordable

FIXED = ("length", "preset", "model", "seed")  # settings that a trained run decides
COPIES = 12  # of a window of W numbers per token in float64, that a view holds at once
PNG, SVG = "sheet.png", "sheet.svg"


@dataclass(frozen=True, eq=False)
class Group:
    """The subjects of one spec or of one run, with what its property sheet is measured on."""

    subjects: list[Subject]
    config: ModelConfig
    trained: Trained | None = None

    @property
    def name(self) -> str:
        """The spec, or the run's id."""
        return self.trained.run.id if self.trained else self.subjects[0].spec

    def properties(self, seed: int) -> Properties:
        """The property sheet of the spec."""
        first = self.subjects[0]
        model = self.trained.model if self.trained else None
        return measure_properties(first.spec, self.config, first.length, seed=seed, model=model)


def fresh_group(spec: str, settings: InspectSettings) -> Group:
    """The subjects of a spec at its initial weights; UsageError if it cannot be built for this shape."""
    config = model_config(settings.preset, settings.model)
    max_len = settings.drawn(settings.length)
    refuse_unaffordable(config.width, max_len)
    _refuse_short(max_len, settings.length)
    return Group(fresh_subjects(spec, config, settings.length, max_len, settings.seed), config)


def trained_group(id_: str, runs: Path, settings: InspectSettings) -> Group:
    """The subjects of a trained run; UsageError if there is none, or if settings are given that the run decides."""
    given = [name for name in FIXED if name in settings.model_fields_set]
    if given:
        raise UsageError(f"--{given[0]} is what the run was trained with; leave it out, or leave out --run {id_}")
    trained = load(runs, id_)
    config = trained.run.config
    max_len = settings.drawn(config.length)
    refuse_unaffordable(config.model.width, max_len)
    _refuse_short(max_len, config.length)
    return Group(trained_subjects(trained, max_len), config.model, trained)


def groups_of(specs: Sequence[str], ids: Sequence[str], runs: Path, settings: InspectSettings) -> list[Group]:
    """Every spec, or with ids every run. Specs beside runs must be those that the runs were trained with."""
    if not ids:
        groups = [fresh_group(spec, settings) for spec in dict.fromkeys(str(parse(spec)) for spec in specs)]
    else:
        groups = [trained_group(id_, runs, settings) for id_ in dict.fromkeys(ids)]
        encodings = [group.subjects[0].spec for group in groups]
        for spec in map(str, map(parse, specs)):
            if spec not in encodings:
                trained = " and ".join(f"{group.name} is {group.subjects[0].spec}" for group in groups)
                raise UsageError(f"{spec} is not what --run was trained with: {trained}; leave {spec} out")
    return groups


def inspect_groups(groups: Sequence[Group], settings: InspectSettings) -> list[Inspected]:
    """The numbers of all subjects; those of a spec with too many kinds of layers are the evenly spaced ones."""
    subjects, sheets = [], []
    for group in groups:
        properties = group.properties(settings.seed) if settings.properties else None
        chosen = _evenly(group.subjects)
        subjects += chosen
        sheets += [properties] * len(chosen)
    return inspect(subjects, sheets)


def write_sheets(inspected: Sequence[Inspected], folder: Path) -> list[Path]:
    """Draw all views, as PNG and as SVG, on as many sheets as the subjects need; returns the files.

    The layers of one spec or run stay on one sheet. A single sheet is `sheet.png`, several are `sheet-1.png` and so on.
    """
    sheets: list[list[Inspected]] = [[]]
    for _, same in groupby(inspected, key=lambda each: _owner(each.subject)):
        layers = list(same)
        if len(sheets[-1]) + len(layers) > MOST_COLUMNS:
            sheets.append([])
        sheets[-1] += layers
    if len(sheets) == 1:
        return write_sheet(inspected, folder)
    files = []
    for n, part in enumerate(sheets, 1):
        png, svg = (f"{Path(name).stem}-{n}{Path(name).suffix}" for name in (PNG, SVG))
        files += write_sheet(part, folder, png, svg)
    return files


def _owner(subject: Subject) -> tuple[str, str]:
    """The spec and, of a trained one, the run: what one group of layers has in common."""
    return subject.spec, subject.trained.run.id if subject.trained else ""


def write_sheet(inspected: Sequence[Inspected], folder: Path, png: str = PNG, svg: str = SVG) -> list[Path]:
    """Draw all views on one sheet, as PNG and as SVG; returns the files."""
    sheet = draw_sheet(inspected)
    contents = {folder / png: sheet.png(), folder / svg: sheet.svg()}
    for path, content in contents.items():
        write_atomic(path, content)
    return list(contents)


def folder_of(groups: Sequence[Group], out: Path) -> Path:
    """The folder of the files, unless the user names one."""
    return out / "inspect" / slug(" ".join(group.name for group in groups))


def refuse_unaffordable(width: int, tokens: int) -> None:
    """UsageError if the numbers of a window do not fit the memory."""
    if why := unaffordable(COPIES * 8 * width * tokens, torch.device("cpu")):
        raise UsageError(f"--max-len {tokens} {why}; give a smaller one")


def _refuse_short(max_len: int, length: int) -> None:
    if max_len < length:
        raise UsageError(f"--max-len {max_len} is less than the training length {length}; give at least {length}")


def _evenly(subjects: list[Subject]) -> list[Subject]:
    """At most as many subjects as fit side by side; a note says which layers are left out."""
    if len(subjects) <= MOST_COLUMNS:
        return subjects
    chosen = [subjects[round(n * (len(subjects) - 1) / (MOST_COLUMNS - 1))] for n in range(MOST_COLUMNS)]
    layers = ", ".join(str(subject.layers[0]) for subject in chosen)
    note(f"{len(subjects)} layers have weights of their own; drawn are layers {layers}")
    return chosen
