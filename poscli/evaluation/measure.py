"""Measuring one trained model: the loss of every token of every window that the plan asks for.

Losses are written to the folder `nll/` of the run as each measurement ends, with the settings they were made under: an
interrupted evaluation goes on where it stopped.
"""

from __future__ import annotations

import json
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poscli.config.run import SCHEMA
from poscli.equation import Unsupported
from poscli.evaluation.division import Division, Ended, PassOutcome, settle
from poscli.evaluation.losses import NLL, Losses, Measured
from poscli.evaluation.plan import Measurement, Plan
from poscli.evaluation.protocol import EvaluationSettings
from poscli.evaluation.scores import Scores
from poscli.evaluation.sources import record_of
from poscli.model.context_parallel import ContextParallel, refusal
from poscli.model.language_model import LanguageModel
from poscli.model.transformer import Model
from poscli.runs.run import LOSSES, Run
from poscli.runs.schema import FULL
from poscli.system.console import note, warn_once
from poscli.system.device import device_name
from poscli.system.errors import FAILED, CorruptError
from poscli.system.memory import is_out_of_memory, peak_memory_mb
from poscli.system.progress import Meter
from poscli.system.provenance import measured_on
from poscli.system.ranks import LostRankError, SharedError, any_rank, gathered, is_lost, ranks, together
from poscli.system.signals import Abandoned, Interrupted, Stop, stoppable
from poscli.tasks import Spans, Task

PASS_TOKENS = 8192  # tokens in one forward pass; more are no faster on CPU and take more memory

Measurements = dict[Measurement, Measured]


@dataclass(frozen=True, eq=False)
class EvaluationSetup:
    """The run to evaluate, the task, the settings and the device."""

    run: Run
    task: Task
    settings: EvaluationSettings
    device: torch.device
    context_parallel: bool = False  # several ranks read each window that is longer than the training length together
    _scores: dict[tuple[str, int], Scores] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Plan:
        """The windows of every protocol, baseline and length."""
        return Plan(self.task, self.settings)

    def scores(self, protocol: str, length: int) -> Scores:
        """The tokens that a protocol scores at a length."""
        if (protocol, length) not in self._scores:
            plan = self.plan
            piece = partial(plan.protocols[protocol].piece, self.settings)
            spans, scored = plan.spans(protocol, length), plan.scored(protocol, length)
            self._scores[protocol, length] = Scores(self.task, length, spans, scored, piece)
        return self._scores[protocol, length]


class Evaluation:
    """Measures one trained model and the baselines made from it."""

    def __init__(self, setup: EvaluationSetup, model: LanguageModel) -> None:
        self.setup = setup
        self.models = {FULL: model}
        for name, baseline in setup.plan.baselines.items():
            self.models[name] = baseline.model(model)

    def measure(self) -> Measurements:
        """Make every measurement of the plan. A signal raises Interrupted, with the finished measurements saved.

        Several ranks share the work, and the first one has the losses.
        """
        planned = self.setup.plan.measurements()
        work = sum(cost(each, spans) for each, spans in planned.items())
        run = self.setup.run
        meter = Meter(f"extrapolate {run.label}", work, file=run.progress if ranks().first else None)
        with stoppable() as stop, meter as progress:
            return {each: self._measure(each, spans, progress, stop) for each, spans in planned.items()}

    def _measure(self, measurement: Measurement, spans: Spans, progress: Meter, stop: Stop) -> Measured:
        """Make one measurement, or read it from its file if it was made before."""
        with together():  # the first rank reads and writes
            known = self._known(measurement, spans) if ranks().first else None
        if any_rank(known is not None):
            progress.advance(cost(measurement, spans))
            return known or Measured(None)
        measured = self._run(measurement, spans, progress, stop)
        with together():
            if measured.losses is not None:
                self.setup.run.files.write(f"{LOSSES}/{measurement.file}", measured.content(self._key))
        return measured

    @cached_property
    def _key(self) -> str:
        """What decides the losses of this evaluation, beside the windows."""
        setup = self.setup
        return json.dumps([SCHEMA, setup.run.id, record_of(setup.run, setup.settings), device_name(setup.device)])

    def _known(self, measurement: Measurement, spans: Spans) -> Measured | None:
        """A measurement that was made before; None if there is none, or its file is damaged."""
        files, name = self.setup.run.files, f"{LOSSES}/{measurement.file}"
        if not files.has(name):
            return None
        try:
            content = files.read(name)
        except CorruptError as error:
            note(f"{str(error).partition(';')[0]}: measuring it again")
            return None
        return Measured.of_content(content, self._key, spans, measurement.window)

    def _run(self, measurement: Measurement, spans: Spans, progress: Meter, stop: Stop) -> Measured:
        """Make a measurement; of several ranks, only the first one gets the losses."""
        length, model = measurement.window, self._reader(measurement, stop)
        step, parallel = max(1, PASS_TOKENS // length), isinstance(model, ContextParallel)
        division = Division(len(spans), length, step, parallel)
        values: dict[str, NDArray[np.float32]] = {}
        seconds, done = 0.0, 0
        for every, own in division.rounds():
            start = time.perf_counter()
            try:
                found = self._attempt(model, measurement, spans[own], stop)
            except Ended as ended:
                return _failed(ended, length, model)
            for name, value in found.items():
                values.setdefault(name, division.empty())[done : done + len(value)] = value
            done, seconds = done + own.stop - own.start, seconds + time.perf_counter() - start
            progress.advance(cost(measurement, spans[every]), f"{length} tokens")
        peak = max(float(each) for each in gathered(np.array(peak_memory_mb(self.setup.device))))
        values = division.joined(values)
        if not ranks().first:
            return Measured(None)
        on = measured_on(self.setup.device)
        losses = Losses(spans, values)
        measured = Measured(losses, "ok", "", seconds, peak, model.engine, model.engine_reason, on)
        if not np.isfinite(values[NLL]).all():
            return replace(measured, losses=None, status="nonfinite", reason=f"a loss at {length} is not finite")
        return measured

    def _reader(self, measurement: Measurement, stop: Stop) -> LanguageModel | ContextParallel:
        """The model that reads the windows of a measurement, or the part of it that this rank computes of each."""
        model, setup = self.models[measurement.model], self.setup
        longer = measurement.window > setup.settings.train_length and measurement.window >= ranks().count
        if not (setup.context_parallel and longer):
            return model
        assert isinstance(model, Model), "checkpoints are refused"
        if why := refusal(model.config, model.encodings):
            warn_once(f"the windows of {measurement.model} are shared out over the ranks, each read by one: {why}")
            return model
        return ContextParallel(model, lambda: settle(_state(stop)))

    def _attempt(
        self, model: LanguageModel | ContextParallel, measurement: Measurement, spans: Spans, stop: Stop
    ) -> dict[str, NDArray[np.float32]]:
        """The measurements of this rank's pass of a round; Ended on all ranks if the pass of one did not end well."""
        found: dict[str, NDArray[np.float32]] = {}
        outcome = None
        try:
            # Ranks that read a window together stop together: one that abandoned it would leave the others waiting.
            with nullcontext() if isinstance(model, ContextParallel) else stop.abandonable():
                found = self._forward(model, measurement, spans) if len(spans) else found
        except Abandoned:
            outcome = _state(stop)
        except Unsupported as error:
            outcome = PassOutcome("unsupported", str(error))
        except Exception as error:
            if isinstance(error, Ended | LostRankError) or is_lost(error):
                raise
            if not is_out_of_memory(error):
                if ranks().count > 1:
                    with suppress(Ended):
                        settle(PassOutcome("failed", f"{type(error).__name__}: {error}", FAILED))
                raise
            reason = f"{measurement.window} tokens do not fit the memory of {device_name(self.setup.device)}"
            outcome = PassOutcome("oom", reason)
        settle(outcome or _state(stop))
        return found

    @torch.inference_mode()
    def _forward(
        self, model: LanguageModel | ContextParallel, measurement: Measurement, spans: Spans
    ) -> dict[str, NDArray[np.float32]]:
        """The task's measurements by name, `[spans, tokens]`: of all tokens of the window, or of this rank's part."""
        task, plan = self.setup.task, self.setup.plan
        windows = plan.text(measurement).windows(spans, measurement.window)
        tokens = torch.from_numpy(windows).to(self.setup.device)
        found = score(model, task, tokens[:, :-1], tokens[:, 1:])
        return {name: value.cpu().numpy() for name, value in found.items()}


def score(
    model: LanguageModel | ContextParallel, task: Task, inputs_BT: Tensor, targets_BT: Tensor
) -> dict[str, Tensor]:
    """The task's measurements of every target, `[B, T]` by name; logits are held for one slice of tokens at a time.

    If ranks read the windows together, these are the targets of this rank.
    """
    parts: dict[str, list[Tensor]] = {}
    for part, logits_BTV in model.logits_in_slices(inputs_BT):
        for name, value in task.score(logits_BTV.float(), targets_BT[:, part]).items():
            parts.setdefault(name, []).append(value)
    return {name: torch.cat(values, dim=1) for name, values in parts.items()}


def _state(stop: Stop) -> PassOutcome:
    """The outcome of a rank that has nothing else to tell than whether a signal has reached it."""
    return PassOutcome("stopped", code=stop.signum) if stop else PassOutcome()


def _failed(ended: Ended, length: int, model: LanguageModel | ContextParallel) -> Measured:
    """A measurement without losses; raises what ends the command instead."""
    outcome = ended.outcome
    if outcome.status == "stopped":
        raise Interrupted(f"stopped at {length} tokens; the same command goes on from there", outcome.code)
    if outcome.status == "failed":
        raise SharedError(f"rank {ended.rank}: {outcome.reason}", outcome.code)
    return Measured(None, outcome.status, outcome.reason, engine=model.engine, engine_reason=model.engine_reason)


def cost(measurement: Measurement, spans: Spans) -> float:
    """The work of a measurement, in tokens; full attention to 2048 tokens counts as much as the rest of the model."""
    reach = measurement.window if measurement.model == FULL else 0
    return len(spans) * measurement.window * (1 + reach / 2048)
