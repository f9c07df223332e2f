"""The sheet of pictures: all views of one subject, or the views of several side by side on the same axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poscli.drawing.sheet import Contents, Sheet
from poscli.drawing.text import counted, listed
from poscli.equation.encoding import formula
from poscli.inspect.numbers import Missing
from poscli.inspect.subject import FRESH, RANDOM, Subject
from poscli.inspect.views import SPEEDS, Inspected, View, all_views, table_rows

MOST_COLUMNS = 6  # of subjects side by side
ALIKE = (
    "Where all tokens look alike, every query and every key is the same vector of ones, so that only positions tell "
    "keys apart."
)
RANDOMLY = "Its weights start at zero, where positions change nothing; drawn are random weights in their place."


def draw_sheet(inspected: Sequence[Inspected]) -> Sheet:
    """The sheet of one subject, with two panels in a row, or of several, with a column for each."""
    views = [view for view in (*all_views().values(), SPEEDS) if any(view.name in each.found for each in inspected)]
    alone = len(inspected) == 1
    columns = min(2, len(views)) if alone else len(inspected)
    places = _in_turn(views, columns) if alone else _side_by_side(views, inspected)
    sheet = Sheet(1 + max(row for row, _ in places.values()), columns, _contents(inspected))
    for view in views:
        _draw_view(sheet, view, places, inspected)
    return sheet


def _in_turn(views: Sequence[View], columns: int) -> dict[tuple[str, int], tuple[int, int]]:
    """The row and column of each view of the only subject."""
    return {(view.name, 0): divmod(n, columns) for n, view in enumerate(views)}


def _side_by_side(views: Sequence[View], inspected: Sequence[Inspected]) -> dict[tuple[str, int], tuple[int, int]]:
    """The row and column of each view of each subject: a view has one row, the first in which its columns are free."""
    taken: list[set[int]] = []
    places: dict[tuple[str, int], tuple[int, int]] = {}
    for view in views:
        own = {column for column, each in enumerate(inspected) if view.name in each.found}
        row = next((n for n, columns in enumerate(taken) if not columns & own), len(taken))
        if row == len(taken):
            taken.append(set())
        taken[row] |= own
        places |= {(view.name, column): (row, column) for column in own}
    return places


def explained(subject: Subject) -> str:
    """The formula: the first paragraph of the docstring of an encoding, or of each part of a composed one."""
    documented = [type(leaf) for leaf in subject.leaves if type(leaf).__doc__]  # of its own: it is not inherited
    return "  +  ".join(map(formula, documented))


def _draw_view(
    sheet: Sheet, view: View, places: Mapping[tuple[str, int], tuple[int, int]], inspected: Sequence[Inspected]
) -> None:
    """Draw one view of all subjects that have it; where one has no numbers, its panel says why."""
    panels, found = [], []
    for n, each in enumerate(inspected):
        record = each.found.get(view.name)
        if record is None:
            continue
        if isinstance(record, Missing):
            sheet.say(sheet.panel(*places[view.name, n], view.caption, ""), record.finding)
            continue
        panels.append(sheet.panel(*places[view.name, n], view.caption, record.finding))
        found.append(record)
    if panels:
        view.draw(panels, found)


def _contents(inspected: Sequence[Inspected]) -> Contents:
    subjects = [each.subject for each in inspected]
    specs = list(dict.fromkeys(subject.spec for subject in subjects))
    alone = len(subjects) == 1
    title = subjects[0].title if alone else f"{listed(specs)} side by side" if len(specs) > 1 else specs[0]
    headings = [] if alone else [subject.title for subject in subjects]
    texts = [explained(subject) for subject in subjects]
    sheets = [sheet for sheet in {id(each.properties): each.properties for each in inspected}.values() if sheet]
    table = [(name, values) for name, *values in table_rows(sheets)]
    if len(sheets) > 1:
        table = [("measured properties", [sheet.spec for sheet in sheets]), *table]
    return Contents(title, headings or [""], texts, table, _footnote(subjects))


def _footnote(subjects: Sequence[Subject]) -> str:
    """For which model the encodings were built, with which weights, and what the views assume."""
    first, shape = subjects[0], subjects[0].encoding.shape
    made = (
        f"Built for training windows of L = {first.length} tokens, {counted(first.depth, 'layers')} and "
        f"{counted(shape.heads, 'heads')} of width {shape.head_width}; drawn up to {first.max_len} tokens."
    )
    runs = list(dict.fromkeys(s.trained.run.id for s in subjects if s.trained))
    weights = f"Weights and held-out text of {listed(runs)}." if runs else ""
    if any(s.weights == FRESH and any(True for _ in s.encoding.parameters()) for s in subjects):
        weights = f"{weights} Initial weights, before any training."
    if any(s.weights == RANDOM for s in subjects):
        weights = f"{weights} {RANDOMLY}"
    return " ".join(filter(None, (made, weights.strip(), ALIKE)))
