"""Measuring one trained model: the loss of every token of every window that the plan asks for.

Losses are written to the folder `nll/` of the run as each measurement ends, with the settings they were made under: an
interrupted evaluation goes on where it stopped. Of several ranks, each makes some of the forward passes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poscli.config.code import MEASURING, code_of
from poscli.config.run import SCHEMA
from poscli.equation import Unsupported
from poscli.evaluation.losses import NLL, Losses, MeasuredLosses, Scores, span_keys
from poscli.evaluation.plan import Measurement, Plan, record_of
from poscli.evaluation.protocol import EvaluationSettings, largest_divisor
from poscli.model.language_model import LanguageModel
from poscli.runs.run import LOSSES, Run
from poscli.runs.schema import FULL
from poscli.specs import with_layouts
from poscli.system.console import note
from poscli.system.device import device_name
from poscli.system.errors import FAILED, CorruptError, Interrupted
from poscli.system.memory import is_out_of_memory, keep_freed_memory, peak_memory_mb
from poscli.system.progress import Meter
from poscli.system.provenance import measured_on
from poscli.system.ranks import (
    LostRankError,
    SharedError,
    any_rank,
    exchanged,
    is_lost,
    numbers_of_all,
    ranks,
    together,
)
from poscli.system.signals import Abandoned, Stop, stoppable
from poscli.tasks import Spans, Task

PASS_TOKENS = 8192  # tokens in one forward pass; more are no faster on CPU and take more memory
UNIT_TOKENS = 64  # of one document, at most, that intervals resample together where there are few documents

Measurements = dict[Measurement, MeasuredLosses]


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """The run to evaluate, the task, the settings and the device."""

    run: Run
    task: Task
    settings: EvaluationSettings
    device: torch.device
    _scores: dict[tuple[str, int], Scores] = field(default_factory=dict, init=False)

    @cached_property
    def plan(self) -> Plan:
        """The windows of every protocol, baseline and length."""
        return Plan(self.task, self.settings)

    @property
    def code(self) -> str:
        """The hashes of the code that measures, for the column `measured_code`."""
        return code_of(self.run.config.encoding, MEASURING)

    def scores(self, protocol: str, length: int) -> Scores:
        """The tokens that a protocol scores at a length."""
        if (protocol, length) not in self._scores:
            plan = self.plan
            piece = partial(plan.protocols[protocol].piece, self.settings)
            spans, scored = plan.spans(protocol, length), plan.scored(protocol, length)
            unit = largest_divisor(scored, UNIT_TOKENS) if self.settings.only else scored
            self._scores[protocol, length] = Scores(self.task, length, spans, scored, piece, unit)
        return self._scores[protocol, length]


class Evaluation:
    """Measures one trained model and the baselines made from it."""

    def __init__(self, setup: EvaluationSetup, model: LanguageModel) -> None:
        keep_freed_memory()
        self.setup = setup
        self.models = {FULL: model}
        for name, baseline in setup.plan.baselines.items():
            self.models[name] = baseline.model(model)

    def measure(self) -> Measurements:
        """Make every measurement of the plan. A signal raises Interrupted, with the finished measurements saved.

        Several ranks share the work, and the first one has the losses.
        """
        planned, train_length = self.setup.plan.measurements(), self.setup.settings.train_length
        work = sum(cost(each, spans, train_length) for each, spans in planned.items())
        run = self.setup.run
        meter = Meter(f"extrapolate {with_layouts(run.label)}", work, file=run.progress if ranks().first else None)
        with stoppable() as stop, meter as progress:
            return {each: self._measure(each, spans, progress, stop) for each, spans in planned.items()}

    def _measure(self, measurement: Measurement, spans: Spans, progress: Meter, stop: Stop) -> MeasuredLosses:
        """Make one measurement, or those of its windows whose losses are in its file already."""
        tokens = self.setup.plan.measured_tokens(measurement)
        with together():  # the first rank reads and writes
            known = self._known(measurement, spans, tokens) if ranks().first else None
        left = ~np.isin(span_keys(spans), span_keys(spans[:0] if known is None else known.spans))
        progress.advance(cost(measurement, spans[~left], self.setup.settings.train_length))
        if any_rank(not left.any()):
            measured = known or MeasuredLosses(None)
        else:
            measured = self._run(measurement, spans[left], tokens[left], progress, stop).beside(known)
        with together():  # also if only the settings differ, which whoever repairs the evaluation reads there
            if measured.losses is not None and measured.key != self._key:
                self.setup.run.files.write(f"{LOSSES}/{measurement.file}", measured.content(self._key))
        return measured

    @cached_property
    def _key(self) -> str:
        """What decides the losses of this evaluation, beside the windows."""
        setup = self.setup
        record, device = record_of(setup.run, setup.settings), device_name(setup.device)
        return json.dumps([SCHEMA, setup.run.id, record, device, setup.code])

    def _known(self, measurement: Measurement, spans: Spans, tokens: NDArray[np.int64]) -> MeasuredLosses | None:
        """The losses of the windows that were measured before; None without any, or if their file is damaged."""
        files, name = self.setup.run.files, f"{LOSSES}/{measurement.file}"
        if not files.has(name):
            return None
        try:
            content = files.read(name)
        except CorruptError as error:
            note(f"{str(error).partition(';')[0]}: measuring it again")
            return None
        alone = 2 * measurement.window > PASS_TOKENS and ranks().count == 1
        return MeasuredLosses.of_content(content, self._key, spans, tokens, measurement.window, alone=alone)

    def _run(
        self, measurement: Measurement, spans: Spans, tokens: NDArray[np.int64], progress: Meter, stop: Stop
    ) -> MeasuredLosses:
        """Measure the last `tokens` of each of these windows; of several ranks, only the first one gets the losses.

        A pass reads as many windows as have PASS_TOKENS together, and measures equally many tokens in each. In each
        round every rank makes one pass.
        """
        length, model, count = measurement.window, self.models[measurement.model], ranks().count
        passes = list(_passes(tokens, max(1, PASS_TOKENS // length)))
        reader = np.empty(len(spans), np.int64)  # the rank that reads each window
        for number, windows in enumerate(passes):
            reader[windows] = number % count
        assigned = np.flatnonzero(reader == ranks().rank)
        names = (NLL, *self.setup.task.columns)
        values = {name: np.full((len(assigned), length), np.nan, np.float32) for name in names}
        seconds = 0.0
        for first in range(0, len(passes), count):
            start, number = time.perf_counter(), first + ranks().rank
            windows = passes[number] if number < len(passes) else assigned[:0]
            last = int(tokens[windows].max(initial=0))
            measured, outcome = self._pass(model, measurement, spans[windows], last, stop)
            if failure := first_failure(outcome):
                return _without_losses(*failure, length, model)
            for name, value in measured.items():
                values[name][np.searchsorted(assigned, windows), length - last :] = value
            seconds += time.perf_counter() - start
            done = np.concatenate(passes[first : first + count])
            progress.advance(cost(measurement, spans[done], self.setup.settings.train_length), f"{length} tokens")
        peak = max(exchanged(peak_memory_mb(self.setup.device)))
        if count > 1:
            values = {name: _of_all_ranks(own, reader) for name, own in values.items()}
        if not ranks().first:
            return MeasuredLosses(None)
        on = measured_on(self.setup.device)
        losses = Losses(spans, values)
        made = MeasuredLosses(losses, "ok", "", seconds, peak, model.engine, model.engine_reason, on)
        at_the_end = np.arange(length, 0, -1) <= tokens[:, None]
        if not np.isfinite(values[NLL][at_the_end]).all():
            return replace(made, losses=None, status="nonfinite", reason=f"a loss at {length} is not finite")
        return made

    def _pass(
        self, model: LanguageModel, measurement: Measurement, spans: Spans, last: int, stop: Stop
    ) -> tuple[dict[str, NDArray[np.float32]], PassOutcome]:
        """The task's measurements of the `last` tokens of these windows by name, `[spans, last]`; none without windows.

        The second result is how the pass ended.
        """
        setup, measured, outcome = self.setup, {}, None
        try:
            with stop.abandonable(), torch.inference_mode():
                if len(spans):
                    windows = setup.plan.text(measurement).windows(spans, measurement.window)
                    tokens_BT = torch.from_numpy(windows).to(setup.device)
                    scored = score(model, setup.task, tokens_BT[:, :-1], tokens_BT[:, -last:])
                    measured = {name: value.cpu().numpy() for name, value in scored.items()}
        except Abandoned:
            pass  # `stop` says so below
        except Unsupported as error:
            outcome = PassOutcome("unsupported", str(error))
        except Exception as error:
            if isinstance(error, LostRankError) or is_lost(error):
                raise
            if not is_out_of_memory(error):
                if ranks().count > 1:  # the others would wait for this one
                    first_failure(PassOutcome("failed", f"{type(error).__name__}: {error}", FAILED))
                raise
            reason = f"{measurement.window} tokens do not fit the memory of {device_name(setup.device)}"
            outcome = PassOutcome("oom", reason)
        if outcome is None:
            outcome = PassOutcome("stopped", code=stop.signum) if stop else PassOutcome()
        return measured, outcome


def _passes(tokens: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    """The numbers of the windows of each pass, at most `most`, in all of which equally many `tokens` are measured."""
    for count in np.unique(tokens)[::-1]:
        alike = np.flatnonzero(tokens == count)
        yield from np.split(alike, range(most, len(alike), most))


def score(model: LanguageModel, task: Task, inputs_BS: Tensor, targets_BT: Tensor) -> dict[str, Tensor]:
    """The task's measurements of the targets of the last T inputs, `[B, T]` by name.

    Logits are held for one slice of tokens at a time.
    """
    parts: dict[str, list[Tensor]] = {}
    for part, logits_BTV in model.logits_in_slices(inputs_BS, targets_BT.shape[1]):
        for name, value in task.score(logits_BTV.float(), targets_BT[:, part]).items():
            parts.setdefault(name, []).append(value)
    return {name: torch.cat(values, dim=1) for name, values in parts.items()}


@dataclass(frozen=True)
class PassOutcome:
    """How a pass ended on one rank: `ok`, or another status with its reason."""

    status: str = "ok"  # ok, unsupported, oom, stopped (by the signal `code`), failed (with the exit code `code`)
    reason: str = ""
    code: int = 0


def first_failure(outcome: PassOutcome) -> tuple[PassOutcome, int] | None:
    """The outcome of the first rank whose pass did not end well, and the rank; None if all ended well.

    `outcome` is that of this rank. Every rank must call this after its pass, and all get the same answer.
    """
    if not any(bad for (bad,) in numbers_of_all([float(outcome.status != "ok")])):
        return None
    return next((each, rank) for rank, each in enumerate(exchanged(outcome)) if each.status != "ok")


def _without_losses(outcome: PassOutcome, rank: int, length: int, model: LanguageModel) -> MeasuredLosses:
    """The measurement that a failed pass leaves; raises what ends the command instead."""
    if outcome.status == "stopped":
        raise Interrupted(f"stopped at {length} tokens; the same command goes on from there", outcome.code)
    if outcome.status == "failed":
        raise SharedError(f"rank {rank}: {outcome.reason}", outcome.code)
    return MeasuredLosses(None, outcome.status, outcome.reason, engine=model.engine, engine_reason=model.engine_reason)


def _of_all_ranks(own: NDArray[np.float32], reader: NDArray[np.int64]) -> NDArray[np.float32]:
    """A measurement of all ranks, `[windows, length]`; `reader` `[windows]` is the rank that read each."""
    joined = np.full((len(reader), own.shape[1]), np.nan, np.float32)
    for rank, part in enumerate(exchanged(own)):
        joined[reader == rank] = part
    return joined


def cost(measurement: Measurement, spans: Spans, train_length: int) -> float:
    """The work of a measurement, in tokens; full attention to 2048 tokens counts as much as the rest of the model."""
    return len(spans) * measurement.window * (1 + measurement.attended(train_length) / 2048)
