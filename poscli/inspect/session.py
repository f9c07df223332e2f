"""One call of `poscli inspect`: from specs or runs to numbers, and to the sheet of pictures and the words about them.

A sheet has all views of one subject, or the views of several side by side on the same axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poscli.config.resolve import model_config
from poscli.config.run import ModelConfig, slug
from poscli.drawing.page import written
from poscli.drawing.sheet import Contents, Sheet
from poscli.drawing.text import listed
from poscli.equation.encoding import formula
from poscli.inspect.numbers import Missing
from poscli.inspect.properties import Properties, measure_properties
from poscli.inspect.settings import InspectSettings
from poscli.inspect.subject import FRESH, RANDOM, InspectedRun, Subject, fresh_subjects, load_run, trained_subjects
from poscli.inspect.views import SPEEDS, Inspected, View, all_views, measure_views, table_rows
from poscli.specs import parse
from poscli.system.console import note
from poscli.system.errors import UsageError
from poscli.system.files import write_atomic
from poscli.system.memory import unaffordable
from poscli.system.text import counted, printable

FIXED = ("length", "preset", "model", "seed")  # settings that a trained run decides
COPIES = 12  # of a window of W numbers per token in float64, that a view holds at once
PNG, SVG = "sheet.png", "sheet.svg"
MOST_COLUMNS = 6  # of subjects side by side
ALIKE = (
    "Where all tokens look alike, every query and every key is the same vector of ones, so that only positions tell "
    "keys apart."
)
RANDOMLY = "Its weights start at zero, where positions change nothing; drawn are random weights in their place."


@dataclass(frozen=True, eq=False)
class SubjectGroup:
    """The subjects of one spec or of one run, with what its property sheet is measured on."""

    subjects: list[Subject]
    config: ModelConfig
    trained: InspectedRun | None = None

    @property
    def name(self) -> str:
        """The spec, or the run's id."""
        return self.trained.run.id if self.trained else self.subjects[0].spec

    def properties(self, seed: int) -> Properties:
        """The property sheet of the spec."""
        first = self.subjects[0]
        model = self.trained.model if self.trained else None
        return measure_properties(first.spec, self.config, first.length, seed=seed, model=model)


def fresh_group(spec: str, settings: InspectSettings) -> SubjectGroup:
    """The subjects of a spec at its initial weights; UsageError if it cannot be built for this shape."""
    config, max_len = drawn_size(settings)
    return SubjectGroup(fresh_subjects(spec, config, settings.length, max_len, settings.seed), config)


def drawn_size(settings: InspectSettings) -> tuple[ModelConfig, int]:
    """The shape of the model that specs are drawn in, and the longest window; UsageError for wrong settings."""
    config = model_config(settings.preset, settings.model)
    return config, _longest_drawn(settings, settings.length, config)


def trained_group(id_: str, runs: Path, settings: InspectSettings) -> SubjectGroup:
    """The subjects of a trained run; UsageError if there is none, or if settings are given that the run decides."""
    given = [name for name in FIXED if name in settings.model_fields_set]
    if given:
        option = next(iter(settings.model), "model") if given[0] == "model" else given[0]
        raise UsageError(f"--{option} is what the run was trained with; leave it out, or leave out --run {id_}")
    trained = load_run(runs, id_)
    config = trained.run.config
    max_len = _longest_drawn(settings, config.length, config.model)
    return SubjectGroup(trained_subjects(trained, max_len), config.model, trained)


def _longest_drawn(settings: InspectSettings, length: int, config: ModelConfig) -> int:
    """The longest window to draw; UsageError if its numbers do not fit the memory, or if it is below `length`."""
    max_len = settings.drawn(length)
    if why := unaffordable(COPIES * 8 * config.width * max_len, torch.device("cpu")):
        raise UsageError(f"--max-len {max_len} {why}; give a smaller one")
    if max_len < length:
        raise UsageError(f"--max-len {max_len} is less than the training length {length}; give at least {length}")
    return max_len


def groups_of(specs: Sequence[str], ids: Sequence[str], runs: Path, settings: InspectSettings) -> list[SubjectGroup]:
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


def inspect_groups(groups: Sequence[SubjectGroup], settings: InspectSettings) -> list[Inspected]:
    """The numbers of all subjects; those of a spec with too many kinds of layers are the evenly spaced ones."""
    subjects, sheets = [], []
    for group in groups:
        properties = group.properties(settings.seed) if settings.properties else None
        chosen = _evenly(group.subjects)
        subjects += chosen
        sheets += [properties] * len(chosen)
    return measure_views(subjects, sheets)


def _evenly(subjects: list[Subject]) -> list[Subject]:
    """At most as many subjects as fit side by side; a note says which layers are left out."""
    if len(subjects) <= MOST_COLUMNS:
        return subjects
    chosen = [subjects[round(n * (len(subjects) - 1) / (MOST_COLUMNS - 1))] for n in range(MOST_COLUMNS)]
    layers = ", ".join(str(subject.layers[0]) for subject in chosen)
    note(f"{len(subjects)} layers have weights of their own; drawn are layers {layers}")
    return chosen


def write_sheets(inspected: Sequence[Inspected], folder: Path) -> list[Path]:
    """Draw all views, as PNG and as SVG, on as many sheets as the subjects need; returns the files.

    The layers of one spec or run stay on one sheet. A single sheet is `sheet.png`, several are `sheet-1.png` and so on.
    """

    def owner(each: Inspected) -> tuple[str, str]:
        return each.subject.spec, each.subject.trained.run.id if each.subject.trained else ""

    sheets: list[list[Inspected]] = [[]]
    for _, same in groupby(inspected, key=owner):
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


def write_sheet(inspected: Sequence[Inspected], folder: Path, png: str = PNG, svg: str = SVG) -> list[Path]:
    """Draw all views on one sheet, as PNG and as SVG; returns the files."""
    sheet = draw_sheet(inspected)
    contents = {folder / png: written(sheet.figure, "png"), folder / svg: written(sheet.figure, "svg")}
    for path, content in contents.items():
        write_atomic(path, content)
    return list(contents)


def folder_of(groups: Sequence[SubjectGroup], out: Path) -> Path:
    """The folder of the files, unless the user names one."""
    return out / "inspect" / slug(" ".join(group.name for group in groups))


def draw_sheet(inspected: Sequence[Inspected]) -> Sheet:
    """The sheet of one subject, with two panels in a row, or of several, with a column for each."""
    views = [view for view in (*all_views().values(), SPEEDS) if any(view.name in each.records for each in inspected)]
    alone = len(inspected) == 1
    columns = min(2, len(views)) if alone else len(inspected)
    in_turn = {(view.name, 0): divmod(n, columns) for n, view in enumerate(views)}
    places = in_turn if alone else _side_by_side(views, inspected)
    sheet = Sheet(1 + max(row for row, _ in places.values()), columns, _contents(inspected))
    for view in views:
        panels, records = [], []
        for n, each in enumerate(inspected):
            record = each.records.get(view.name)
            if isinstance(record, Missing):  # its panel says why there are no numbers
                sheet.say(sheet.panel(*places[view.name, n], view.caption, ""), record.finding)
            elif record is not None:
                panels.append(sheet.panel(*places[view.name, n], view.caption, record.finding))
                records.append(record)
        if panels:
            view.draw(panels, records)
    return sheet


def _side_by_side(views: Sequence[View], inspected: Sequence[Inspected]) -> dict[tuple[str, int], tuple[int, int]]:
    """The row and column of each view of each subject: a view has one row, the first in which its columns are free."""
    taken: list[set[int]] = []
    places: dict[tuple[str, int], tuple[int, int]] = {}
    for view in views:
        columns = {column for column, each in enumerate(inspected) if view.name in each.records}
        row = next((n for n, occupied in enumerate(taken) if not occupied & columns), len(taken))
        if row == len(taken):
            taken.append(set())
        taken[row] |= columns
        places |= {(view.name, column): (row, column) for column in columns}
    return places


def explained(subject: Subject) -> str:
    """The formula: the first paragraph of the docstring of an encoding, or of each part of a composed one."""
    documented = [type(leaf) for leaf in subject.leaves if type(leaf).__doc__]  # of its own: it is not inherited
    return "  +  ".join(map(formula, documented))


def _contents(inspected: Sequence[Inspected]) -> Contents:
    subjects = [each.subject for each in inspected]
    specs = list(dict.fromkeys(subject.spec for subject in subjects))
    alone = len(subjects) == 1
    title = subjects[0].title if alone else f"{listed(specs)} side by side" if len(specs) > 1 else specs[0]
    headings = [] if alone else [subject.title for subject in subjects]
    texts = [explained(subject) for subject in subjects]
    sheets = _sheets_of(inspected)
    table = [(name, values) for name, *values in table_rows(sheets)]
    if len(sheets) > 1:
        table = [("measured properties", [sheet.spec for sheet in sheets]), *table]
    return Contents(title, headings or [""], texts, table, _footnote(subjects))


def _footnote(subjects: Sequence[Subject]) -> str:
    """For which model the encodings were built, with which weights, and what the views assume."""
    first, shape = subjects[0], subjects[0].encoding.shape
    made = (
        f"Built for training windows of L = {first.length} tokens, {counted(first.depth, 'layer')} and "
        f"{counted(shape.heads, 'head')} of width {shape.head_width}; drawn up to {first.max_len} tokens."
    )
    runs = list(dict.fromkeys(s.trained.run.id for s in subjects if s.trained))
    weights = f"Weights and held-out text of {listed(runs)}." if runs else ""
    if any(s.weights == FRESH and any(True for _ in s.encoding.parameters()) for s in subjects):
        weights = f"{weights} Initial weights, before any training."
    if any(s.weights == RANDOM for s in subjects):
        weights = f"{weights} {RANDOMLY}"
    return " ".join(filter(None, (made, weights.strip(), ALIKE)))


def show_inspected(inspected: Sequence[Inspected], console: Console) -> None:
    """Print the findings of every subject, and below them the property sheet of each spec."""
    captions = {view.name: view.caption for view in (*all_views().values(), SPEEDS)}
    for each in inspected:
        console.print(Text(each.subject.title, style="bold"))
        console.print(_table([(captions[name], record.finding, "") for name, record in each.records.items()]))
    sheets = _sheets_of(inspected)
    if len(sheets) == 1:
        console.print(Text("measured properties", style="bold"))
        console.print(_table([(row.name, row.value, row.detail) for row in sheets[0].rows]))
    elif sheets:  # their values side by side, without their details
        table = Table(box=None, pad_edge=True, padding=(0, 1), header_style="bold")
        table.add_column("measured properties", no_wrap=True, style="dim")
        for sheet in sheets:
            table.add_column(Text(printable(sheet.spec)))
        for name, *values in table_rows(sheets):
            table.add_row(name, *(Text(printable(value)) for value in values))
        console.print(table)


def _sheets_of(inspected: Sequence[Inspected]) -> list[Properties]:
    """The property sheets of all subjects: those of one spec share theirs."""
    return [sheet for sheet in {id(each.properties): each.properties for each in inspected}.values() if sheet]


def _table(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Names beside what was found; details below, dimmed."""
    table = Table(box=None, pad_edge=True, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for name, value, detail in rows:
        table.add_row(name, Text(printable(value)))
        if detail:
            table.add_row("", Text(printable(detail), style="dim"))
    return table
