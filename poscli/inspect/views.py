"""The views: which pictures an encoding gets, from the blanks that it fills.

A view is one row of the table VIEWS: whether it applies, the function that computes its numbers, and the one that draws
them. Drawings of several encodings are made together, so that they have the same axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch

from poscli.equation import Unsupported
from poscli.equation.reference import TERMS
from poscli.inspect import absolute, figures, probe, rotary, terms
from poscli.inspect.numbers import Missing, Record
from poscli.inspect.properties import Properties
from poscli.inspect.subject import Subject
from poscli.system.plugins import blamed
from poscli.system.registry import plugged_in

SCORED = (*(blank for blank in TERMS if blank != "distance_bias"), "similarity", "scores")


@dataclass(frozen=True)
class Thumbnail:
    """How a view is drawn in small on the contact sheet, and what a reader must know about these pictures."""

    draw: Callable[..., None]
    explained: str


@dataclass(frozen=True)
class View:
    """One picture: its name and caption, the encodings it applies to, its numbers, and how they are drawn."""

    name: str
    caption: str  # what is drawn
    applies: Callable[[Subject], bool]
    measure: Callable[[Subject], Record]
    draw: Callable[..., None]  # draws the numbers of several subjects into as many panels
    thumbnail: Thumbnail | None = None  # None: its finding takes the place of a small picture


def any_with(*blanks: str) -> Callable[[Subject], bool]:
    """Whether an encoding fills one of these blanks; any encoding if there are none."""
    return lambda subject: not blanks or subject.fills(*blanks)


def _line(*blanks: str) -> Callable[[Subject], bool]:
    """Whether an encoding along a line fills one of these blanks, if there are any."""
    return lambda subject: subject.encoding.axes == 1 and any_with(*blanks)(subject)


def _run(*blanks: str) -> Callable[[Subject], bool]:
    """Whether an encoding along a line is trained, and, if there are blanks, fills one of them in the first layer."""
    return lambda subject: (
        subject.trained is not None and _line(*blanks)(subject) and (not blanks or 1 in subject.layers)
    )


VIEWS = (
    View("table", "the vectors of positions", any_with("embed"), absolute.first_rows, figures.draw_position_table),
    View("products", "products of two positions' vectors", _line("embed"), absolute.products, figures.draw_products),
    View("wavelengths", "wavelengths of channels", _line("embed"), absolute.wavelengths, figures.draw_wavelengths),
    View("shift map", "from one position to another", _line("embed"), absolute.shift_map, figures.draw_map),
    View("columns", "angles between channels", any_with("embed"), absolute.gram, figures.draw_gram),
    View("four terms", "terms of the score, in the run's text", _run("embed"), terms.four_terms, figures.draw_terms),
    View("angles", "how far pairs of channels turn", _line("query", "key"), rotary.turning, figures.draw_turning),
    View("decay", "a query turned away from itself", _line("query", "key"), rotary.decay, figures.draw_decay),
    View("bias", "bias by distance", _line("distance_bias"), terms.bias, figures.draw_bias),
    View("bias alone", "attention by the bias alone", _line("distance_bias"), terms.bias_alone, figures.draw_shares),
    View("scores", "scores where all tokens look alike", _line(*SCORED), probe.scores_when_alike, figures.draw_scores),
    View(
        "positions", "positions that formulas see", _line("positions"), terms.positions_seen,
        partial(figures.draw_by_order, what="position that formulas see"),
    ),
    View(
        "temperature", "factor on scores", _line("temperature"), terms.temperature_by_order,
        partial(figures.draw_by_order, what="factor on the scores"),
    ),
    View(
        "weights", "attention where all tokens look alike", _line(), probe.weights_when_alike,
        figures.draw_weight_curves,
        Thumbnail(figures.draw_small_weights, "One line per head, dark to light."),
    ),
    View("weights of the run", "attention in the run's text", _run(), probe.weights_of_run, figures.draw_weight_curves),
)  # fmt: skip
SPEEDS = View("speeds", "angular speed of pairs", _line("query", "key"), rotary.turning, figures.draw_scaling)


@cache
def all_views() -> dict[str, View]:
    """Every view by its name: those of this file, then those of satellites, which are called `VIEWS` there, too."""
    others = [import_module(name).VIEWS for name in plugged_in("views") if name != __name__]
    return {view.name: view for views in (VIEWS, *others) for view in views}


@dataclass(frozen=True, eq=False)
class Inspected:
    """A subject with the numbers of every view that applies to it, and its property sheet if there is one."""

    subject: Subject
    records: dict[str, Record]
    properties: Properties | None = field(default=None)

    def record(self) -> dict[str, Any]:
        """Everything for a JSON document."""
        subject = self.subject
        about = {
            "spec": subject.spec,
            "layers": list(subject.layers),
            "weights": subject.weights or "initial",
            "run": subject.trained.run.id if subject.trained else None,
            "length": subject.length,
            "max_len": subject.max_len,
            "blanks": sorted(subject.encoding.blanks),
        }
        views = {name: {"finding": record.finding} | record.record() for name, record in self.records.items()}
        return about | {"views": views, "properties": self.properties.record() if self.properties else None}


def measure_views(subjects: Sequence[Subject], sheets: Sequence[Properties | None]) -> list[Inspected]:
    """The numbers of every view of every subject, in the order of `all_views`; with `sheets`, one for each subject.

    Encodings that turn queries and keys are compared with the first of them.
    """
    inspected = []
    first = next((s for s in subjects if SPEEDS.applies(s)), None)
    for subject, properties in zip(subjects, sheets, strict=True):
        views = [view for view in all_views().values() if view.applies(subject)]
        records = {view.name: _measured(view.measure, subject) for view in views}
        if first is not None and subject is not first and SPEEDS.applies(subject):
            records[SPEEDS.name] = _measured(partial(rotary.scaling, other=first), subject)
        inspected.append(Inspected(subject, records, properties))
    return inspected


def table_rows(sheets: Sequence[Properties]) -> list[tuple[str, ...]]:
    """The name of each property, and its value on every sheet; all sheets have the same properties."""
    return [
        (rows[0].name, *(row.value for row in rows)) for rows in zip(*(sheet.rows for sheet in sheets), strict=True)
    ]


def _measured(measure: Callable[[Subject], Record], subject: Subject) -> Record:
    """The numbers of a view; where the encoding is not defined for what the view needs, the reason."""
    try:
        with blamed(), torch.no_grad():
            return measure(subject)
    except Unsupported as reason:
        return Missing(str(reason))
