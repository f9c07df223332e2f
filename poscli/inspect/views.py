"""The views: which pictures an encoding gets, from the blanks that it fills.

A view is one row of the table VIEWS: whether it applies, the function that computes its numbers, and the one that draws
them. Drawings of several encodings are made together, so that they have the same axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from poscli.equation import Unsupported
from poscli.inspect import absolute, biases, grid, order, probe, rotary, shift, terms
from poscli.inspect.numbers import Missing, Record
from poscli.inspect.properties import Properties
from poscli.inspect.subject import Subject
from poscli.system.plugin_sources import blamed

SCORED = ("relative_keys", "relative_queries", "potential", "bias", "similarity", "scores")


@dataclass(frozen=True)
class View:
    """One picture: its name, the encodings it applies to, its numbers, and the drawing in the module of figures."""

    name: str
    applies: Callable[[Subject], bool]
    measure: Callable[[Subject], Record]
    figure: str  # module:function below poscli.inspect, imported when something is drawn: matplotlib takes long


def _line(*blanks: str) -> Callable[[Subject], bool]:
    """Whether an encoding along a line fills one of these blanks."""
    return lambda subject: subject.encoding.axes == 1 and subject.fills(*blanks)


def _grid(*blanks: str) -> Callable[[Subject], bool]:
    """Whether an encoding on a grid fills one of these blanks; any encoding on a grid if there are none."""
    return lambda subject: subject.encoding.axes == 2 and (not blanks or subject.fills(*blanks))


def _of_a_run(*blanks: str) -> Callable[[Subject], bool]:
    """Whether a subject is a trained encoding along a line, in a run's first layer if blanks are given."""

    def applies(subject: Subject) -> bool:
        first = 1 in subject.layers and subject.fills(*blanks) if blanks else True
        return subject.trained is not None and subject.encoding.axes == 1 and first

    return applies


VIEWS = (
    View("table", lambda s: s.fills("embed"), absolute.table, "absolute_figure:draw_table"),
    View("products", _line("embed"), absolute.products, "absolute_figure:draw_products"),
    View("wavelengths", _line("embed"), absolute.wavelengths, "absolute_figure:draw_wavelengths"),
    View("shift map", _line("embed"), shift.shift_map, "absolute_figure:draw_map"),
    View("columns", lambda s: s.fills("embed"), absolute.gram, "absolute_figure:draw_gram"),
    View("four terms", _of_a_run("embed"), terms.four_terms, "curves_figure:draw_terms"),
    View("angles", _line("query", "key"), rotary.turning, "rotary_figure:draw_turning"),
    View("decay", _line("query", "key"), rotary.decay, "rotary_figure:draw_decay"),
    View("bias", _line("distance_bias"), biases.bias, "curves_figure:draw_bias"),
    View("bias alone", _line("distance_bias"), biases.bias_alone, "curves_figure:draw_bias_alone"),
    View("scores", _line(*SCORED), probe.scores_when_alike, "curves_figure:draw_scores"),
    View("positions", _line("positions"), order.positions, "curves_figure:draw_positions"),
    View("temperature", _line("temperature"), order.temperature, "curves_figure:draw_temperature"),
    View("weights", lambda s: s.encoding.axes == 1, probe.weights_when_alike, "curves_figure:draw_weights"),
    View("weights of the run", _of_a_run(), probe.weights_of_run, "curves_figure:draw_weights"),
    View("bias map", _grid("distance_bias"), grid.bias_map, "grid_figure:draw_maps"),
    View("embedding map", _grid("embed"), grid.embedding_map, "grid_figure:draw_maps"),
    View("product map", _grid("query", "key"), grid.product_map, "grid_figure:draw_maps"),
    View("weight map", _grid(), grid.weight_map, "grid_figure:draw_weight_maps"),
)
SPEEDS = View("speeds", _line("query", "key"), rotary.turning, "rotary_figure:draw_scaling")


@dataclass(frozen=True, eq=False)
class Inspected:
    """A subject with the numbers of every view that applies to it, and its property sheet if there is one."""

    subject: Subject
    found: dict[str, Record]
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
        views = {name: {"finding": record.finding} | record.record() for name, record in self.found.items()}
        return about | {"views": views, "properties": self.properties.record() if self.properties else None}


def inspect(subjects: Sequence[Subject], sheets: Sequence[Properties | None]) -> list[Inspected]:
    """The numbers of every view of every subject, in the order of VIEWS; with `sheets`, one for each subject.

    Encodings that turn queries and keys are compared with the first of them.
    """
    inspected = []
    first = next((s for s in subjects if SPEEDS.applies(s)), None)
    for subject, properties in zip(subjects, sheets, strict=True):
        found = {view.name: _measured(view.measure, subject) for view in VIEWS if view.applies(subject)}
        if first is not None and subject is not first and SPEEDS.applies(subject):
            found[SPEEDS.name] = _measured(partial(rotary.scaling, other=first), subject)
        inspected.append(Inspected(subject, found, properties))
    return inspected


def _measured(measure: Callable[[Subject], Record], subject: Subject) -> Record:
    """The numbers of a view; where the encoding is not defined for what the view needs, the reason."""
    try:
        with blamed(), torch.no_grad():
            return measure(subject)
    except Unsupported as reason:
        return Missing(str(reason))
