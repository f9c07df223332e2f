"""The measurements of an evaluation: which windows go through which model. Every row is computed from their losses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poscli.config.run import slug
from poscli.encodings import get
from poscli.evaluation.baseline import BASELINES, baseline
from poscli.evaluation.losses import span_keys
from poscli.evaluation.protocol import PROTOCOLS, Documents, EvaluationSettings, Protocol, pieces
from poscli.runs.run import FAILED_STATES, Run
from poscli.runs.schema import CROP, FULL
from poscli.specs import parse
from poscli.system.errors import DataError, UsageError
from poscli.system.plugins import is_outside, source_hash
from poscli.tasks import HeldOut, Spans, Task

PAIRED = CROP  # the baseline whose loss minus the model's is the context gain
# Windows that are measured whole, for the curve of the loss by position: at least so many, and as many as have so many
# times the tokens that a protocol scores. Of the others only what is scored is measured, for which a model of two
# layers takes half the time.
WHOLE_WINDOWS, WHOLE_SHARE = 16, 8


@dataclass(frozen=True, order=True)
class Measurement:
    """The losses of windows of `window` tokens under one model, which several rows may share.

    `model` is FULL, or the name of the baseline that restricts the model. `length` is the length whose text is read, or
    0 for a text that all lengths share.
    """

    window: int
    length: int
    model: str

    def attended(self, train_length: int) -> float:
        """The length of an input whose tokens attend, on average, to as many tokens as those of the window.

        A baseline is taken to hide what is `train_length` tokens back or more, as the usual ones do.
        """
        hidden = 0 if self.model == FULL else max(0, self.window - train_length)
        return self.window - hidden**2 / self.window

    @property
    def file(self) -> str:
        """The name of the file that holds its losses."""
        parts = [str(self.window)]
        parts += [f"of-{self.length}"] if self.length else []
        if self.model != FULL:
            parts.append(name := slug(self.model))
            if name != self.model:  # the slugs of start=2 and start=-2 are equal
                parts.append(hashlib.sha256(self.model.encode()).hexdigest()[:6])
        return "-".join(parts) + ".parquet"


class Plan:
    """The windows of every protocol and baseline at every length.

    UsageError for lengths, a stride, a protocol or a baseline that the task cannot have; DataError if no document is
    long enough.
    """

    def __init__(self, task: Task, settings: EvaluationSettings) -> None:
        self.task, self.settings = task, settings
        names = dict.fromkeys([settings.only] if settings.only else (*task.protocols, *settings.protocols))
        self.protocols: dict[str, Protocol] = {name: PROTOCOLS.get(name)() for name in names}
        self.baselines = {name: baseline(name) for name in dict.fromkeys((PAIRED, *settings.baselines))}
        self._refuse_other_windows()
        lengths = settings.lengths
        if task.same_text:
            self._documents = dict.fromkeys(lengths, Documents(task.text(lengths[-1]), settings, lengths[-1]))
        else:
            self._documents = {length: Documents(task.text(length), settings, length) for length in lengths}
        self._spans: dict[tuple[str, int], Spans] = {}
        self._refuse_what_scores_nothing()

    def variants(self, protocol: str) -> list[str]:
        """FULL, and the baselines that a protocol compares it with."""
        return [FULL, *self.baselines] if self.protocols[protocol].compared else [FULL]

    def spans(self, protocol: str, length: int) -> Spans:
        """The windows of a protocol at a length, sorted, each once."""
        if (protocol, length) not in self._spans:
            self._spans[protocol, length] = _distinct(self.drawn(protocol, length))
        return self._spans[protocol, length]

    def drawn(self, protocol: str, length: int) -> Spans:
        """The windows of a protocol at a length, in the order in which they are drawn."""
        return self.protocols[protocol].spans(self._documents[length], length)

    def windows(self, protocol: str, length: int, window: int) -> Spans:
        """The windows of `window` tokens that read what a protocol scores at a length."""
        scored, piece = self.scored(protocol, length), self.protocols[protocol].piece(self.settings, window)
        return pieces(self.spans(protocol, length), scored, piece)

    def scored(self, protocol: str, length: int) -> int:
        """How many tokens at the end of each of a protocol's windows count."""
        return self.protocols[protocol].scored(self.settings, length)

    def measurement(self, length: int, variant: str) -> Measurement:
        """The measurement that holds the losses of a variant at a length."""
        text, train_length = 0 if self.task.same_text else length, self.settings.train_length
        if variant == FULL:
            return Measurement(length, text, FULL)
        compared = self.baselines[variant]
        model = variant if compared.changes_model(length, train_length) else FULL
        return Measurement(compared.window(length, train_length), text, model)

    def measurements(self) -> dict[Measurement, Spans]:
        """Every measurement with the windows that all rows together need, the shortest windows first."""
        needed = self._needed
        order = sorted(needed, key=lambda each: (each.window, each.length, each.model != FULL))
        return {each: _distinct(np.concatenate([windows for windows, _ in needed[each]])) for each in order}

    def measured_tokens(self, measurement: Measurement) -> NDArray[np.int64]:
        """How many tokens at its end are measured in each window of a measurement, in the order of `measurements`."""
        parts = self._needed[measurement]
        spans = _distinct(np.concatenate([windows for windows, _ in parts]))
        counts = np.zeros(len(spans), np.int64)
        for windows, last in parts:
            rows = np.searchsorted(span_keys(spans), span_keys(windows))
            counts[rows] = np.maximum(counts[rows], last)
        if measurement.model == FULL:
            if self.settings.only:  # those of the first stride, so that an evaluation of more tokens goes on from it
                first = Plan(self.task, replace(self.settings, tokens=self.settings.stride)).measurements()
                rows = np.searchsorted(span_keys(spans), span_keys(first[measurement]))
            else:
                whole = max(WHOLE_WINDOWS, WHOLE_SHARE * self.settings.tokens // measurement.window)
                rows = np.unique(np.linspace(0, len(spans) - 1, whole).round().astype(np.int64))
            counts[rows] = measurement.window
        return counts

    @cached_property
    def _needed(self) -> dict[Measurement, list[tuple[Spans, int]]]:
        """The windows of each measurement, by row of the results, and how many of their last tokens that row scores."""
        needed: dict[Measurement, list[tuple[Spans, int]]] = {}
        for length in self.settings.lengths:
            for name, protocol in self.protocols.items():
                for variant in self.variants(name):
                    measurement = self.measurement(length, variant)
                    windows = self.windows(name, length, measurement.window)
                    last = protocol.piece(self.settings, measurement.window)
                    needed.setdefault(measurement, []).append((windows, last))
        return needed

    def documents_compared(self) -> int:
        """The number of documents over which a report will compare encodings, at the longest length."""
        protocol = max(self.protocols, key=lambda name: self.protocols[name].compared)  # the first of equal ones
        return len(np.unique(self.spans(protocol, self.settings.lengths[-1])[:, 0]))

    def text(self, measurement: Measurement) -> HeldOut:
        """The documents of a measurement."""
        return self.task.text(measurement.length or measurement.window)

    def _refuse_other_windows(self) -> None:
        """Refuse lengths and strides that the task's windows cannot have."""
        default, most = self.task.strides(self.settings.train_length)
        if self.settings.stride > most:
            raise UsageError(
                f"--stride {self.settings.stride} must be between 1 and {most} for the task {self.task.name} at "
                f"training length {self.settings.train_length}; leave it out for {default}"
            )
        self.task.check_evaluation(self.settings.lengths)

    def _refuse_what_scores_nothing(self) -> None:
        """Refuse protocols for the other kind of text, too short documents, and baselines that read too little."""
        task, longest, stride = self.task, self.settings.lengths[-1], self.settings.stride
        for name, protocol in self.protocols.items():
            if protocol.same_text not in (None, task.same_text):
                kind = "the same text at every length" if protocol.same_text else "a text of its own for every length"
                raise UsageError(f"--protocol {name} is for tasks with {kind}, unlike {task.name}; leave it out")
        if not all(len(self.spans(protocol, longest)) for protocol in self.protocols):
            raise DataError(task.text(longest).shortage(longest, stride))
        for name, protocol in self.protocols.items():
            for length in self.settings.lengths:
                for variant in self.variants(name):
                    window = self.measurement(length, variant).window
                    if window < (scored := protocol.piece(self.settings, window)):
                        raise UsageError(
                            f"the baseline {variant} reads {window} tokens, and the protocol {name} scores {scored}; "
                            "give a smaller --stride"
                        )


def _distinct(spans: Spans) -> Spans:
    """The windows sorted by document and end, each once. (np.unique takes many times as long on rows.)"""
    first = np.unique(span_keys(spans), return_index=True)[1]
    return spans[first]


def record_of(run: Run, settings: EvaluationSettings) -> dict[str, Any]:
    """What eval.json says about an evaluation; two evaluations with equal records give equal results.

    A training that failed is part of it, because it can be repeated, and may succeed then.

    Plugins that decide the trained model are part of the run's own configuration; here are those of the encoding that
    the model is evaluated as, of the protocols and of the baselines.
    """
    parts: dict[str, type] = {name: PROTOCOLS.get(name) for name in settings.protocols}
    specs = [run.config.encoding] if run.under_another else []
    for name in settings.baselines:
        if name in BASELINES.names():
            parts[name] = BASELINES.get(name)
        else:
            specs.append(name)
    parts |= {leaf.name: get(leaf.name) for spec in specs for layer in parse(spec).layers for leaf in layer}
    sources = {name: source_hash(part) for name, part in sorted(parts.items()) if is_outside(part)}
    state = run.status()["state"]
    record = settings.record() | ({"plugins": sources} if sources else {})
    return record | ({"training": state} if state in FAILED_STATES else {})
